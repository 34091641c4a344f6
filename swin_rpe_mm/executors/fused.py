"""PyTorch's fused attention, on GPUs: it does not make the logits, and its hooks are none, so that nothing is lost."""
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.block import attend
from .untouched import why_not_now

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:  # torch < 2.3, which has no cuDNN kernel to leave out
    sdpa_kernel = None

_MAX_BATCH = 65535  # windows that the CUDA kernels take in one call


def why_not(q: Tensor, values: Optional[Callable] = None) -> Optional[str]:
    """Why the plain attention runs, or None."""
    if values is not None:
        return 'the encoding adds to the values'
    if q.device.type != 'cuda':
        return f'queries are on {q.device.type}, not on a GPU'
    return why_not_now(q)


def attend_fused(q: Tensor,
                 k: Tensor,
                 v: Tensor,
                 bias: Optional[Tensor] = None,
                 visible: Optional[Tensor] = None,
                 dropout: float = 0.,
                 values: Optional[Callable] = None) -> Tensor:
    """As :func:`~swin_rpe_mm.models.block.attend`."""
    if why_not(q, values):
        return attend(q, k, v, bias, visible, dropout, values)
    return fused(q, k, v, bias, visible, dropout)


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], visible: Optional[Tensor], dropout: float) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` of windows, on any device."""
    mask = None if visible is None else visible[:, None]
    if bias is not None:
        mask = bias.to(q.dtype)
        mask = mask[None] if mask.ndim == 3 else mask
        mask = mask if visible is None else mask.masked_fill(~visible[:, None], float('-inf'))
    if q.device.type != 'cuda' or sdpa_kernel is None:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=1.)
    # cuDNN's kernel gives NaN gradients for some masks (pytorch/pytorch#196678) and plans anew for every size
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        parts = []
        for start in range(0, len(q), _MAX_BATCH):
            part = slice(start, start + _MAX_BATCH)
            part_mask = mask[part] if mask is not None and len(mask) > 1 else mask
            parts.append(F.scaled_dot_product_attention(q[part], k[part], v[part], part_mask, dropout, scale=1.))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
