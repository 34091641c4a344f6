"""The extents of a batch on their way through models that hand a bare tensor on.

mm pads a batch on the right and at the bottom, after normalising and usually with 0, so padding cannot be told from
the pixels. The data preprocessors therefore write the extents on the batch, where the backbone reads them; the models
in between hand the tensor on untouched. A tensor without extents means that no batch padding is known.
"""
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ..errors import InputError

Size = Tuple[int, int]
Extents = Tuple[Size, ...]

_ATTRIBUTE = 'swin_rpe_extents'


class Batch(Tensor):
    """A batch of images that carries their extents.

    What leaves the maps where they are hands the extents on: another dtype, device or memory format, a copy; a slice of
    images takes theirs along. All else gives plain tensors.
    """

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        batch = args[0] if args else None
        if not isinstance(result, Tensor) or not isinstance(batch, Batch) or result is batch:
            return result
        extents = get_extents(batch)
        if function is Tensor.__getitem__:
            extents = extents[args[1]] if isinstance(args[1], slice) and extents else None
        elif function not in _KEEPING or result.shape != batch.shape:
            extents = None
        return plain(result) if extents is None else _carrying(result, extents)

    def __deepcopy__(self, memo: dict) -> Tensor:
        return _carrying(deepcopy(plain(self), memo), get_extents(self))


_KEEPING = {
    Tensor.to, Tensor.type, Tensor.type_as, Tensor.half, Tensor.float, Tensor.double, Tensor.bfloat16, Tensor.cpu,
    Tensor.cuda, Tensor.clone, Tensor.contiguous, Tensor.detach, Tensor.pin_memory, Tensor.requires_grad_,
    Tensor.view_as, torch.clone, torch.detach
}


def plain(batch: Tensor) -> Tensor:
    """The same values as a plain tensor, without extents."""
    with torch._C.DisableTorchFunctionSubclass():
        return batch.as_subclass(Tensor)


def _carrying(batch: Tensor, extents: Extents) -> Tensor:
    if type(batch) is Tensor:
        batch.__class__ = Batch
    setattr(batch, _ATTRIBUTE, extents)
    return batch


def attach_extents(batch: Tensor, extents: Sequence[Size]) -> Tensor:
    """Write each image's extent on a batch.

    Args:
        batch (Tensor): Images padded on the right and at the bottom, ``(B, C, H, W)``.
        extents (Sequence[tuple[int, int]]): Height and width of each image's real content in pixels, one pair per
            image, ``1 <= h <= H`` and ``1 <= w <= W``.

    Returns:
        Tensor: ``batch`` itself. A change of its dtype, device or memory format, a copy, and a slice of its images keep
        the extents; other operations, such as ``batch * 2``, give tensors without.

    Raises:
        InputError: If the number of extents is not B, or an extent is no pair of whole numbers, empty, or larger than
            its image.
    """
    if batch.ndim != 4:
        raise InputError(f'batch must have the shape (B, C, H, W), got {tuple(batch.shape)}')
    return _carrying(batch, check_extents(extents, tuple(batch.shape)))


def check_extents(extents: Sequence[Size], shape: Tuple[int, ...]) -> Extents:
    """Extents as pairs of ints that fit a batch of a shape ``(B, C, H, W)``; errors as of :func:`attach_extents`."""
    size = shape[2:]
    if len(extents) != shape[0]:
        raise InputError(f'extents has {len(extents)} entries for a batch of {shape[0]} images; one pair (h, w) per '
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
    return tuple(checked)


def get_extents(batch: Tensor) -> Optional[Extents]:
    """The extents written on ``batch``: one ``(h, w)`` in pixels per image, or None if it carries none."""
    return getattr(batch, _ATTRIBUTE, None)
