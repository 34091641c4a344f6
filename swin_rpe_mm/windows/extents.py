"""The extent of each image in a batch."""
from typing import Tuple

from torch import Tensor

Size = Tuple[int, int]
Extents = Tuple[Size, ...]


def merge_extents(extents: Extents, stride: Size) -> Extents:
    """Extents after patches of ``stride`` became one token each: a token is real if any part of it is."""
    return tuple((-(-h // stride[0]), -(-w // stride[1])) for h, w in extents)


def zero_outside(maps: Tensor, extents: Extents) -> Tensor:
    """Set everything outside the extents to zero.

    Args:
        maps (Tensor): ``(B, C, H, W)``, any memory format.
        extents (tuple): Height and width per image, in units of the map.

    Returns:
        Tensor: ``maps`` itself if nothing lies outside, a new tensor otherwise.
    """
    size = tuple(maps.shape[-2:])
    if all(extent == size for extent in extents):
        return maps
    inside = maps.new_zeros((len(extents), 1, *size))
    for mask, (h, w) in zip(inside, extents):
        mask[:, :h, :w] = 1
    # not a product: padding may hold anything, and 0 * inf is not 0
    return maps.masked_fill(inside == 0, 0)
