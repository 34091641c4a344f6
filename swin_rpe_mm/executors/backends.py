"""Attention over windows, computed in different ways with the same result. ``eager`` is the reference."""
from typing import Callable, Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:  # torch < 2.3, which has no cuDNN kernel to leave out
    sdpa_kernel = None

_MAX_BATCH = 65535  # windows that the CUDA kernels take in one call
_FEW_KEYS = 160  # PyTorch's fused kernel for CPUs is the faster one with more of them


def eager(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], visible: Optional[Tensor],
          dropout: float, scale: float = 1.) -> Tensor:
    """Softmax attention, written out; logits and softmax in float32 or wider.

    Args:
        q (Tensor): Queries ``(T, heads, Nq, d)``.
        k, v (Tensor): ``(T, heads, Nk, d)``.
        bias (Tensor, optional): ``(heads, Nq, Nk)`` or ``(T, heads, Nq, Nk)``, added to the logits.
        visible (Tensor, optional): ``(T, Nq, Nk)`` bool; keys that are not visible get no weight at all.
        dropout (float): Probability of dropping an attention weight.
        scale (float): Factor of the queries.

    Returns:
        Tensor: ``(T, heads, Nq, d)`` in the dtype of ``v``.
    """
    return attention_weights(q * scale, k, bias, visible, dropout).to(v.dtype) @ v


def attention_weights(q: Tensor, k: Tensor, bias: Optional[Tensor], visible: Optional[Tensor],
                      dropout: float) -> Tensor:
    """The weights alone, ``(T, heads, Nq, Nk)``, in float32 or wider; arguments as for :func:`eager`."""
    logits = q @ k.transpose(-2, -1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits = logits + bias
    if visible is not None:
        logits = logits.masked_fill_(~visible[:, None], float('-inf'))
    return F.dropout(logits.softmax(-1), dropout)


def sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], visible: Optional[Tensor],
         dropout: float, scale: float = 1.) -> Tensor:
    """The same by ``torch.nn.functional.scaled_dot_product_attention``, which picks a fused kernel where it can."""
    if q.device.type == 'cpu' and not torch.compiler.is_compiling():
        trained = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, bias))
        same = q.dtype == torch.float32 and (bias is None or bias.dtype == torch.float32)
        if same and not trained and k.shape[2] < _FEW_KEYS:
            weights = weights_by_heads(q, k, bias, visible, scale)
            return values_by_heads(F.dropout(weights, dropout, inplace=True), v)
        if bias is not None and bias.requires_grad:  # there is no fused kernel for it, and PyTorch's own is slower
            return eager(q, k, v, bias, visible, dropout, scale)
    mask = None
    if bias is not None:
        mask = bias.to(q.dtype)
        mask = mask[None] if mask.ndim == 3 else mask
        if visible is not None:
            mask = mask.masked_fill(~visible[:, None], float('-inf'))
    elif visible is not None:
        mask = visible[:, None]
    if q.device.type != 'cuda' or sdpa_kernel is None:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)
    # cuDNN's kernel gives NaN gradients for some masks (pytorch/pytorch#196678) and plans anew for every size
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        parts = []
        for start in range(0, len(q), _MAX_BATCH):
            part = slice(start, start + _MAX_BATCH)
            part_mask = mask[part] if mask is not None and len(mask) > 1 else mask
            parts.append(F.scaled_dot_product_attention(q[part], k[part], v[part], part_mask, dropout, scale=scale))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def weights_by_heads(q: Tensor, k: Tensor, bias: Optional[Tensor], visible: Optional[Tensor], scale: float) -> Tensor:
    """Attention weights ``(heads, T, Nq, Nk)`` for CPUs, without copies of queries and keys and outside of autograd:
    those of one head are matrices that a product reads where they lie. ``visible`` may be of the last windows alone.
    """
    windows, heads, queries, _ = q.shape
    weights = q.new_empty(heads, windows, queries, k.shape[2])
    for head, logits in enumerate(weights):
        added = logits if bias is None else bias[..., head, :, :]
        torch.baddbmm(added, q[:, head], k[:, head].transpose(1, 2), alpha=scale, beta=bias is not None, out=logits)
    if visible is not None:
        weights[:, windows - len(visible):].masked_fill_(~visible, float('-inf'))
    return torch.softmax(weights, -1, out=weights)


def values_by_heads(weights: Tensor, v: Tensor) -> Tensor:
    """``(T, heads, Nq, d)`` of weights ``(heads, T, Nq, Nk)`` and values ``(T, heads, Nk, d)``."""
    out = v.new_empty(weights.shape[:3] + v.shape[3:])
    for head in range(len(weights)):
        torch.bmm(weights[head], v[:, head], out=out[head])
    return out.transpose(0, 1)


BACKENDS: Dict[str, Callable] = {'eager': eager, 'sdpa': sdpa}
