"""Attention of windows on a CPU: scores and values head by head, or PyTorch's fused kernel."""
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.block import attend
from ..tuning import current


def attend_windows(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], visible: Optional[Tensor],
                   dropout: float, scale: float) -> Tensor:
    """As :func:`~swin_rpe_mm.models.block.attend`, by whatever is the fastest here.

    Args:
        q (Tensor): Queries ``(T, heads, Nq, d)``, not scaled.
        k, v, bias, visible, dropout: As there.
        scale (float): Factor of the queries.
    """
    trained = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, bias))
    same = q.dtype == torch.float32 and (bias is None or bias.dtype == torch.float32)
    if same and not trained and k.shape[2] < current().few_keys:
        weights = weights_by_heads(q, k, bias, visible, scale)
        return values_by_heads(F.dropout(weights, dropout, inplace=True), v)
    if trained:  # the fused kernel gives no gradient of the bias, and none of second order
        return attend(q * scale, k, v, bias, visible, dropout)
    mask = None
    if bias is not None:
        mask = bias.to(q.dtype)
        mask = mask[None] if mask.ndim == 3 else mask
        if visible is not None:
            mask = mask.masked_fill(~visible[:, None], float('-inf'))
    elif visible is not None:
        mask = visible[:, None]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)


def weights_by_heads(q: Tensor, k: Tensor, bias: Optional[Tensor], visible: Optional[Tensor], scale: float) -> Tensor:
    """Attention weights ``(heads, T, Nq, Nk)``, without copies of queries and keys and outside of autograd: those of
    one head are matrices that a product reads where they lie. ``visible`` may be of the last windows alone.
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
