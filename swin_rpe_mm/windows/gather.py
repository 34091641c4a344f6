"""Moving tokens between the map and windows, and from one layout to another: one gather each.

A token has one place in the map and one slot in a layout, so every move is a permutation apart from padding, and its
gradient is the inverse gather. Padding reads as zero on both sides: it receives nothing and hands no gradient back.
"""
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

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


class _Permute(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor, holes: Tensor, rows_back: Tensor, holes_back: Tensor) -> Tensor:
        ctx.gather = Gather(rows_back, holes_back, rows, holes)
        out = x.index_select(0, rows)
        return out.index_fill_(0, holes, 0) if len(holes) else out

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.gather(grad), None, None, None, None


def into_windows(layout: WindowLayout) -> Gather:
    """From tokens ``(B*H*W, C)`` to slots ``(T*N, C)``."""
    return Gather(layout.slots.flatten(), layout.holes, layout.home, layout.outside)


def onto_map(layout: WindowLayout) -> Gather:
    """From slots ``(T*N, C)`` to tokens ``(B*H*W, C)``; tokens outside their extent become zero."""
    return Gather(layout.home, layout.outside, layout.slots.flatten(), layout.holes)


@lru_cache(maxsize=128)
def between(source: WindowLayout, target: WindowLayout) -> Gather:
    """From the slots of one layout to those of another over the same maps."""
    return Gather(source.home[target.slots.flatten()], target.holes, target.home[source.slots.flatten()], source.holes)
