"""Sizes of the images in a batch, before anything is padded."""
from typing import List, Sequence, Tuple

from torch import Tensor

from ...errors import InputError


def image_sizes(images: Sequence[Tensor]) -> List[Tuple[int, int]]:
    """Height and width of each ``(C, H, W)`` image.

    Raises:
        InputError: If an image has no pixels.
    """
    sizes = [tuple(image.shape[-2:]) for image in images]
    for index, (h, w) in enumerate(sizes):
        if h == 0 or w == 0:
            raise InputError(f'image {index} of the batch has the size {h}x{w}; height and width must be at least 1')
    return sizes
