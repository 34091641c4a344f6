"""Swin's block: norm, attention in windows, residual; norm, MLP, residual (arXiv 2103.14030, equation 3)."""
import math
from typing import Any, Callable, Optional, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_activation_layer, build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..errors import InputError
from ..rpe import RPEConfig, build_rpe
from ..rpe.interpolate import check_mode
from ..rpe.replacing import Replaced
from ..windows import WindowGeometry, WindowLayout

Window = Tuple[int, ...]


class SwinBlock(BaseModule):
    """``x + attention(norm(x))``, then ``x + MLP(norm(x))``. SwinV2 (arXiv 2111.09883) norms after each branch.

    Args:
        embed_dims (int): Channels.
        feedforward_channels (int): Hidden channels of the MLP.
        norm_after (bool): Normalise what a branch gives, not what it gets.
        drop_rate (float): Dropout in the MLP and after attention.
        drop_path_rate (float): Probability of dropping each residual branch of an image.
        act_cfg (dict): Activation of the MLP.
        norm_cfg (dict): Norms.
        **attention: Arguments of :class:`WindowAttention`.
    """

    def __init__(self,
                 embed_dims: int,
                 feedforward_channels: int,
                 norm_after: bool = False,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 act_cfg: Optional[dict] = None,
                 norm_cfg: Optional[dict] = None,
                 **attention):
        super().__init__()
        norm_cfg = norm_cfg or dict(type='LN')
        self.norm_after = norm_after
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else nn.Identity()
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.attn = ShiftedWindowAttention(embed_dims=embed_dims, proj_drop_rate=drop_rate, **attention)
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn = FFN(embed_dims, feedforward_channels, drop_rate, act_cfg)

    def forward(self, x: Tensor, layout: WindowLayout) -> Tensor:
        """
        Args:
            x (Tensor): Tokens ``(B, L, C)``, row by row.
            layout (WindowLayout): The windows to attend in.

        Returns:
            Tensor: ``(B, L, C)``.
        """
        if self.norm_after:
            x = x + self.drop_path(self.norm1(self.attn(x, layout)))
            return x + self.drop_path(self.norm2(self.ffn(x)))
        x = x + self.drop_path(self.attn(self.norm1(x), layout))
        return x + self.drop_path(self.ffn(self.norm2(x)))


class DropPath(nn.Module):
    """Drop whole images of a residual branch, in training; the others grow by as much.

    Args:
        rate (float): Probability in (0, 1).
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """``(B, L, C)`` to ``(B, L, C)``."""
        if not self.training:
            return branch
        return branch * branch.new_empty(branch.shape[0], 1, 1).bernoulli_(1 - self.rate).div_(1 - self.rate)

    def extra_repr(self) -> str:
        return f'rate={self.rate}'


class FFN(BaseModule):
    """The MLP, with the names that it has in mm's checkpoints: ``layers.0.0`` and ``layers.1`` are linear.

    Args:
        embed_dims (int): Channels.
        feedforward_channels (int): Hidden channels.
        drop_rate (float): Dropout after each linear layer.
        act_cfg (dict, optional): Activation; None means GELU.
    """

    def __init__(self, embed_dims: int, feedforward_channels: int, drop_rate: float = 0.,
                 act_cfg: Optional[dict] = None):
        super().__init__()
        hidden = nn.Sequential(nn.Linear(embed_dims, feedforward_channels),
                               build_activation_layer(act_cfg or dict(type='GELU')), nn.Dropout(drop_rate))
        self.layers = nn.Sequential(hidden, nn.Linear(feedforward_channels, embed_dims), nn.Dropout(drop_rate))

    def forward(self, x: Tensor) -> Tensor:
        """``(..., C)`` to ``(..., C)``."""
        return self.layers(x)


class ShiftedWindowAttention(BaseModule):
    """Holds the attention as ``w_msa``, the name that it has in mm's checkpoints and configs."""

    def __init__(self, **attention):
        super().__init__()
        self.w_msa = WindowAttention(**attention)

    def forward(self, x: Tensor, layout: WindowLayout) -> Tensor:
        """``(B, L, C)`` to ``(B, L, C)``."""
        return self.w_msa(x, layout)


class WindowAttention(BaseModule):
    """Multi-head attention of every token over the tokens of its window (W-MSA, SW-MSA), and of those around it.

    Args:
        embed_dims (int): Channels.
        num_heads (int): Attention heads.
        window_size (tuple[int, ...]): Window in tokens.
        rpe (dict | list[dict], optional): Config of the relative position encoding.
        qkv_bias (bool): Whether q, k and v have a bias; with cosine attention k has none (arXiv 2111.09883).
        qk_scale (float, optional): Scale of the logits. None means ``head_dim ** -0.5``. Not used by cosine attention.
        attn_drop_rate (float): Dropout of attention weights.
        proj_drop_rate (float): Dropout of the output.
        cosine (bool): SwinV2's attention: the logit is the cosine of query and key times a learned scale of each head,
            at most 100.
        halo (tuple[int, ...], optional): How many tokens the keys reach beyond the window on each side of an axis.
        pooled_neighbours (int): How many windows away lie those that give one more key each, the mean of their keys,
            with a bias from ``BlockRPE``.

    Raises:
        InputError: If pooled neighbours are asked for together with an encoding that rotates keys.
    """
    # parameters and an encoding, or None: whatever uses them runs only where they are
    logit_scale: Any
    pooled_rpe: Any
    v_bias: Any

    def __init__(self,
                 embed_dims: int,
                 num_heads: int,
                 window_size: Window,
                 rpe: RPEConfig = None,
                 qkv_bias: bool = True,
                 qk_scale: Optional[float] = None,
                 attn_drop_rate: float = 0.,
                 proj_drop_rate: float = 0.,
                 cosine: bool = False,
                 halo: Optional[Window] = None,
                 pooled_neighbours: int = 0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dims // num_heads
        self.pooled_neighbours = pooled_neighbours
        self._set_geometry(window_size, halo or (0, ) * len(window_size))
        sizes = dict(num_heads=num_heads, head_dim=self.head_dim, window_size=window_size,
                     key_size=self.geometry.key_size)
        self.rpe = build_rpe(rpe, **sizes)
        self.pooled_rpe = None
        if pooled_neighbours:
            if self.rpe is not None and self.rpe.gives('rotate'):
                raise InputError('pooled_neighbours cannot be combined with an encoding that rotates keys, since a '
                                 f'mean of keys has no place of its own, got rpe={rpe}')
            self.pooled_rpe = build_rpe(dict(type='BlockRPE', max_blocks=pooled_neighbours), **sizes)

        self.scale = qk_scale or self.head_dim**-0.5
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10))) if cosine else None
        self.qkv = nn.Linear(embed_dims, embed_dims * 3, bias=qkv_bias and not cosine)
        self.q_bias = self.v_bias = None
        if cosine and qkv_bias:
            self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(embed_dims)) for _ in range(2))
        self.attn_drop_rate = attn_drop_rate
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop_rate)
        self.attend = attend

    def _set_geometry(self, window: Window, halo: Window) -> None:
        self.geometry = WindowGeometry.centred(window, tuple(w + 2 * h for w, h in zip(window, halo)))
        self.pooled_geometry = WindowGeometry.pooled(window, self.pooled_neighbours)

    def forward(self, x: Tensor, layout: WindowLayout) -> Tensor:
        """
        Args:
            x (Tensor): Tokens ``(B, L, C)``, row by row; outside of the extents any finite numbers.
            layout (WindowLayout): The windows to attend in, with this module's halo and neighbours.

        Returns:
            Tensor: ``(B, L, C)``.
        """
        # padding that takes part is one more row, of zeros, projected as all others
        rows = torch.cat([x.flatten(0, 1), x.new_zeros(1, x.shape[2])]) if layout.padding_takes_part else x
        qkv = self.qkv(rows).flatten(0, -2)
        if self.q_bias is not None:
            qkv = qkv + torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias]).to(qkv.dtype)

        q, k, v = partition(qkv, layout, self.num_heads)
        pooled = None if layout.neighbours is None else mean_neighbours(k, v, layout.region, layout.neighbours)
        if layout.key_rows is not None:
            k, v = self.split_heads(qkv[:, x.shape[2]:].index_select(0, layout.key_rows), layout.region.shape[0])
        if self.logit_scale is None:
            q = q * self.scale
        else:
            q, k = self.scaled_cosine(q, k)
        bias, own_keys, rpe = None, k.shape[2], self.rpe
        if rpe is not None:
            q, k, bias = rpe(q, k, layout.geometry, layout.region)
        if pooled is not None:
            k, v, bias = self.append_pooled(q, k, v, bias, pooled)

        values = None
        if rpe is not None and rpe.gives('values'):
            def values(weights: Tensor) -> Optional[Tensor]:
                return rpe.values(weights[..., :own_keys], layout.geometry)
        dropout = self.attn_drop_rate if self.training else 0.
        out = self.attend(q, k, v, bias, layout.visible, dropout, values)
        return self.proj_drop(self.proj(merge(out, layout).view_as(x)))

    def split_heads(self, rows: Tensor, windows: int) -> Tuple[Tensor, ...]:
        """``(T * N, n * C)`` to n tensors ``(T, heads, N, d)``."""
        return rows.view(windows, -1, rows.shape[1] // (self.num_heads * self.head_dim), self.num_heads,
                         self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)

    def scaled_cosine(self, q: Tensor, k: Tensor) -> Tuple[Tensor, Tensor]:
        """Queries and keys whose products are cosines times each head's scale, in the dtypes that they had."""
        # in float32: in half precision the cosine's rounding would be multiplied by up to 100
        scale = self.logit_scale.to(torch.promote_types(q.dtype, torch.float32)).clamp(max=math.log(100)).exp()
        return (normalised(q) * scale).to(q.dtype), normalised(k).to(k.dtype)

    def append_pooled(self, q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor],
                      pooled: Tuple[Tensor, Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
        """Keys, values and bias with those of the neighbours behind them."""
        pooled_k, pooled_v = pooled
        if self.logit_scale is not None:
            pooled_k = normalised(pooled_k).to(k.dtype)
        *_, pooled_bias = self.pooled_rpe(q, pooled_k, self.pooled_geometry)
        centre = pooled_bias.shape[-1] // 2  # the window itself, whose keys are there one by one
        pooled_bias = torch.cat([pooled_bias[..., :centre], pooled_bias[..., centre + 1:]], dim=-1)
        if bias is None:
            bias = pooled_bias.new_zeros(*pooled_bias.shape[:-1], k.shape[2])
        pooled_bias = pooled_bias.expand(*bias.shape[:-1], -1)
        return torch.cat([k, pooled_k], 2), torch.cat([v, pooled_v], 2), torch.cat([bias, pooled_bias], -1)

    def check_window(self, window: Window, halo: Window, mode: str) -> None:
        """Raise :class:`InputError` if :meth:`set_window` would; changes nothing."""
        check_mode('mode', mode)
        if self.rpe is not None:
            self.rpe.resampled(window, mode, tuple(w + 2 * h for w, h in zip(window, halo)))

    def set_window(self, window: Window, halo: Window, mode: str) -> Replaced:
        """Change window and halo; the encoding is read for them as ``mode`` says, see its ``resample``."""
        self._set_geometry(window, halo)
        return [pair for rpe in (self.rpe, self.pooled_rpe) if rpe is not None
                for pair in rpe.resample(window, mode, self.geometry.key_size)]


def partition(rows: Tensor, layout: WindowLayout, num_heads: int) -> Tuple[Tensor, ...]:
    """Cut maps into windows, and channels into heads.

    Each token is put into its slot, so that the gradient is a gather: reading tokens by slot would give a sum of
    scattered rows, twice the memory traffic.

    Args:
        rows (Tensor): q, k and v of tokens side by side, ``(B * L, 3C)``; where padding takes part one more row for it.
        layout (WindowLayout): The windows.
        num_heads (int): Attention heads.

    Returns:
        tuple[Tensor, ...]: q, k and v, ``(T, heads, N, d)``; slots without a token hold padding's, or zeros.
    """
    (windows, slots), tokens = layout.region.shape, layout.rows_back.shape[0]
    if layout.padding_takes_part:
        cut = rows[-1:].expand(windows * slots, -1).clone()
    else:
        cut = rows.new_zeros(windows * slots, rows.shape[1])
    cut = cut.index_put_((layout.rows_back, ), rows[:tokens])
    return cut.view(windows, slots, 3, num_heads, rows.shape[1] // (3 * num_heads)).permute(2, 0, 3, 1, 4).unbind(0)


def merge(windows: Tensor, layout: WindowLayout) -> Tensor:
    """What :func:`partition` cut, put together: ``(T, heads, N, d)`` to ``(B * L, heads * d)``."""
    slots = windows.transpose(1, 2).flatten(2).flatten(0, 1)
    tokens = layout.rows_back.shape[0]
    maps = slots.new_empty(tokens + 1, slots.shape[1])  # empty slots go to the last row
    return maps.index_put_((layout.rows, ), slots)[:tokens]


def attend(q: Tensor,
           k: Tensor,
           v: Tensor,
           bias: Optional[Tensor] = None,
           visible: Optional[Tensor] = None,
           dropout: float = 0.,
           values: Optional[Callable[[Tensor], Optional[Tensor]]] = None) -> Tensor:
    """Softmax attention, written out; logits and softmax in float32 or wider.

    Args:
        q (Tensor): Scaled queries ``(T, heads, Nq, d)``.
        k, v (Tensor): ``(T, heads, Nk, d)``.
        bias (Tensor, optional): ``(heads, Nq, Nk)`` or ``(T, heads, Nq, Nk)``, added to the logits.
        visible (Tensor, optional): ``(T, Nq, Nk)`` bool; keys that are not visible get no weight at all.
        dropout (float): Probability of dropping an attention weight.
        values (Callable, optional): What to add to the output, from the weights ``(T, heads, Nq, Nk)``.

    Returns:
        Tensor: ``(T, heads, Nq, d)`` in the dtype of ``v``.
    """
    logits = q @ k.transpose(-2, -1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits = logits + bias
    if visible is not None:
        logits = logits.masked_fill(~visible[:, None], float('-inf'))
    weights = F.dropout(logits.softmax(-1), dropout).to(v.dtype)
    added = None if values is None else values(weights)
    return weights @ v if added is None else weights @ v + added.to(v.dtype)


def mean_neighbours(k: Tensor, v: Tensor, region: Tensor, neighbours: Tensor) -> Tuple[Tensor, Tensor]:
    """Mean key and value of each window's neighbours.

    Args:
        k, v (Tensor): ``(T, heads, N, d)``.
        region, neighbours (Tensor): ``(T, N)`` and ``(T, P)``, see :class:`~swin_rpe_mm.windows.WindowLayout`.

    Returns:
        tuple[Tensor, Tensor]: ``(T, heads, P, d)`` each.
    """
    real = (region >= 0)[:, None, :, None]
    count = real.sum(2).clamp(min=1)
    mean_k, mean_v = (((x * real).sum(2) / count).to(x.dtype)[neighbours].transpose(1, 2) for x in (k, v))
    return mean_k, mean_v


def normalised(x: Tensor) -> Tensor:
    """Vectors ``(..., d)`` of length 1, in float32 or wider; zeros stay zero, with derivatives of every order."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * x.square().sum(-1, keepdim=True).clamp(min=1e-24).rsqrt()
