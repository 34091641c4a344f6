"""Swin's relative position bias: one learned number per offset and head."""
from typing import Dict, Tuple

import torch
import torch.nn.functional as F
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, kept
from .offsets import Device, joint_index, offset_range, offsets


@MODELS.register_module()
class TableRPE(RelativePositionEncoding):
    """A table ``T`` with a row per offset: the bias of query i and key j is ``T[offset(i, j)]``.

    Swin Transformer, arXiv 2103.14030, equation 4: with a window ``(wh, ww)`` the offset ``(dh, dw)`` has the row
    ``(dh + wh - 1) * (2 * ww - 1) + dw + ww - 1``. Where keys come from a window of another size, an axis has
    ``wq + wk - 1`` offsets. A window smaller than the table's reads the rows of its own offsets.

    Args:
        **window: Arguments of :class:`~.base.RelativePositionEncoding`.
    """

    def __init__(self, **window):
        super().__init__(**window)
        rows = torch.Size(self.sides).numel()
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, self.num_heads))
        self.init_weights()

    def init_weights(self) -> None:
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def offset_tables(self) -> Dict[str, Tuple[int, ...]]:
        return {'relative_position_bias_table': tuple(range(len(self.window_size)))}

    def bias(self, geometry: WindowGeometry) -> Tensor:
        """See :meth:`~.base.RelativePositionEncoding.bias`.

        Raises:
            InputError: If the geometry has offsets that the table has no row for.
        """
        table = self.relative_position_bias_table
        return lookup(table, kept(offset_rows, geometry, self.geometry, table.device))


def lookup(table: Tensor, rows: Tensor) -> Tensor:
    """Rows ``(Nq, Nk)`` of a table ``(R, heads)`` as a bias ``(heads, Nq, Nk)``, in float32 or wider."""
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    # embedding's gradient sums duplicates much faster than that of indexing
    return F.embedding(rows.flatten(), wide).T.unflatten(1, rows.shape)


def offset_rows(geometry: WindowGeometry, table: WindowGeometry, device: Device = 'cpu') -> Tensor:
    """Row of each pair's offset in a table over all offsets of the windows ``table``, ``(Nq, Nk)`` long.

    Raises:
        InputError: If an offset lies outside.
    """
    have, need = offset_range(table), offset_range(geometry)
    if len(have) != len(need) or any(n[0] < h[0] or n[1] > h[1] for h, n in zip(have, need)):
        raise InputError(f'this table holds the offsets {have} of queries {table.query_size} and keys '
                         f'{table.key_size}, not {need} of {geometry.query_size} and {geometry.key_size}; resample() '
                         'changes the window')
    parts = [offset - low for offset, (low, _) in zip(offsets(geometry, device), have)]
    return joint_index(parts, tuple(high - low + 1 for low, high in have))
