"""A table over buckets of offsets that grow with the distance."""
from typing import List, Optional

import torch
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, kept
from .buckets import bucket_rows, bucketing
from .table import lookup


@MODELS.register_module()
class LogBucketRPE(RelativePositionEncoding):
    """``T[bucket(offset)]``: near offsets have rows of their own, far ones share them.

    The forms are T5's (arXiv 1910.10683), iRPE's piecewise one (arXiv 2107.14222) and a signed logarithm. The joins
    ``product`` and ``euclidean`` have one table ``relative_position_bias_table``, ``(rows, heads)``; ``cross`` has
    ``relative_position_bias_tables``, one per axis, whose values are added. Buckets do not depend on the window.

    Args:
        form, join, num_buckets, max_distance, ratio: See :func:`~.buckets.bucketing`.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`.

    Raises:
        InputError: If a value is not allowed, or an option is given that the form does not use.
    """

    def __init__(self,
                 form: str = 'sign_log',
                 join: str = 'product',
                 num_buckets: Optional[int] = None,
                 max_distance: Optional[float] = None,
                 ratio: Optional[float] = None,
                 **window):
        super().__init__(**window)
        self.bucketing = bucketing(form, join, num_buckets, max_distance, ratio)
        tables = [
            nn.Parameter(torch.zeros(rows, self.num_heads))
            for rows in self.bucketing.table_rows(len(self.window_size))
        ]
        if join == 'cross':
            self.relative_position_bias_tables = nn.ParameterList(tables)
        else:
            self.relative_position_bias_table, = tables
        self.init_weights()

    @property
    def tables(self) -> List[Tensor]:
        """All tables, one or one per axis."""
        if self.bucketing.join == 'cross':
            return list(self.relative_position_bias_tables)
        return [self.relative_position_bias_table]

    def init_weights(self) -> None:
        for table in self.tables:
            trunc_normal_(table, std=0.02)

    def bias(self, geometry: WindowGeometry) -> Tensor:
        """See :meth:`~.base.RelativePositionEncoding.bias`."""
        tables = self.tables
        rows = kept(bucket_rows, geometry, self.bucketing, tables[0].device)
        bias, *others = (lookup(table, index) for table, index in zip(tables, rows))
        return sum(others, bias)
