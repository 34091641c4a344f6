"""Which stage of Swin takes the place of each map of the old backbone."""
from __future__ import annotations

from collections.abc import Sequence

from .feature_maps import FeatureMap
from .refusals import SwapRefused

STRIDES = (4, 8, 16, 32)
# one stage more, as mmdet's rtmdet_l_swin_b_p6 has it
EXTRA_STRIDE = 64


def match_stages(maps: Sequence[FeatureMap], task: str, name: str) -> list[int]:
    """The stage for each map.

    Boxes are told from strides, so in detection a stage has the stride of the map. In segmentation, where old backbones
    are dilated and heads resize what they read, the deepest map is that of the last stage, as in the published Swin
    models, and each other one that of the stage with its stride, or of the next one that is free.

    Args:
        maps (Sequence[FeatureMap]): Maps of the old backbone, in order.
        task (str): ``'detection'`` or ``'segmentation'``.
        name (str): The old backbone, for the message.

    Returns:
        list[int]: Increasing numbers of stages.

    Raises:
        SwapRefused: If Swin has no such stages.
    """
    strides = [item.stride for item in maps]
    if len(maps) > 1 and len(set(maps)) == 1:
        raise SwapRefused(f'{name} is a plain transformer: its {len(maps)} maps have one size, and what reads them is '
                          'made for that, while the maps of Swin are a pyramid')
    if task == 'segmentation' and strides[-1] <= STRIDES[-1]:
        if len(maps) > len(STRIDES):
            raise SwapRefused(f'{name} gives {len(maps)} maps, and Swin has {len(STRIDES)} stages')
        return _by_depth(strides)
    allowed = (*STRIDES, EXTRA_STRIDE)
    if any(a >= b for a, b in zip(strides, strides[1:])) or not set(strides) <= set(allowed):
        raise SwapRefused(f'{name} gives maps at strides {", ".join(map(str, strides))}, and stages of Swin have '
                          f'{", ".join(map(str, STRIDES))}')
    return [allowed.index(stride) for stride in strides]


def _by_depth(strides: Sequence[int]) -> list[int]:
    stages = []
    for i, stride in enumerate(strides):
        own = next(stage for stage, of_stage in enumerate(STRIDES) if stride <= of_stage)
        last = len(STRIDES) - (len(strides) - i)
        lowest = stages[-1] + 1 if stages else 0
        stages.append(last if i == len(strides) - 1 else min(max(own, lowest), last))
    return stages
