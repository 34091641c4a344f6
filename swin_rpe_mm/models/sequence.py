"""Attention over long sequences, block by block."""
from typing import Dict, Optional, Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor

from ..errors import InputError
from ..rpe import LogCPB, TableRPE
from ..rpe.replacing import Replaced, replace_in_optimizer
from ..windows import ShiftedWindows, WindowLayout, tokens_inside
from .block import WindowAttention

_BLOCK_RPE = dict(type='BlockRPE')
# what files of earlier versions have in the attention, and the encoding that it belongs to
_IN_ATTENTION = {'relative_position_bias_table': TableRPE, 'cpb_mlp': LogCPB}


class BlockLocalAttention(BaseModule):
    """A sequence is cut into blocks; a token sees its own block and those beside it.

    It is windowed attention over a map of one row: a block is a window, and the blocks beside it are its halo. Cost and
    memory grow with the length, not with its square. With an encoding that knows every offset, such as ``BlockRPE``,
    sequences may be longer than those it was trained with.

    Args:
        embed_dims (int): Channels.
        num_heads (int): Attention heads.
        block_size (int): Tokens per block.
        neighbours (int): How many blocks on each side a token sees besides its own.
        rpe (dict | list[dict], optional): Config of the relative position encoding.
        **attention: Further arguments of :class:`~.block.WindowAttention`.

    Raises:
        InputError: If a number is not positive, or ``neighbours`` negative.
    """

    def __init__(self,
                 embed_dims: int,
                 num_heads: int,
                 block_size: int,
                 neighbours: int = 1,
                 rpe: Optional[dict] = _BLOCK_RPE,
                 **attention):
        super().__init__()
        if not isinstance(neighbours, int) or neighbours < 0:
            raise InputError(f'neighbours must be a whole number from 0, got {neighbours!r}')
        if num_heads < 1 or embed_dims % num_heads:
            raise InputError(f'num_heads={num_heads} does not divide the {embed_dims} channels')
        self.neighbours = neighbours
        self.block_size = _positive(block_size)
        self.attn = WindowAttention(embed_dims, num_heads, (block_size, ), rpe, halo=(neighbours * block_size, ),
                                    **attention)
        self._register_load_state_dict_pre_hook(_into_encoding, with_module=True)

    def forward(self, x: Tensor, lengths: Optional[Sequence[int]] = None) -> Tensor:
        """
        Args:
            x (Tensor): Sequences ``(B, L, C)``, each filled up to L behind its end with anything.
            lengths (Sequence[int], optional): Tokens of each sequence, from 1 to L. None means L.

        Returns:
            Tensor: ``(B, L, C)``, zero behind the end of each sequence.

        Raises:
            InputError: If ``lengths`` does not fit ``x``.
        """
        batch, length, _ = x.shape
        lengths = [length] * batch if lengths is None else [int(entry) for entry in lengths]
        if len(lengths) != batch or not all(1 <= entry <= length for entry in lengths):
            raise InputError(f'lengths must be {batch} numbers from 1 to {length}, got {lengths}')
        windows = ShiftedWindows((1, self.block_size), halo=(0, self.neighbours * self.block_size))
        extents = torch.tensor([(1, entry) for entry in lengths], device=x.device)
        layout = WindowLayout.build(windows, batch, (1, length), extents, device=x.device)
        layout = layout._replace(geometry=self.attn.geometry)  # of one axis, as the encoding is
        inside = tokens_inside(extents, (1, length))
        x = torch.where(inside, x, 0)  # what lies behind may be no number, and 0 times NaN is NaN
        return torch.where(inside, self.attn(x, layout), 0)

    def set_block_size(self, block_size: int, mode: str = 'bicubic',
                       optimizer: Optional[torch.optim.Optimizer] = None) -> Replaced:
        """Change the block, see :meth:`swin_rpe_mm.SwinRPE.set_window_size`."""
        window, halo = (_positive(block_size), ), (self.neighbours * block_size, )
        self.attn.check_window(window, halo, mode)
        replaced = self.attn.set_window(window, halo, mode)
        self.block_size = block_size
        if optimizer is not None:
            replace_in_optimizer(optimizer, replaced)
        return replaced


def _into_encoding(module: BlockLocalAttention, state_dict: Dict[str, Tensor], prefix: str, *_) -> None:
    attention = f'{prefix}attn.'
    for name, kind in _IN_ATTENTION.items():
        path = next((path for path, part in module.attn.named_modules() if isinstance(part, kind)), None)
        for key in [key for key in state_dict if path and key.startswith(attention + name)]:
            state_dict[f'{attention}{path}.{key[len(attention):]}'] = state_dict.pop(key)


def _positive(block_size: int) -> int:
    if not isinstance(block_size, int) or block_size < 1:
        raise InputError(f'block_size must be a whole number from 1, got {block_size!r}')
    return block_size
