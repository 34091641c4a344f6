"""The extent of each image in a batch: how much of the padded tensor is real, as a tensor ``(B, 2)``."""
from typing import Tuple

import torch
from torch import Tensor

from .indices import Length, split


def merge_extents(extents: Tensor, stride: Tuple[int, int]) -> Tensor:
    """Extents after patches of ``stride`` became one token each: a token is real if any part of it is.

    Args:
        extents (Tensor): ``(B, 2)`` long.
        stride (tuple[int, int]): Height and width of a patch.
    """
    h, w = (torch.div(extents[:, axis] + step - 1, step, rounding_mode='floor') for axis, step in enumerate(stride))
    return torch.stack([h, w], dim=1)


def tokens_inside(extents: Tensor, size: Tuple[Length, Length]) -> Tensor:
    """Which tokens lie inside, ``(B, H * W, 1)`` bool.

    Args:
        extents (Tensor): ``(B, 2)``, height and width per image in tokens.
        size (tuple[int, int]): H and W.
    """
    batch_size = extents.shape[0]
    image, *at = split(torch.arange(batch_size * size[0] * size[1], device=extents.device), size)
    y, x = (coordinate < extents[:, axis].index_select(0, image) for axis, coordinate in enumerate(at))
    return (y & x).view(batch_size, -1, 1)


def zero_outside(maps: Tensor, extents: Tensor) -> Tensor:
    """Set everything outside the extents to zero.

    Args:
        maps (Tensor): ``(B, C, H, W)``, any memory format.
        extents (Tensor): ``(B, 2)``, height and width per image in units of the map.
    """
    rows, columns = ((torch.arange(side, device=maps.device) < extents[:, axis:axis + 1]).float()
                     for axis, side in enumerate(maps.shape[2:]))
    # a product, since joining axes of one entry by broadcasting would fix their number in an exported graph
    inside = (rows[:, :, None] @ columns[:, None] > 0)[:, None]
    # not a product: padding may hold anything, and 0 * inf is not 0
    return torch.where(inside, maps, 0)
