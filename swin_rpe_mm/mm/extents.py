"""The extent of each image in a batch: how much of the padded tensor is real.

mm pads a batch on the right and at the bottom, after normalising and usually with 0, so padding cannot be told from
the pixels. The data preprocessors therefore write the extents on the batch tensor, where the backbone reads them; the
models in between hand the tensor on untouched. A tensor without extents means that no batch padding is known.
"""
from collections.abc import Iterable, Sequence
from typing import Optional, Tuple

from torch import Tensor

from ..errors import InputError

Size = Tuple[int, int]
Extents = Tuple[Size, ...]

_ATTRIBUTE = 'swin_rpe_extents'


def attach_extents(batch: Tensor, extents: Sequence[Size]) -> Tensor:
    """Write each image's extent on a batch.

    Args:
        batch (Tensor): Images padded on the right and at the bottom, ``(B, C, H, W)``.
        extents (Sequence[tuple[int, int]]): Height and width of each image's real content in pixels, one pair per
            image, ``1 <= h <= H`` and ``1 <= w <= W``.

    Returns:
        Tensor: ``batch`` itself. Operations on it, such as slicing or ``batch * 2``, give tensors without extents.

    Raises:
        InputError: If the number of extents is not B, or an extent is no pair of whole numbers, empty, or larger than
            its image.
    """
    if batch.ndim != 4:
        raise InputError(f'batch must have the shape (B, C, H, W), got {tuple(batch.shape)}')
    size = tuple(batch.shape[-2:])
    if len(extents) != len(batch):
        raise InputError(f'extents has {len(extents)} entries for a batch of {len(batch)} images; one pair (h, w) per '
                         'image is needed')
    checked = []
    for i, extent in enumerate(extents):
        sides = [float(side) for side in extent] if isinstance(extent, Iterable) else []
        if len(sides) != 2 or not all(side.is_integer() for side in sides):
            raise InputError(f'the extent of image {i} must be a pair of whole numbers (height, width), got {extent!r}')
        h, w = map(int, sides)
        if h < 1 or w < 1:
            raise InputError(f'image {i} of the batch has the size {h}x{w}; height and width must be at least 1')
        if h > size[0] or w > size[1]:
            raise InputError(f'the extent {h}x{w} of image {i} is larger than its padded size {size[0]}x{size[1]}')
        checked.append((h, w))
    setattr(batch, _ATTRIBUTE, tuple(checked))
    return batch


def get_extents(batch: Tensor) -> Optional[Extents]:
    """The extents written on ``batch``: one ``(h, w)`` in pixels per image, or None if it carries none."""
    return getattr(batch, _ATTRIBUTE, None)
