"""iRPE: queries, keys and weights decide what a bucket of offsets counts."""
from typing import List, Optional

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, kept
from .buckets import bucket_rows, bucketing
from .precision import widened


@MODELS.register_module()
class ContextualRPE(RelativePositionEncoding):
    """A vector per bucket of offsets, multiplied with queries, with keys, or added to values.

    iRPE's contextual mode, arXiv 2107.14222, equations 13 to 15. With b the bucket of query i minus key j:

    * on ``k``, the logit gets ``q_i . r_k[b]``, the query scaled as it comes;
    * on ``q``, the logit gets ``(k_j / sqrt(d)) . r_q[b]``;
    * on ``v``, the output of query i gets ``sum_j a_ij r_v[b]``, a the weights of attention.

    What is multiplied is the small table; pairs only pick from the products. The tables ``q_tables``, ``k_tables`` and
    ``v_tables`` are ``(rows, d)``, or ``(rows, heads, d)`` where heads do not share them: one for the joins ``product``
    and ``euclidean``, one per axis for ``cross``, whose terms are added. They start at zero, and do not depend on the
    window.

    Args:
        on (str): Any of the letters ``q``, ``k`` and ``v``.
        form, join, num_buckets, max_distance, ratio: See :func:`~.buckets.bucketing`.
        shared_heads (bool): Whether all heads share the vectors.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`; ``head_dim`` is required.

    Raises:
        InputError: If a value is not allowed, or an option is given that the form does not use.
    """

    def __init__(self,
                 on: str = 'k',
                 form: str = 'piecewise',
                 join: str = 'product',
                 shared_heads: bool = True,
                 num_buckets: Optional[int] = None,
                 max_distance: Optional[float] = None,
                 ratio: Optional[float] = None,
                 **window):
        super().__init__(**window)
        if not isinstance(on, str) or not on or len(set(on)) != len(on) or set(on) - set('qkv'):
            raise InputError(f'on must be any of the letters q, k and v, each at most once, got {on!r}')
        if self.head_dim is None:
            raise InputError('head_dim must be given for ContextualRPE, got None')
        self.key_scale = self.head_dim**-0.5
        self.bucketing = bucketing(form, join, num_buckets, max_distance, ratio)
        shape = (self.head_dim, ) if shared_heads else (self.num_heads, self.head_dim)
        for letter in 'qkv':
            if letter in on:
                tables = [torch.zeros(rows, *shape) for rows in self.bucketing.table_rows(len(self.window_size))]
                self.register_module(f'{letter}_tables', nn.ParameterList(tables))
            else:
                self.register_module(f'{letter}_tables', None)

    def init_weights(self) -> None:
        for table in self.parameters():
            nn.init.zeros_(table)

    def gives(self, method: str) -> bool:
        """Whether a letter stands for it; see :meth:`~.base.RelativePositionEncoding.gives`."""
        letters = dict(scores=(self.q_tables, self.k_tables), values=(self.v_tables, ))
        return any(tables is not None for tables in letters[method]) if method in letters else super().gives(method)

    def scores(self, q: Tensor, k: Tensor, geometry: WindowGeometry,
               region: Optional[Tensor] = None) -> Optional[Tensor]:
        """See :meth:`~.base.RelativePositionEncoding.scores`. None on ``v`` alone."""
        rows = kept(bucket_rows, geometry, self.bucketing, q.device)
        terms = []
        if self.k_tables is not None:
            terms += [_logits(q, table, index) for table, index in zip(self.k_tables, rows)]
        if self.q_tables is not None:
            keys = widened(k) * self.key_scale
            terms += [_logits(keys, table, index.T).transpose(-2, -1) for table, index in zip(self.q_tables, rows)]
        return sum(terms[1:], terms[0]) if terms else None

    def values(self, weights: Tensor, geometry: WindowGeometry) -> Optional[Tensor]:
        """What is added to the output, in float32 or wider.

        Args:
            weights (Tensor): Weights of attention, ``(T, heads, Nq, Nk)``.
            geometry (WindowGeometry): Where queries and keys lie.

        Returns:
            Tensor: ``(T, heads, Nq, d)``, or None without ``v``.
        """
        if self.v_tables is None:
            return None
        rows = kept(bucket_rows, geometry, self.bucketing, weights.device)
        first, *others = (_mixture(weights, table, index) for table, index in zip(self.v_tables, rows))
        return sum(others, first)


def _logits(x: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """``x_i . table[rows_ij]``: ``(T, heads, N, d)``, ``(R, [heads,] d)`` and ``(N, M)`` to ``(T, heads, N, M)``."""
    x, table = _same_precision(x, table)
    with torch.autocast(x.device.type, enabled=False):
        products = x @ table.movedim(0, -1)
    return products.gather(-1, rows.expand(*x.shape[:2], -1, -1))


def _mixture(weights: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """``sum_j weights_ij table[rows_ij]``: from ``(T, heads, N, M)``, ``(R, [heads,] d)`` and ``(N, M)``."""
    weights, table = _same_precision(weights, table)
    of_buckets = weights.new_zeros(*weights.shape[:3], len(table))
    of_buckets = of_buckets.scatter_add(-1, rows.expand(*weights.shape[:2], -1, -1), weights)
    with torch.autocast(weights.device.type, enabled=False):
        return of_buckets @ (table if table.ndim == 2 else table.transpose(0, 1))


def _same_precision(x: Tensor, table: Tensor) -> List[Tensor]:
    dtype = torch.promote_types(widened(x).dtype, table.dtype)
    return [x.to(dtype), table.to(dtype)]
