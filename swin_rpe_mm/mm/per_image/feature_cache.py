"""Features computed for a whole batch ride on the image they belong to, where its backbone finds them."""
from typing import Optional, Sequence, Tuple

from torch import Tensor, nn

from ..extents import Extents, Size

Maps = Tuple[Tensor, ...]

_ATTRIBUTE = 'swin_rpe_features'


def attach_features(image: Tensor, backbone: nn.Module, maps: Sequence[Tensor]) -> Tensor:
    """Write ``maps`` on ``image``: ``backbone``, asked for the features of this very tensor, answers with them.

    Returns:
        Tensor: ``image`` itself. Operations on it give tensors without features.
    """
    setattr(image, _ATTRIBUTE, (backbone, tuple(maps)))
    return image


def get_features(image: Tensor, backbone: nn.Module) -> Optional[Maps]:
    """What was written on ``image`` for ``backbone``, or None: a teacher's backbone doesn't take its student's."""
    owner, maps = getattr(image, _ATTRIBUTE, (None, None))
    return maps if owner is backbone else None


def cut_features(maps: Sequence[Tensor], strides: Sequence[Size], extents: Extents) -> Tuple[Maps, ...]:
    """Each image's features without those of its padding.

    Args:
        maps (Sequence[Tensor]): Features of a batch, ``(B, C_i, H_i, W_i)``.
        strides (Sequence[tuple[int, int]]): Pixels per cell of each map.
        extents (tuple): Height and width of each image in pixels.

    Returns:
        tuple: For each image its maps, ``(1, C_i, h_i, w_i)``.
    """
    sizes = [[(-(-h // down), -(-w // across)) for h, w in extents] for down, across in strides]
    return tuple(
        tuple(values[i:i + 1, :, :size[i][0], :size[i][1]].contiguous() for values, size in zip(maps, sizes))
        for i in range(len(extents)))
