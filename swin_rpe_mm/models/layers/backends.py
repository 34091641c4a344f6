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


def eager(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], visible: Optional[Tensor],
          dropout: float) -> Tensor:
    """Softmax attention, written out; logits and softmax in float32 or wider.

    Args:
        q (Tensor): Scaled queries ``(T, heads, Nq, d)``.
        k, v (Tensor): ``(T, heads, Nk, d)``.
        bias (Tensor, optional): ``(heads, Nq, Nk)`` or ``(T, heads, Nq, Nk)``, added to the logits.
        visible (Tensor, optional): ``(T, Nq, Nk)`` bool; keys that are not visible get no weight at all.
        dropout (float): Probability of dropping an attention weight.

    Returns:
        Tensor: ``(T, heads, Nq, d)`` in the dtype of ``v``.
    """
    return attention_weights(q, k, bias, visible, dropout).to(v.dtype) @ v


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
         dropout: float) -> Tensor:
    """The same by ``torch.nn.functional.scaled_dot_product_attention``, which picks a fused kernel where it can."""
    if q.device.type == 'cpu' and bias is not None and bias.requires_grad:
        return eager(q, k, v, bias, visible, dropout)  # there is no fused kernel for it, and PyTorch's own is slower
    mask = None
    if bias is not None:
        mask = bias.to(q.dtype)
        mask = mask[None] if mask.ndim == 3 else mask
        if visible is not None:
            mask = mask.masked_fill(~visible[:, None], float('-inf'))
    elif visible is not None:
        mask = visible[:, None]
    if q.device.type != 'cuda' or sdpa_kernel is None:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=1.0)
    # cuDNN's kernel gives NaN gradients for some masks (pytorch/pytorch#196678) and plans anew for every size
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        parts = []
        for start in range(0, len(q), _MAX_BATCH):
            part = slice(start, start + _MAX_BATCH)
            part_mask = mask[part] if mask is not None and len(mask) > 1 else mask
            parts.append(F.scaled_dot_product_attention(q[part], k[part], v[part], part_mask, dropout, scale=1.0))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


BACKENDS: Dict[str, Callable] = {'eager': eager, 'sdpa': sdpa}
