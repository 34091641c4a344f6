"""Training attention of a map part by part on a CPU: only what must be kept leaves the cache."""
from typing import Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...windows import Part
from .backends import values_by_heads, weights_by_heads


def attend_by_parts(qkv: Tensor, bias: Optional[Tensor], padding: Optional[Tensor], parts: Sequence[Part],
                    num_heads: int, scale: float) -> Tensor:
    """Attention of tokens over their windows; the numbers are those of :func:`~.backends.eager`.

    For the backward pass only ``qkv`` is kept; weights are computed again.

    Args:
        qkv (Tensor): Queries, keys and values side by side, ``(K, 3C)``, in float32.
        bias (Tensor, optional): ``(heads, N, N)``, added to the logits.
        padding (Tensor, optional): ``(3C, )``, queries, keys and values of padding slots; None for zeros.
        parts (Sequence[Part]): Parts that together hold every token once.
        num_heads (int): Attention heads.
        scale (float): Factor of the queries.

    Returns:
        Tensor: ``(K, C)``.
    """
    return _AttendByParts.apply(qkv, bias, padding, parts, num_heads, scale)


class _AttendByParts(torch.autograd.Function):

    @staticmethod
    def forward(ctx, qkv: Tensor, bias: Optional[Tensor], padding: Optional[Tensor], parts: Sequence[Part],
                num_heads: int, scale: float) -> Tensor:
        ctx.parts, ctx.num_heads, ctx.scale = parts, num_heads, scale
        ctx.save_for_backward(qkv, bias, padding)
        out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
        for part in parts:
            q, k, v = _heads(_windows(qkv, part, padding), num_heads, out.shape[1])
            weights = weights_by_heads(q, k, bias, part.layout.visible, scale)
            result = values_by_heads(weights, v).transpose(1, 2).flatten(2).flatten(0, 1)
            out.index_copy_(0, part.tokens, part.layout.into_windows.inverse(result))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        qkv, bias, padding = ctx.saved_tensors
        channels = grad.shape[1]
        to_qkv = torch.empty_like(qkv)
        to_bias, to_padding = (None if x is None else torch.zeros_like(x) for x in (bias, padding))
        for part in ctx.parts:
            q, k, v = _heads(_windows(qkv, part, padding), ctx.num_heads, channels)
            to_out, = _heads(_windows(grad, part, None), ctx.num_heads, channels)
            to_windows = qkv.new_empty(*part.layout.slots.shape, 3 * channels)
            to_q, to_k, to_v = _heads(to_windows, ctx.num_heads, channels)
            weights = weights_by_heads(q, k, bias, part.layout.visible, ctx.scale)
            to_weights = torch.empty_like(weights)
            for head in range(ctx.num_heads):
                torch.bmm(to_out[:, head], v[:, head].transpose(1, 2), out=to_weights[head])
                to_v[:, head] = weights[head].transpose(1, 2) @ to_out[:, head]
            # a key that is not visible gets nothing, since its weight is 0
            to_logits = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
            for head in range(ctx.num_heads):
                to_q[:, head] = to_logits[head] @ k[:, head]
                to_k[:, head] = to_logits[head].transpose(1, 2) @ q[:, head]
            to_windows[..., :2 * channels] *= ctx.scale
            if bias is not None:
                to_bias += to_logits.sum(1)
            if padding is not None:
                to_padding += to_windows.flatten(0, 1)[part.layout.holes].sum(0)
            to_qkv.index_copy_(0, part.tokens, part.layout.into_windows.inverse(to_windows.flatten(0, 1)))
        return to_qkv, to_bias, to_padding, None, None, None


def _windows(rows: Tensor, part: Part, padding: Optional[Tensor]) -> Tensor:
    """Rows ``(K, n)`` of the map in the slots of a part's windows, ``(T, N, n)``."""
    windows = part.layout.into_windows(rows.index_select(0, part.tokens))
    if padding is not None and len(part.layout.holes):
        windows.index_copy_(0, part.layout.holes, padding.expand(len(part.layout.holes), -1))
    return windows.unflatten(0, part.layout.slots.shape)


def _heads(windows: Tensor, num_heads: int, channels: int) -> Tuple[Tensor, ...]:
    """``(T, N, n * C)`` to n tensors ``(T, heads, N, d)`` that look into it."""
    return windows.unflatten(2, (-1, num_heads, channels // num_heads)).permute(2, 0, 3, 1, 4).unbind(0)
