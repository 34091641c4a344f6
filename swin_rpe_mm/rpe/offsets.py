"""Where the keys lie relative to the queries, in any number of axes. The only place where coordinates are made."""
from typing import Sequence, Tuple, Union

import torch
from torch import Tensor

from ..windows.geometry import WindowGeometry

Device = Union[str, torch.device]


def coordinates(geometry: WindowGeometry, device: Device = 'cpu') -> Tuple[Tensor, Tensor]:
    """Coordinates of the queries and the keys, the first query at 0.

    Returns:
        tuple[Tensor, Tensor]: ``(axes, Nq)`` and ``(axes, Nk)`` long. Slots count the last axis fastest.
    """
    ones = (1, ) * len(geometry.query_size)
    queries = _grid(geometry.query_size, (0, ) * len(ones), ones, device)
    keys = _grid(geometry.key_size, geometry.origin, geometry.key_stride or ones, device)
    return queries, keys


def _grid(size: Tuple[int, ...], origin: Tuple[int, ...], stride: Tuple[int, ...], device: Device) -> Tensor:
    axes = [start + step * torch.arange(length, device=device) for length, start, step in zip(size, origin, stride)]
    return torch.stack(torch.meshgrid(*axes, indexing='ij')).flatten(1)


def offsets(geometry: WindowGeometry, device: Device = 'cpu') -> Tensor:
    """Query coordinate minus key coordinate for every pair of slots.

    Args:
        geometry (WindowGeometry): Sizes and origin.
        device (torch.device): Where the result lives.

    Returns:
        Tensor: ``(axes, Nq, Nk)`` long.
    """
    queries, keys = coordinates(geometry, device)
    return queries[:, :, None] - keys[:, None, :]


def offset_range(geometry: WindowGeometry) -> Tuple[Tuple[int, int], ...]:
    """Smallest and largest offset along each axis."""
    strides = geometry.key_stride or (1, ) * len(geometry.origin)
    return tuple((-start - step * (wk - 1), wq - 1 - start)
                 for wq, wk, start, step in zip(geometry.query_size, geometry.key_size, geometry.origin, strides))


def all_offsets(geometry: WindowGeometry, device: Device = 'cpu') -> Tensor:
    """Every offset from the smallest to the largest once, as a grid.

    Returns:
        Tensor: ``(axes, side of axis 0, side of axis 1, ...)`` long.
    """
    axes = [torch.arange(low, high + 1, device=device) for low, high in offset_range(geometry)]
    return torch.stack(torch.meshgrid(*axes, indexing='ij'))


def joint_index(parts: Union[Tensor, Sequence[Tensor]], sides: Tuple[int, ...]) -> Tensor:
    """One index for several, the last fastest: a tensor per axis, with entries from 0 to ``sides``, become one."""
    joined = torch.zeros_like(parts[0])
    for part, side in zip(parts, sides):
        joined = joined * side + part
    return joined
