"""Linear layers over many rows, made for the cache of a CPU and for little memory.

What comes before a linear layer, a norm or an activation, is much cheaper than the layer itself. Here its result is not
kept for the gradient of the weight but computed again, and it never leaves the cache, since rows are taken a few
thousand at a time.
"""
from typing import Callable, Iterable, Iterator, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..tuning import current
from .products import Product, ProductGradients, autocast_dtype


def prepared(layer: nn.Linear, before: Optional[nn.Module] = None, rows: int = 0, outputs: slice = slice(None),
             gelu: bool = False) -> Callable[[Tensor], Tensor]:
    """``layer`` for a series of calls between which its weight does not change.

    Args:
        layer (nn.Linear): The layer.
        before (nn.Module, optional): What the input goes through first. With gradients, what a layer norm or GELU gives
            is not kept for the backward pass.
        rows (int): How many rows most calls have, see :class:`~.products.Product`.
        outputs (slice): Which of the output features.
        gelu (bool): Whether these go through GELU; only without gradients.

    Returns:
        Callable: From rows ``(R, in_features)`` to ``layer(before(rows))[:, outputs]``.
    """
    if torch.is_grad_enabled() and outputs == slice(None):
        if can_recompute(before):
            scale, shift, eps = (getattr(before, name, None) for name in ('weight', 'bias', 'eps'))
            gelu = isinstance(before, nn.GELU)
            return lambda x: _LinearAfter.apply(x, gelu, scale, shift, eps, layer.weight, layer.bias)
        return lambda x: _LinearAfter.apply(before(x), False, None, None, None, layer.weight, layer.bias)
    product = Product(layer.weight[outputs], None if layer.bias is None else layer.bias[outputs], rows, gelu)
    return product if before is None else lambda x: product(before(x))


def prepared_mlp(first: nn.Linear, activation: nn.Module, second: nn.Linear, before: Optional[nn.Module] = None,
                 rows: int = 0) -> Callable[[Tensor], Tensor]:
    """Two layers with an activation between them, arguments as for :func:`prepared`."""
    if not torch.is_grad_enabled() and isinstance(activation, nn.GELU) and can_recompute(activation):
        inner, outer = prepared(first, before, rows, gelu=True), prepared(second, rows=rows)
    else:
        inner, outer = prepared(first, before, rows), prepared(second, activation, rows)
    return lambda x: outer(inner(x))


def norm_linear(x: Tensor, scale: Tensor, shift: Tensor, eps: float, weight: Tensor) -> Tensor:
    """A layer norm of rows ``(R, C)`` and a linear layer without bias; the norm is not kept for the backward pass."""
    return _LinearAfter.apply(x, False, scale, shift, eps, weight, None)


def run_in_parts(function: Callable[[Tensor], Tensor], parts: Iterable[Tensor], rows: int,
                 out: Optional[Tensor] = None) -> Tensor:
    """What a function gives for parts of rows, one after another, as one tensor; without gradients.

    Each result is copied into place while it is in the cache.

    Args:
        function (Callable): From ``(R, ...)`` to ``(R, C)``.
        parts (Iterable[Tensor]): At least one.
        rows (int): How many rows all parts have together.
        out (Tensor, optional): Where to put them, if it fits.
    """
    first = 0
    for part in parts:
        result = function(part)
        if first == 0 and (out is None or (out.shape, out.dtype) != ((rows, *result.shape[1:]), result.dtype)):
            out = result.new_empty(rows, *result.shape[1:])
        out[first:first + len(result)] = result
        first += len(result)
    return out


def by_rows(function: Callable[[Tensor], Tensor], rows: int) -> Callable[[Tensor], Tensor]:
    """The function, run on so many rows at a time."""
    return lambda x: run_in_parts(function, x.split(rows), len(x))


def can_recompute(before: Optional[nn.Module]) -> bool:
    """Whether the backward pass here can do without what ``before`` gives."""
    if before is None:
        return True
    if isinstance(before, nn.GELU):
        return before.approximate == 'none'
    return isinstance(before, nn.LayerNorm) and before.weight is not None and before.bias is not None


class _LinearAfter(torch.autograd.Function):
    """A linear layer after GELU, a layer norm or nothing, which keeps ``x`` and computes these again."""

    @staticmethod
    def forward(ctx, x: Tensor, gelu: bool, scale: Optional[Tensor], shift: Optional[Tensor], eps: Optional[float],
                weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        ctx.dtype, ctx.gelu, ctx.eps = autocast_dtype(x) or weight.dtype, gelu, eps
        ctx.save_for_backward(x, scale, shift, weight, bias)
        with torch.autocast(x.device.type, enabled=False):
            product = Product(weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype), _rows(x))
            out = x.new_empty(len(x), len(weight), dtype=ctx.dtype)
            for part in _parts(x):
                out[part] = product(_before(ctx, x[part], scale, shift)[0].to(ctx.dtype))
            return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, scale, shift, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # a derivative of this one will be asked for
            return differentiable(lambda x, _, scale, shift, eps, weight, bias: F.linear(
                _before(ctx, x, scale, shift)[0], weight, bias), (x, None, scale, shift, None, weight, bias), grad,
                ctx.needs_input_grad)
        need_x, _, need_scale, need_shift, _, need_weight, need_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        to_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        to_scale, to_shift = (None if norm is None else torch.zeros_like(norm) for norm in (scale, shift))
        layer = ProductGradients(weight, _rows(x), (need_weight, need_bias), ctx.dtype)
        for part in _parts(x):
            rows, *statistics = _before(ctx, x[part], scale, shift)
            layer.add(grad[part], rows.to(ctx.dtype))
            if not (need_x or need_scale or need_shift):
                continue
            to_rows = layer.to_rows(grad[part]).to(x.dtype)
            if scale is not None:
                to_x[part], part_scale, part_shift = torch.ops.aten.native_layer_norm_backward(
                    to_rows, x[part], scale.shape, *statistics, scale, shift, (True, True, True))
                to_scale += part_scale
                to_shift += part_shift
            elif ctx.gelu:
                torch.ops.aten.gelu_backward(to_rows, x[part], grad_input=to_x[part])
            else:
                to_x[part] = to_rows
        return to_x, None, to_scale, to_shift, None, layer.weight, layer.bias


def differentiable(function: Callable[..., Tensor], arguments: Sequence[Optional[Tensor]], grad: Tensor,
                   needed: Sequence[bool]) -> Tuple[Optional[Tensor], ...]:
    """Gradients of a function, by autograd, that can be differentiated again: None where they are not needed.

    Args:
        function (Callable): From the arguments to a tensor.
        arguments (Sequence[Tensor | None]): As they were saved.
        grad (Tensor): The gradient of what the function gives.
        needed (Sequence[bool]): For each argument whether its gradient is.
    """
    # a view of its own for each, since one argument may be made of another
    own = [argument.view_as(argument) if isinstance(argument, Tensor) else argument for argument in arguments]
    wanted = [argument for argument, flag in zip(own, needed) if flag]
    found = iter(torch.autograd.grad(function(*own), wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(found) if flag else None for flag in needed)


def _before(ctx, x: Tensor, scale: Optional[Tensor], shift: Optional[Tensor]) -> Tuple[Tensor, ...]:
    """What comes before the layer gives, and for a norm the mean and the inverse deviation of each row."""
    if scale is not None:
        return torch.native_layer_norm(x, scale.shape, scale, shift, ctx.eps)
    return (F.gelu(x) if ctx.gelu else x, )


def _rows(x: Tensor) -> int:
    """How many rows most parts have; 0 where there is but one."""
    return current().rows_at_once if len(x) >= current().rows_at_once else 0


def _parts(x: Tensor) -> Iterator[slice]:
    """Rows to take at once: a few thousand."""
    step = _rows(x) or max(len(x), 1)
    return (slice(first, first + step) for first in range(0, len(x), step))
