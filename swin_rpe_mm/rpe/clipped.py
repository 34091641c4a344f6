"""A table over near offsets, for any distance."""
from typing import Tuple, Union

import torch
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, kept
from .offsets import Device, joint_index, offsets
from .table import lookup


@MODELS.register_module()
class ClippedRPE(RelativePositionEncoding):
    """``T[clip(offset, -M, M)]``: all offsets from M on share a row, so that keys may lie at any distance.

    Shaw et al., arXiv 1803.02155, clip so in one axis. Here each axis is clipped, and the table ``(rows, heads)`` is
    joint over the axes, ``2 * M + 1`` rows each, offset -M first, the last axis fastest. Offsets keep their rows in a
    window of another size.

    Args:
        max_distance (int | Sequence[int]): M, for all axes or one per axis.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`.

    Raises:
        InputError: If ``max_distance`` is no whole number from 1, or not one per axis.
    """

    def __init__(self, max_distance: Union[int, Tuple[int, ...]] = 8, **window):
        super().__init__(**window)
        axes = len(self.window_size)
        distances = tuple(max_distance) if isinstance(max_distance, (tuple, list)) else (max_distance, ) * axes
        if len(distances) != axes or not all(type(m) is int and m >= 1 for m in distances):
            raise InputError(f'max_distance must be a whole number from 1, or {axes} of them, one per axis, got '
                             f'{max_distance!r}')
        self.max_distance = distances
        rows = torch.Size(2 * m + 1 for m in distances).numel()
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, self.num_heads))
        self.init_weights()

    def init_weights(self) -> None:
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def bias(self, geometry: WindowGeometry) -> Tensor:
        """See :meth:`~.base.RelativePositionEncoding.bias`."""
        table = self.relative_position_bias_table
        return lookup(table, kept(clipped_rows, geometry, self.max_distance, table.device))


def clipped_rows(geometry: WindowGeometry, max_distance: Tuple[int, ...], device: Device = 'cpu') -> Tensor:
    """Row of each pair's offset, clipped to +- ``max_distance`` along each axis, ``(Nq, Nk)`` long."""
    parts = [offset.clamp(-m, m) + m for offset, m in zip(offsets(geometry, device), max_distance)]
    return joint_index(parts, tuple(2 * m + 1 for m in max_distance))
