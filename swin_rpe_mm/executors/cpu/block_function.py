"""A training step of a whole block, part by part on a CPU: only what must be kept leaves the cache."""
from typing import NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.block import attend
from .by_heads import values_by_heads, weights_by_heads
from .linear import differentiable
from .parts import Part
from .products import Product, ProductGradients


class Setting(NamedTuple):
    """What a block's numbers depend on besides tensors.

    Attributes:
        num_heads (int): Attention heads.
        scale (float): Factor of the queries.
        eps (tuple[float, float]): Of the two norms.
        mask_padding (bool): False lets padding slots take part with the bias of q, k and v.
        rows (int): How many tokens most parts have.
    """
    num_heads: int
    scale: float
    eps: Tuple[float, float]
    mask_padding: bool
    rows: int


def run_block(x: Tensor, parts: Sequence[Part], setting: Setting, bias: Optional[Tensor],
              kept: Sequence[Optional[Tensor]], parameters: Sequence[Optional[Tensor]]) -> Tensor:
    """Swin's block: ``x + attention(norm(x))``, then ``x + MLP(norm(x))`` with GELU.

    For the backward pass, queries, keys, values, attention weights, the sum after attention and what GELU gets are
    kept; norms, GELU and the sums of values are computed again. What is kept stays in the pieces it was made in: they
    are small enough for the allocator to use the same memory in every step, whereas that of a whole map would be
    mapped anew each time.

    Args:
        x (Tensor): Packed tokens ``(K, C)``, float32.
        parts (Sequence[Part]): Parts that together hold every token once.
        setting (Setting): See there.
        bias (Tensor, optional): ``(heads, N, N)``, added to the logits.
        kept (Sequence[Tensor | None]): For both branches the factor of each image, ``(batch_size, )``; None for 1.
        parameters (Sequence[Tensor | None]): Weight and bias of the first norm, of the projection to q, k and v, of
            that of the output, of the second norm, and of the two layers of the MLP.

    Returns:
        Tensor: ``(K, C)``.
    """
    return _Block.apply(x, parts, setting, bias, *kept, *parameters)


class _Block(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x: Tensor, parts: Sequence[Part], setting: Setting, bias: Optional[Tensor],
                keep_attention: Optional[Tensor], keep_mlp: Optional[Tensor], *parameters: Optional[Tensor]) -> Tensor:
        norm1, qkv, proj, norm2, first, second = _pairs(parameters)
        to_qkv, to_out, to_hidden, to_tokens = (
            Product(*layer, setting.rows) for layer in (qkv, proj, first, second))
        out, saved = torch.empty_like(x), []
        for part in parts:
            rows = x.index_select(0, part.tokens)
            projected = to_qkv(_norm(rows, norm1, setting.eps[0])[0])
            *_, weights, attended = _attend(projected, part, setting, bias, qkv[1])
            rows = _add(rows, to_out(attended), keep_attention, part)
            inner = to_hidden(_norm(rows, norm2, setting.eps[1])[0])
            saved += [projected, rows, inner, weights]
            out.index_copy_(0, part.tokens, _add(rows, to_tokens(F.gelu(inner)), keep_mlp, part))
        ctx.parts, ctx.setting = parts, setting
        ctx.save_for_backward(x, bias, keep_attention, keep_mlp, *parameters, *saved)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, bias, keep_attention, keep_mlp, *others = ctx.saved_tensors
        parameters, saved = others[:12], others[12:]
        setting, needed = ctx.setting, ctx.needs_input_grad
        if torch.is_grad_enabled():  # a derivative of this one will be asked for
            arguments = (x, ctx.parts, setting, bias, keep_attention, keep_mlp, *parameters)
            return differentiable(_written_out, arguments, grad, needed)
        norm1, qkv, proj, norm2, first, second = _pairs(parameters)
        norms = [[None if value is None else torch.zeros_like(value) for value in norm] for norm in (norm1, norm2)]
        of_qkv, of_proj, of_first, of_second = (
            ProductGradients(layer[0], setting.rows, flags, x.dtype)
            for layer, flags in zip((qkv, proj, first, second), [needed[i:i + 2] for i in (8, 10, 14, 16)]))
        to_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        to_bias = None if bias is None else torch.zeros_like(bias)
        for part, projected, rows, inner, weights in zip(ctx.parts, saved[::4], saved[1::4], saved[2::4], saved[3::4]):
            to_rows = grad.index_select(0, part.tokens)

            to_branch = _scaled(to_rows, keep_mlp, part)
            of_second.add(to_branch, F.gelu(inner))
            to_inner = torch.ops.aten.gelu_backward(of_second.to_rows(to_branch), inner)
            normed, *statistics = _norm(rows, norm2, setting.eps[1])
            of_first.add(to_inner, normed)
            to_rows += _norm_backward(of_first.to_rows(to_inner), rows, norm2, statistics, norms[1])

            rows = x.index_select(0, part.tokens)
            q, k, v, weights, attended = _attend(projected, part, setting, bias, qkv[1], weights)
            to_branch = _scaled(to_rows, keep_attention, part)
            of_proj.add(to_branch, attended)
            to_qkv = _attention_backward(of_proj.to_rows(to_branch), q, k, v, weights, part, setting, to_bias)
            if not setting.mask_padding and of_qkv.bias is not None:
                of_qkv.bias += to_qkv.index_select(0, part.layout.holes).sum(0)
            to_qkv = part.layout.into_windows.inverse(to_qkv)
            normed, *statistics = _norm(rows, norm1, setting.eps[0])
            of_qkv.add(to_qkv, normed)
            to_rows += _norm_backward(of_qkv.to_rows(to_qkv), rows, norm1, statistics, norms[0])
            to_x.index_copy_(0, part.tokens, to_rows)
        layers = [(of.weight, of.bias) for of in (of_qkv, of_proj, of_first, of_second)]
        return (to_x, None, None, to_bias, None, None, *norms[0], *layers[0], *layers[1], *norms[1], *layers[2],
                *layers[3])


def _written_out(x: Tensor, parts: Sequence[Part], setting: Setting, bias: Optional[Tensor],
                 keep_attention: Optional[Tensor], keep_mlp: Optional[Tensor],
                 *parameters: Optional[Tensor]) -> Tensor:
    """The same as operations that autograd knows; arguments as for :func:`run_block`."""
    norm1, qkv, proj, norm2, first, second = _pairs(parameters)
    out = torch.zeros_like(x)
    for part in parts:
        layout, rows = part.layout, x.index_select(0, part.tokens)
        channels, shape = x.shape[1:], layout.slots.shape
        windows = layout.into_windows(F.linear(F.layer_norm(rows, channels, *norm1, setting.eps[0]), *qkv))
        if len(layout.holes) and not setting.mask_padding and qkv[1] is not None:
            windows = windows.index_copy(0, layout.holes, qkv[1].expand(len(layout.holes), -1))
        q, k, v = _heads(windows, shape, setting.num_heads, channels[0])
        seen = layout.visible.new_ones(layout.plain, shape[1], shape[1])
        attended = attend(q * setting.scale, k, v, bias, torch.cat([seen, layout.visible]))
        attended = layout.into_windows.inverse(attended.transpose(1, 2).reshape(-1, channels[0]))
        rows = rows + _scaled(F.linear(attended, *proj), keep_attention, part)
        hidden = F.gelu(F.linear(F.layer_norm(rows, channels, *norm2, setting.eps[1]), *first))
        out = out.index_copy(0, part.tokens, rows + _scaled(F.linear(hidden, *second), keep_mlp, part))
    return out


def _pairs(parameters: Sequence[Optional[Tensor]]) -> Sequence[Tuple[Optional[Tensor], Optional[Tensor]]]:
    return list(zip(parameters[::2], parameters[1::2]))


def _scaled(branch: Tensor, keep: Optional[Tensor], part: Part) -> Tensor:
    return branch if keep is None else branch * keep[part.layout.image_of_token, None]


def _add(rows: Tensor, branch: Tensor, keep: Optional[Tensor], part: Part) -> Tensor:
    return branch.add_(rows) if keep is None else torch.addcmul(rows, branch, keep[part.layout.image_of_token, None])


def _norm(x: Tensor, norm: Tuple[Tensor, Tensor], eps: float) -> Tuple[Tensor, Tensor, Tensor]:
    return torch.native_layer_norm(x, x.shape[1:], *norm, eps)


def _norm_backward(grad: Tensor, x: Tensor, norm: Tuple[Tensor, Tensor], statistics: Sequence[Tensor],
                   sums: Sequence[Tensor]) -> Tensor:
    """The gradient of ``x``; those of weight and bias are added to ``sums``."""
    to_x, *to_norm = torch.ops.aten.native_layer_norm_backward(grad, x, x.shape[1:], *statistics, *norm, (True, ) * 3)
    for total, added in zip(sums, to_norm):
        total += added
    return to_x


def _attend(qkv: Tensor, part: Part, setting: Setting, bias: Optional[Tensor], padding: Optional[Tensor],
            weights: Optional[Tensor] = None) -> Tuple[Tensor, ...]:
    """q, k and v ``(T, heads, N, d)``, the weights ``(heads, T, N, N)``, and what each token gets, ``(P, C)``."""
    layout, channels = part.layout, qkv.shape[1] // 3
    windows = layout.into_windows(qkv)
    if len(layout.holes) and not setting.mask_padding and padding is not None:
        windows.index_copy_(0, layout.holes, padding.expand(len(layout.holes), -1))
    q, k, v = _heads(windows, layout.slots.shape, setting.num_heads, channels)
    if weights is None:
        weights = weights_by_heads(q, k, bias, layout.visible, setting.scale)
    result = values_by_heads(weights, v).transpose(1, 2).reshape(-1, channels)
    return q, k, v, weights, layout.into_windows.inverse(result)


def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, part: Part, setting: Setting,
                        to_bias: Optional[Tensor]) -> Tensor:
    """The gradient of q, k and v side by side, ``(T * N, 3C)``; that of the bias is added to ``to_bias``."""
    shape, heads, channels = part.layout.slots.shape, setting.num_heads, grad.shape[1]
    to_out, = _heads(part.layout.into_windows(grad), shape, heads, channels)
    to_windows = grad.new_empty(shape.numel(), 3 * channels)
    to_q, to_k, to_v = _heads(to_windows, shape, heads, channels)
    to_weights = torch.empty_like(weights)
    for head in range(heads):
        torch.bmm(to_out[:, head], v[:, head].transpose(1, 2), out=to_weights[head])
        to_v[:, head] = weights[head].transpose(1, 2) @ to_out[:, head]
    # a key that is not visible gets nothing, since its weight is 0
    to_logits = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
    if to_bias is not None:
        to_bias += to_logits.sum(1)
    to_logits *= setting.scale
    for head in range(heads):
        to_q[:, head] = to_logits[head] @ k[:, head]
        to_k[:, head] = to_logits[head].transpose(1, 2) @ q[:, head]
    return to_windows


def _heads(rows: Tensor, shape: Tuple[int, int], num_heads: int, channels: int) -> Tuple[Tensor, ...]:
    """``(T * N, n * C)`` to n tensors ``(T, heads, N, d)`` that look into it."""
    return rows.view(*shape, -1, num_heads, channels // num_heads).permute(2, 0, 3, 1, 4).unbind(0)
