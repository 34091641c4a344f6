"""Where the keys lie relative to the queries, in any number of axes. The only place where coordinates are made."""
from typing import NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from ..index_cache import index_cache

Device = Union[str, torch.device]


class WindowGeometry(NamedTuple):
    """A window of queries and the window of keys that they see.

    Attributes:
        query_size (tuple[int, ...]): Tokens per axis: ``(7, 7)`` for a window of a map, ``(64,)`` for a block of text.
        key_size (tuple[int, ...]): The same for the keys.
        origin (tuple[int, ...]): Coordinate of the first key relative to the first query: ``(-3, -3)`` with a halo
            of 3.
        key_stride (tuple[int, ...], optional): Tokens from one key to the next along each axis; None means 1.
    """
    query_size: Tuple[int, ...]
    key_size: Tuple[int, ...]
    origin: Tuple[int, ...]
    key_stride: Optional[Tuple[int, ...]] = None

    @classmethod
    def square(cls, window: Tuple[int, ...]) -> 'WindowGeometry':
        """Queries and keys in the same window."""
        return cls(tuple(window), tuple(window), (0, ) * len(window))

    @classmethod
    def centred(cls, window: Tuple[int, ...], key_size: Tuple[int, ...]) -> 'WindowGeometry':
        """Keys around the same centre as the queries: a halo on all sides where there are more of them."""
        return cls(tuple(window), tuple(key_size), tuple(-((wk - wq) // 2) for wq, wk in zip(window, key_size)))

    @classmethod
    def pooled(cls, window: Tuple[int, ...], reach: int) -> 'WindowGeometry':
        """One key at the centre of each window, up to ``reach`` windows away."""
        return cls(tuple(window), (2 * reach + 1, ) * len(window), tuple(w // 2 - reach * w for w in window),
                   tuple(window))


@index_cache(64)
def coordinates(geometry: WindowGeometry, device: Device = 'cpu') -> Tuple[Tensor, Tensor]:
    """Coordinates of the queries and the keys, the first query at 0.

    Returns:
        tuple[Tensor, Tensor]: ``(axes, Nq)`` and ``(axes, Nk)`` long. Slots count the last axis fastest. Kept and
        shared: not to be changed in place.
    """
    ones = (1, ) * len(geometry.query_size)
    queries = _grid(geometry.query_size, (0, ) * len(ones), ones)
    keys = _grid(geometry.key_size, geometry.origin, geometry.key_stride or ones)
    return queries.to(device), keys.to(device)


def _grid(size: Tuple[int, ...], origin: Tuple[int, ...], stride: Tuple[int, ...]) -> Tensor:
    axes = [start + step * torch.arange(length) for length, start, step in zip(size, origin, stride)]
    return torch.stack(torch.meshgrid(*axes, indexing='ij')).flatten(1)


@index_cache(64)
def offsets(geometry: WindowGeometry, device: Device = 'cpu') -> Tensor:
    """Query coordinate minus key coordinate for every pair of slots.

    Args:
        geometry (WindowGeometry): Sizes and origin.
        device (torch.device): Where the result lives.

    Returns:
        Tensor: ``(axes, Nq, Nk)`` long. Kept and shared: not to be changed in place.
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


def joint_index(parts: Tensor, sides: Tuple[int, ...]) -> Tensor:
    """One index for several, the last fastest: ``(axes, ...)`` with entries from 0 to ``sides`` becomes ``(...)``."""
    joined = torch.zeros_like(parts[0])
    for part, side in zip(parts, sides):
        joined = joined * side + part
    return joined
