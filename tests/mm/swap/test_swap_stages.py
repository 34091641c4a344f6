"""Which stage takes the place of which map."""
import pytest

from swin_rpe_mm import SwapRefused
from swin_rpe_mm.mm.swap.feature_maps import FeatureMap
from swin_rpe_mm.mm.swap.stages import match_stages


def stages(task: str, *strides: int) -> list:
    return match_stages([FeatureMap(8 * (i + 1), stride) for i, stride in enumerate(strides)], task, 'Net')


@pytest.mark.parametrize(('strides', 'expected'), [
    ((4, 8, 16, 32), [0, 1, 2, 3]), ((8, 16, 32), [1, 2, 3]), ((16, ), [2]), ((4, 32), [0, 3]),
    ((8, 16, 32, 64), [1, 2, 3, 4])])
def test_strides_of_detectors_stay(strides, expected):
    assert stages('detection', *strides) == expected


@pytest.mark.parametrize(('strides', 'expected'), [
    ((4, 8, 16, 32), [0, 1, 2, 3]), ((4, 8, 8, 8), [0, 1, 2, 3]), ((4, 8, 16, 16), [0, 1, 2, 3]), ((8, ), [3]),
    ((8, 8), [1, 3]), ((4, 8), [0, 3]), ((2, 4, 8), [0, 1, 3]), ((2, 2, 2, 2), [0, 1, 2, 3]), ((16, 32), [2, 3]),
    ((8, 16, 32, 64), [1, 2, 3, 4])])
def test_segmentors_read_the_last_stage(strides, expected):
    assert stages('segmentation', *strides) == expected


@pytest.mark.parametrize(('task', 'strides', 'words'), [
    ('detection', (2, 4), 'Net gives maps at strides 2, 4, and stages of Swin have 4, 8, 16, 32'),
    ('detection', (8, 8), 'strides 8, 8'), ('detection', (32, 16), 'strides 32, 16'),
    ('segmentation', (2, 4, 8, 16, 32), 'Net gives 5 maps, and Swin has 4 stages'),
    ('segmentation', (64, 128), 'strides 64, 128')])
def test_strides_that_no_stage_has(task, strides, words):
    with pytest.raises(SwapRefused, match=words):
        stages(task, *strides)


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_plain_transformers(task):
    with pytest.raises(SwapRefused, match='its 4 maps have one size'):
        match_stages([FeatureMap(768, 16)] * 4, task, 'ViT')
