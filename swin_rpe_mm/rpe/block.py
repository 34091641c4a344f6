"""A bias from the block that the key lies in and from the places inside of the blocks."""
import torch
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, Window, kept
from .buckets import sign_log
from .offsets import Device, coordinates, joint_index
from .table import lookup

BLOCK_FORMS = ('clip', 'log')


@MODELS.register_module()
class BlockRPE(RelativePositionEncoding):
    """``T[block offset, inner offset]``, both in buckets, for keys from other blocks of a map or a long sequence.

    Blocks are as large as the encoding's window. A token at coordinate c lies in block ``floor(c / b)`` at the inner
    place ``c mod b``, along each axis; the queries of a window are in block 0. Offsets are those of the query minus
    those of the key. Inner offsets fall in the buckets of :func:`~.buckets.sign_log`. As far block offsets share a
    bucket, keys may lie at any distance. Position inside and between segments was split by BiPE, arXiv 2401.16421.

    Rows run over the block offsets of all axes, then over the inner offsets of all axes, the last fastest. They do not
    depend on the window: a new one changes the size of the blocks and nothing else.

    Args:
        max_blocks (int): Block offsets are clipped to +- this; with ``log``, the buckets per sign.
        block_form (str): ``clip``, or ``log`` for the buckets of ``sign_log`` up to ``8 * max_blocks`` blocks.
        num_buckets (int): Buckets per sign of the inner offsets.
        max_distance (float): Inner offsets from here on share the last bucket.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`.

    Raises:
        InputError: If a value is not allowed.
    """

    def __init__(self,
                 max_blocks: int = 2,
                 block_form: str = 'clip',
                 num_buckets: int = 4,
                 max_distance: float = 32,
                 **window):
        super().__init__(**window)
        for name, value in (('max_blocks', max_blocks), ('num_buckets', num_buckets)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f'{name} must be a whole number from 1, got {value!r}')
        if block_form not in BLOCK_FORMS:
            raise InputError(f'block_form must be one of {", ".join(BLOCK_FORMS)}, got {block_form!r}')
        if not isinstance(max_distance, (int, float)) or isinstance(max_distance, bool) or not max_distance > 0:
            raise InputError(f'max_distance must be a positive number, got {max_distance!r}')
        self.buckets = (max_blocks, block_form, num_buckets, max_distance)
        rows = ((2 * max_blocks + 1) * (2 * num_buckets + 1))**len(self.window_size)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, self.num_heads))
        self.init_weights()

    def init_weights(self) -> None:
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def bias(self, geometry: WindowGeometry) -> Tensor:
        """See :meth:`~.base.RelativePositionEncoding.bias`."""
        table = self.relative_position_bias_table
        return lookup(table, kept(block_rows, geometry, self.window_size, *self.buckets, table.device))


def block_rows(geometry: WindowGeometry,
               block: Window,
               max_blocks: int,
               block_form: str,
               num_buckets: int,
               max_distance: float,
               device: Device = 'cpu') -> Tensor:
    """Row of each pair in the table of :class:`BlockRPE`, ``(Nq, Nk)`` long."""
    queries, keys = coordinates(geometry)
    pairs = [(query[:, None], key[None], side) for query, key, side in zip(queries, keys, block)]
    blocks = torch.stack([query // side - key // side for query, key, side in pairs])
    inner = torch.stack([query % side - key % side for query, key, side in pairs])
    if block_form == 'log':
        blocks = sign_log(blocks, max_blocks, 8 * max_blocks)
    else:
        blocks = blocks.clamp(-max_blocks, max_blocks) + max_blocks
    parts = torch.cat([blocks, sign_log(inner, num_buckets, max_distance)])
    sides = (2 * max_blocks + 1, ) * len(block) + (2 * num_buckets + 1, ) * len(block)
    return joint_index(parts, sides).to(device)
