"""Multi-head self-attention inside windows (W-MSA, SW-MSA)."""
from typing import Dict, Optional, Tuple

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...windows import WindowLayout, into_windows
from ..rpe import WindowGeometry, build_rpe
from .backends import BACKENDS

_TABLE = 'relative_position_bias_table'


class WindowAttention(BaseModule):
    """Attention of every token over the tokens of its window.

    mm keeps Swin's table directly in this module and configs and checkpoints know it by that name, whereas here it
    belongs to the encoding. State dicts therefore hold ``rpe.relative_position_bias_table`` as
    ``relative_position_bias_table``, and a table of another window is resized when it is loaded.

    Args:
        embed_dims (int): Channels.
        num_heads (int): Attention heads.
        window_size (tuple[int, int]): Window in tokens.
        rpe (dict, optional): Config of the relative position encoding.
        qkv_bias (bool): Whether q, k and v have a bias.
        qk_scale (float, optional): Scale of the logits. None means ``head_dim ** -0.5``.
        attn_drop_rate (float): Dropout of attention weights.
        proj_drop_rate (float): Dropout of the output.
        attn_backend (str): A name in ``backends.BACKENDS``.
    """

    def __init__(self,
                 embed_dims: int,
                 num_heads: int,
                 window_size: Tuple[int, int],
                 rpe: Optional[dict] = None,
                 qkv_bias: bool = True,
                 qk_scale: Optional[float] = None,
                 attn_drop_rate: float = 0.,
                 proj_drop_rate: float = 0.,
                 attn_backend: str = 'sdpa'):
        super().__init__()
        self.num_heads = num_heads
        self.scale = qk_scale or (embed_dims // num_heads)**-0.5
        self.geometry = WindowGeometry.square(window_size)
        self.attend = BACKENDS[attn_backend]
        self.rpe = build_rpe(rpe, num_heads=num_heads, window_size=window_size, head_dim=embed_dims // num_heads)
        self.qkv = nn.Linear(embed_dims, embed_dims * 3, bias=qkv_bias)
        self.attn_drop_rate = attn_drop_rate
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop_rate)
        self._register_state_dict_hook(_table_into_mm_place)
        self._register_load_state_dict_pre_hook(_table_from_mm_place, with_module=True)

    def forward(self, x: Tensor, layout: WindowLayout, mask_padding: bool) -> Tensor:
        """
        Args:
            x (Tensor): Packed tokens ``(K, C)``.
            layout (WindowLayout): The windows to cut them into.
            mask_padding (bool): False lets window padding take part as zeros that were projected.

        Returns:
            Tensor: ``(K, C)``.
        """
        channels = x.shape[-1]
        windows, slots = layout.slots.shape
        move = into_windows(layout)
        # projecting first leaves padding out of the projections, and the gather puts q, k and v in window order
        qkv = move(self.qkv(x))
        if not mask_padding and len(layout.holes) and self.qkv.bias is not None:  # what zeros are projected to
            qkv.index_copy_(0, layout.holes, self.qkv.bias.to(qkv.dtype).expand(len(layout.holes), -1))
        q, k, v = qkv.view(windows, slots, 3, self.num_heads, channels // self.num_heads).permute(2, 0, 3, 1, 4)
        q, bias = q * self.scale, None
        if self.rpe is not None:
            q, k, bias = self.rpe(q, k, self.geometry)
        dropout = self.attn_drop_rate if self.training else 0.

        def attend(part: slice, visible: Optional[Tensor]) -> Tensor:
            part_bias = bias[part] if bias is not None and bias.ndim == 4 else bias
            return self.attend(q[part], k[part], v[part], part_bias, visible, dropout).transpose(1, 2)

        # most windows need no mask and share one bias; only the others pay for one of their own
        plain, parts = layout.plain, []
        if plain > 0:
            parts.append(attend(slice(plain), None))
        if plain < windows:
            parts.append(attend(slice(plain, None), layout.visible))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.proj_drop(self.proj(move.inverse(out.reshape(windows * slots, channels))))


class ShiftedWindowAttention(nn.Module):
    """Holds the attention as ``w_msa``, the name it has in mm's checkpoints and configs."""

    def __init__(self, **kwargs):
        super().__init__()
        self.w_msa = WindowAttention(**kwargs)

    def forward(self, x: Tensor, layout: WindowLayout, mask_padding: bool) -> Tensor:
        return self.w_msa(x, layout, mask_padding)


def _table_into_mm_place(module: WindowAttention, state_dict: Dict[str, Tensor], prefix: str, metadata: dict) -> None:
    table = state_dict.pop(f'{prefix}rpe.{_TABLE}', None)
    if table is not None:
        state_dict[prefix + _TABLE] = table


def _table_from_mm_place(module: WindowAttention, state_dict: Dict[str, Tensor], prefix: str, metadata: dict,
                         *_) -> None:
    for name in (_TABLE, 'relative_position_index'):
        if prefix + name in state_dict:
            state_dict[f'{prefix}rpe.{name}'] = state_dict.pop(prefix + name)
