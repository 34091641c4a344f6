"""Moving rows between the map, the packed tokens and the windows: one gather each.

Packed tokens are those inside their extents, in map order, with nothing between them: what every layer but attention
works on. Windows hold each of them once, apart from padding. So every move is a permutation with holes, and its
gradient is the inverse gather. A hole reads as zero on both sides: it receives nothing and hands no gradient back.
"""
from typing import NamedTuple, Optional

import torch
from torch import Tensor


class Gather(NamedTuple):
    """Rows to read and rows to set to zero, and the same for the way back. Without rows everything stays in place."""
    rows: Optional[Tensor]
    holes: Optional[Tensor]
    rows_back: Optional[Tensor]
    holes_back: Optional[Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Gather the rows of ``x``, ``(R, C)``; returns ``(len(rows), C)`` with zeros in the holes."""
        return x if self.rows is None else _Permute.apply(x, *self)

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
