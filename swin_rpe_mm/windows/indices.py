"""Flat indices taken apart by division; sizes may be symbolic, as those of an exported graph are."""
from typing import List, Sequence, Union

import torch
from torch import Tensor

Length = int  # or a torch.SymInt, which computes as ints do and is no int to a type checker


def ceil_div(length: Length, step: Length) -> Length:
    """How many steps cover a length."""
    return -(-length // step)


def split(index: Tensor, sizes: Sequence[Length]) -> List[Tensor]:
    """The coordinates of flat indices in a grid.

    Args:
        index (Tensor): Long, any shape.
        sizes (Sequence[int]): The grid's sides but the first, which is not needed; the last counts fastest.

    Returns:
        list[Tensor]: One more than ``sizes``, each like ``index``.
    """
    coordinates = []
    for size in reversed(sizes):
        divisor = as_number(size, index)
        coordinates.append(index % divisor)
        index = torch.div(index, divisor, rounding_mode='floor')
    return [index, *reversed(coordinates)]


def as_number(size: Union[Length, Tensor], like: Tensor) -> Union[int, Tensor]:
    """A size to compute with beside tensors like ``like``: a symbolic one becomes a tensor, since a remainder by a
    symbol is not exported and a comparison of symbols would be fixed."""
    return size if isinstance(size, (int, Tensor)) else torch.full((1, ), size, dtype=like.dtype, device=like.device)
