"""The query decides how much an offset along each axis counts."""
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, kept
from .precision import widened
from .table import offset_rows


@MODELS.register_module()
class DecomposedRPE(RelativePositionEncoding):
    """``q . Rh[dh] + q . Rw[dw]``: each axis has a table of vectors, shared by all heads.

    MViTv2, arXiv 2112.01526, section 4.1, as in ViTDet, but with the scaled query. The parameters are one table
    ``(side, head_dim)`` per axis.

    Args:
        **window: Arguments of :class:`~.base.RelativePositionEncoding`; ``head_dim`` is required.

    Raises:
        InputError: If ``head_dim`` is not given.
    """

    def __init__(self, **window):
        super().__init__(**window)
        if self.head_dim is None:
            raise InputError('head_dim must be given for DecomposedRPE, got None')
        self.relative_position_bias_tables = nn.ParameterList(
            nn.Parameter(torch.zeros(side, self.head_dim)) for side in self.sides)
        self.init_weights()

    def init_weights(self) -> None:
        for table in self.relative_position_bias_tables:
            trunc_normal_(table, std=0.02)

    def offset_tables(self) -> Dict[str, Tuple[int, ...]]:
        return {f'relative_position_bias_tables.{axis}': (axis, ) for axis in range(len(self.sides))}

    def scores(self, q: Tensor, k: Tensor, geometry: WindowGeometry, region: Optional[Tensor] = None) -> Tensor:
        """See :meth:`~.base.RelativePositionEncoding.scores`.

        Raises:
            InputError: If the geometry has offsets that the tables have no row for.
        """
        axes = len(self.sides)
        dtype = torch.promote_types(widened(q).dtype, self.relative_position_bias_tables[0].dtype)
        queries = q.to(dtype).unflatten(2, geometry.query_size)
        terms = []
        for axis, table in enumerate(self.relative_position_bias_tables):
            rows = kept(offset_rows, _along(geometry, axis), _along(self.geometry, axis), table.device)
            vectors = F.embedding(rows, table.to(dtype))  # (wq, wk, d)
            # queries of the same row, or column, share the vectors; no tensor has Nq, Nk and d
            with torch.autocast(q.device.type, enabled=False):
                logits = torch.einsum('...qd,qkd->...qk', queries.movedim(2 + axis, -2), vectors)
            # (T, heads, Nq, 1, wk, 1), with as many ones as there are other axes
            logits = logits.movedim(-2, 2 + axis).flatten(2, 1 + axes)
            terms.append(logits.view(*logits.shape[:3], *(-1 if i == axis else 1 for i in range(axes))))
        return sum(terms[1:], terms[0]).flatten(3)


def _along(geometry: WindowGeometry, axis: int) -> WindowGeometry:
    query_size, key_size, origin, stride = geometry
    own = slice(axis, axis + 1)
    return WindowGeometry(query_size[own], key_size[own], origin[own], stride and stride[own])
