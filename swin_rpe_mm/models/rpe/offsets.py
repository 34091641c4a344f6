"""Where the keys lie relative to the queries, in any number of axes. The only place where coordinates are made."""
from typing import NamedTuple, Tuple, Union

import torch
from torch import Tensor

from ...index_cache import index_cache


class WindowGeometry(NamedTuple):
    """A window of queries and the window of keys that they see.

    Attributes:
        query_size (tuple[int, ...]): Tokens per axis: ``(7, 7)`` for a window of a map, ``(64,)`` for a block of text.
        key_size (tuple[int, ...]): The same for the keys.
        origin (tuple[int, ...]): Coordinate of the first key relative to the first query: ``(-3, -3)`` with a halo
            of 3.
    """
    query_size: Tuple[int, ...]
    key_size: Tuple[int, ...]
    origin: Tuple[int, ...]

    @classmethod
    def square(cls, window: Tuple[int, ...]) -> 'WindowGeometry':
        """Queries and keys in the same window."""
        return cls(tuple(window), tuple(window), (0, ) * len(window))


@index_cache(64)
def offsets(geometry: WindowGeometry, device: Union[str, torch.device] = 'cpu') -> Tensor:
    """Query coordinate minus key coordinate for every pair of slots.

    Args:
        geometry (WindowGeometry): Sizes and origin.
        device (torch.device): Where the result lives.

    Returns:
        Tensor: ``(axes, Nq, Nk)`` long. Slots count the last axis fastest.
    """
    queries = _coordinates(geometry.query_size, (0, ) * len(geometry.query_size))
    keys = _coordinates(geometry.key_size, geometry.origin)
    return (queries[:, :, None] - keys[:, None, :]).to(device)


def _coordinates(size: Tuple[int, ...], origin: Tuple[int, ...]) -> Tensor:
    axes = [torch.arange(start, start + length) for length, start in zip(size, origin)]
    return torch.stack(torch.meshgrid(*axes, indexing='ij')).flatten(1)


@index_cache(64)
def table_rows(geometry: WindowGeometry, device: Union[str, torch.device] = 'cpu') -> Tensor:
    """Row of a table with one entry per offset, for every pair of slots.

    Along an axis with ``wq`` queries and ``wk`` keys there are ``wq + wk - 1`` offsets. The smallest, that of the
    first query and the last key, is row 0, wherever the keys start; the last axis counts fastest. For equal windows
    this is Swin's index, ``(dh + wh - 1) * (2 * ww - 1) + dw + ww - 1``.

    Returns:
        Tensor: ``(Nq, Nk)`` long.
    """
    rows = torch.zeros((), dtype=torch.long, device=device)
    for offset, wq, wk, start in zip(offsets(geometry, device), *geometry):
        rows = rows * (wq + wk - 1) + offset + (wk - 1 + start)
    return rows
