"""Swin's relative position bias: one learned number per offset and head."""
from typing import Optional, Tuple

import torch
from mmengine.model import BaseModule
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ...errors import InputError
from ...registry import MODELS
from .interpolate import resize_table
from .offsets import WindowGeometry, table_rows


@MODELS.register_module()
class TableRPE(BaseModule):
    """A table ``T`` with a row per offset: the bias of query i and key j is ``T[offset(i, j)]``.

    Swin Transformer, arXiv 2103.14030, equation 4: with a window ``(wh, ww)`` the offset ``(dh, dw)`` has the row
    ``(dh + wh - 1) * (2 * ww - 1) + dw + ww - 1``. Where keys come from a window of another size, an axis has
    ``wq + wk - 1`` offsets.

    The parameter is named ``relative_position_bias_table``, so that the usual
    ``custom_keys={'relative_position_bias_table': dict(decay_mult=0.)}`` takes it out of weight decay.

    Args:
        num_heads (int): Attention heads.
        window_size (tuple[int, ...]): Query window in tokens per axis.
        key_size (tuple[int, ...], optional): Key window. None means the query window.
    """

    def __init__(self, num_heads: int, window_size: Tuple[int, ...], key_size: Optional[Tuple[int, ...]] = None):
        super().__init__()
        self.num_heads = num_heads
        self.window_size = tuple(window_size)
        self.key_size = tuple(key_size or window_size)
        rows = torch.Size(self.sides).numel()
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, num_heads))
        self.init_weights()

    @property
    def sides(self) -> Tuple[int, ...]:
        """How many offsets there are along each axis."""
        return tuple(wq + wk - 1 for wq, wk in zip(self.window_size, self.key_size))

    def init_weights(self) -> None:
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, q: Tensor, k: Tensor, geometry: WindowGeometry) -> Tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            q, k (Tensor): ``(T, heads, Nq, d)`` and ``(T, heads, Nk, d)``, returned as they are.
            geometry (WindowGeometry): Must have this table's window sizes.

        Returns:
            tuple: q, k, and the bias ``(heads, Nq, Nk)``.

        Raises:
            InputError: If the geometry's windows are not the table's.
        """
        if (geometry.query_size, geometry.key_size) != (self.window_size, self.key_size):
            raise InputError(f'this TableRPE holds the offsets of queries {self.window_size} and keys {self.key_size}, '
                             f'not of {geometry.query_size} and {geometry.key_size}; resample() changes the window')
        table = self.relative_position_bias_table
        rows = table_rows(geometry, table.device)
        # embedding's gradient sums duplicates much faster than that of indexing
        bias = nn.functional.embedding(rows.flatten(), table).T.reshape(self.num_heads, *rows.shape)
        return q, k, bias

    @torch.no_grad()
    def resample(self, window: Tuple[int, int], mode: str = 'bicubic') -> None:
        """Change the window of a table with equal query and key windows; the parameter object stays the same.

        Args:
            window (tuple[int, int]): The new window.
            mode (str): See :func:`~swin_rpe_mm.models.rpe.interpolate.resize_table`.

        Raises:
            InputError: If query and key windows differ, the window is not 2-D, or the mode is unknown.
        """
        if self.key_size != self.window_size or len(self.window_size) != 2:
            raise InputError('resample() needs a two-dimensional table with equal query and key windows, got '
                             f'{self.window_size} and {self.key_size}')
        table = self.relative_position_bias_table
        table.data = resize_table(table.data, self.sides, tuple(2 * side - 1 for side in window), mode)
        table.grad = None
        self.window_size = self.key_size = tuple(window)
