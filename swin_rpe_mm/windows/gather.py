"""Moving rows between the map, the packed tokens and the windows: one gather each.

Packed tokens are those inside their extents, in map order, with nothing between them: what every layer but attention
works on. Windows hold each of them once, apart from padding. So every move is a permutation with holes, and its
gradient is the inverse gather. A hole reads as zero on both sides: it receives nothing and hands no gradient back.
"""
from typing import NamedTuple

import torch
from torch import Tensor

from ..index_cache import index_cache
from .layout import WindowLayout


class Gather(NamedTuple):
    """Rows to read and rows to set to zero, and the same for the way back."""
    rows: Tensor
    holes: Tensor
    rows_back: Tensor
    holes_back: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Gather the rows of ``x``, ``(R, C)``; returns ``(len(rows), C)`` with zeros in the holes."""
        return _Permute.apply(x, *self)

    @property
    def inverse(self) -> 'Gather':
        return Gather(self.rows_back, self.holes_back, self.rows, self.holes)


class _Permute(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor, holes: Tensor, rows_back: Tensor, holes_back: Tensor) -> Tensor:
        ctx.gather = Gather(rows, holes, rows_back, holes_back)
        out = x.index_select(0, rows)
        return out.index_fill_(0, holes, 0) if len(holes) else out

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.gather.inverse(grad), None, None, None, None


@index_cache(128)
def pack(layout: WindowLayout) -> Gather:
    """From the maps' tokens ``(B*H*W, C)`` to packed tokens ``(K, C)``; the inverse leaves zeros outside extents."""
    return Gather(layout.inside, layout.outside[:0], _rank(layout), layout.outside)


@index_cache(128)
def into_windows(layout: WindowLayout) -> Gather:
    """From packed tokens ``(K, C)`` to slots ``(T*N, C)``; padding slots are zero."""
    return Gather(_rank(layout)[layout.slots.flatten()], layout.holes, layout.home[layout.inside],
                  layout.outside[:0])


@index_cache(128)
def key_rows(layout: WindowLayout) -> Tensor:
    """The packed token in each key slot, ``(T, Nk)``. With a halo a token is a key of several windows."""
    return _rank(layout)[layout.key_slots]


def _rank(layout: WindowLayout) -> Tensor:
    """The place of each of the maps' tokens among the packed ones, ``(B*H*W,)``; 0 for those that are not."""
    rank = torch.zeros_like(layout.home)
    rank[layout.inside] = torch.arange(len(layout.inside), device=rank.device)
    return rank
