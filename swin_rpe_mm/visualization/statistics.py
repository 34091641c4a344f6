"""Figures that sum up logits and weights of attention. Pure functions."""
from typing import Dict, Optional, Sequence

import torch
from torch import Tensor

_MARGIN = 0.01  # a sigmoid this near to 0 or 1 passes on less than 4 % of its largest gradient


def logit_statistics(content: Tensor, bias: Optional[Tensor], visible: Tensor, queries: Tensor) -> Dict[str, Tensor]:
    """What the softmax of attention gets, and how spread out its weights are.

    Softmax does not change when all logits of a query do by the same amount. A standard deviation here is thus that
    over the keys of a query: the root mean square distance of a logit from the mean of those that its query sees.

    Args:
        content (Tensor): Logits of queries and keys without the bias, ``(T, heads, Nq, Nk)``.
        bias (Tensor, optional): What is added to them, ``(heads, Nq, Nk)`` or ``(T, heads, Nq, Nk)``.
        visible (Tensor): ``(T, Nq, Nk)`` bool, which keys a query sees; at least one.
        queries (Tensor): ``(T, Nq)`` bool, False for slots that count for nothing, such as window padding.

    Returns:
        dict[str, Tensor]: Numbers: ``content_mean``, ``content_std`` and ``content_max``, the largest magnitude; the
        same of ``bias`` if there is one; and ``entropy``, the mean over queries of the weights' entropy, as a share of
        the largest possible: 1 where all visible keys weigh alike, 0 where one has it all or there is only one.
    """
    seen = (visible & queries[..., None])[:, None]
    found = {f'content_{name}': value for name, value in _moments(content, seen).items()}
    if bias is not None:
        found.update((f'bias_{name}', value) for name, value in _moments(bias.expand_as(content), seen).items())
        content = content + bias
    weights = content.masked_fill(~visible[:, None], float('-inf')).softmax(-1)
    found['entropy'] = relative_entropy(weights, visible, queries)
    return found


def _moments(x: Tensor, seen: Tensor) -> Dict[str, Tensor]:
    """Mean, deviation over the keys of a query, and largest magnitude of what is seen, ``(T, 1, Nq, Nk)``."""
    zero = x.new_zeros(())
    pairs = seen.sum() * x.shape[1]
    x = torch.where(seen, x, zero)
    of_query = x.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
    distance = torch.where(seen, x - of_query, zero)
    return dict(mean=x.sum() / pairs, std=(distance.square().sum() / pairs).sqrt(), max=x.abs().amax())


def relative_entropy(weights: Tensor, visible: Tensor, queries: Tensor) -> Tensor:
    """Mean entropy of attention weights ``(T, heads, Nq, Nk)`` as a share of ``ln(number of visible keys)``, over the
    queries that see more than one; the other arguments as for :func:`logit_statistics`."""
    keys = visible.sum(-1)
    counted = (queries & (keys > 1))[:, None]
    share = torch.special.entr(weights).sum(-1) / keys.clamp(min=2).log()[:, None]
    return torch.where(counted, share, share.new_zeros(())).sum() / (counted.sum() * weights.shape[1]).clamp(min=1)


def mean_distance(weights: Tensor, offsets: Tensor, queries: Tensor) -> Tensor:
    """How far each head looks: the mean distance of keys from their query, weighted by attention.

    ViT's mean attention distance (arXiv 2010.11929, section 4.5), inside windows.

    Args:
        weights (Tensor): Attention weights ``(T, heads, Nq, Nk)``; those of a query add up to 1.
        offsets (Tensor): Query coordinate minus key coordinate, ``(axes, Nq, Nk)``, in the unit of the result.
        queries (Tensor): ``(T, Nq)`` bool, False for slots that count for nothing.

    Returns:
        Tensor: ``(heads,)``.
    """
    distance = offsets.to(weights.dtype).norm(dim=0)
    of_query = (weights * distance).sum(-1)
    counted = queries[:, None]
    return torch.where(counted, of_query, of_query.new_zeros(())).sum((0, 2)) / counted.sum()


def saturated_share(sigmoids: Sequence[Tensor]) -> Tensor:
    """The share of values of sigmoids, between 0 and 1 and of any shapes, that lie within 0.01 of 0 or 1."""
    values = torch.cat([value.flatten() for value in sigmoids])
    return ((values < _MARGIN) | (values > 1 - _MARGIN)).to(values.dtype).mean()


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all entries of several tensors together, in float32 or wider."""
    wide = [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
    return torch.stack([tensor.norm() for tensor in wide]).norm()
