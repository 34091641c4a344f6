"""Features computed for a whole batch ride on the image they belong to, where its backbone finds them."""
from typing import Optional, Sequence, Tuple

from torch import Tensor, nn

_ATTRIBUTE = 'swin_rpe_features'


def attach_features(image: Tensor, backbone: nn.Module, maps: Sequence[Tensor]) -> Tensor:
    """Write ``maps`` on ``image``: ``backbone``, asked for the features of this very tensor, answers with them.

    Returns:
        Tensor: ``image`` itself. Operations on it give tensors without features.
    """
    setattr(image, _ATTRIBUTE, (backbone, tuple(maps)))
    return image


def get_features(image: Tensor, backbone: nn.Module) -> Optional[Tuple[Tensor, ...]]:
    """What was written on ``image`` for ``backbone``, or None: a teacher's backbone doesn't take its student's."""
    owner, maps = getattr(image, _ATTRIBUTE, (None, None))
    return maps if owner is backbone else None
