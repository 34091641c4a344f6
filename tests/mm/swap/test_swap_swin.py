"""Models that have Swin already: types change, shapes of weights and their names in mm do not."""
from __future__ import annotations

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from oracles.cases import pixels
from shipped import shipped

from swin_rpe_mm import swap_backbone
from swin_rpe_mm.checkpoints import to_mm_names
from swin_rpe_mm.mm.swap import write_config

CASES = [
    pytest.param('mmdet', 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py', marks=pytest.mark.needs_ops),
    # five stages
    pytest.param('mmdet', 'rtmdet/rtmdet_l_swin_b_p6_4xb16-100e_coco.py', marks=pytest.mark.needs_ops),
    pytest.param('mmdet', 'grounding_dino/grounding_dino_swin-t_finetune_16xb2_1x_coco.py',
                 marks=pytest.mark.needs_ops),
    ('mmseg', 'swin/swin-base-patch4-window12-in1k-384x384-pre_upernet_8xb2-160k_ade20k-512x512.py'),
]


def differences(old: Config, new: Config) -> dict:
    """Settings that are not the same, by path."""
    found = {}

    def compare(a, b, path):
        if isinstance(a, dict) and isinstance(b, dict):
            for key in {**a, **b}:
                compare(a.get(key), b.get(key), f'{path}.{key}')
        elif a != b:
            found[path[1:]] = b

    compare(old.to_dict(), new.to_dict(), '')
    return found


@pytest.mark.parametrize(('package', 'path'), CASES)
def test_only_types_change(package, path, tmp_path):
    source = shipped(package, path)
    swap = swap_backbone(source)
    assert swap.keeps_weights and 'checkpoints of the source load' in '\n'.join(swap.notes)
    preprocessor = dict(mmdet='Det', mmseg='Seg')[package]
    assert differences(source, swap.cfg) == {
        'model.backbone.type': 'swin_rpe_mm.SwinRPE',
        'model.data_preprocessor.type': f'swin_rpe_mm.{preprocessor}DataPreprocessor',
        'custom_imports': dict(imports=['swin_rpe_mm'], allow_failed_imports=False)}
    if package == 'mmdet':
        write_config(swap, tmp_path / 'out.py')
        assert len((tmp_path / 'out.py').read_text().splitlines()) == 3


@pytest.mark.parametrize(('package', 'path'), [CASES[0], CASES[3]])
def test_weights_load_and_features_are_the_same(package, path):
    source = shipped(package, path)
    source.model.backbone.update(init_cfg=None, depths=[1, 1, 2, 1], embed_dims=24, num_heads=[1, 2, 4, 8])
    new = swap_backbone(source).cfg
    new.model.backbone.mask_padding = False
    with DefaultScope.overwrite_default_scope(package):
        old, ours = MODELS.build(source.model.backbone), MODELS.build(new.model.backbone)
    # the index of the bias table follows from the window
    theirs = {key: value for key, value in old.state_dict().items() if 'relative_position_index' not in key}
    own = ours.state_dict()
    assert {key: value.shape for key, value in theirs.items()} == {
        key: value.shape for key, value in to_mm_names(own, own._metadata).items()}
    ours.load_state_dict(old.state_dict(), strict=True)
    old.eval()
    ours.eval()
    image = pixels(2, 3, 75, 64)
    with torch.no_grad():
        for a, b in zip(old(image), ours(image)):
            assert (a - b).abs().max() < 1e-5


@pytest.mark.needs_ops
def test_what_is_asked_for_is_added():
    source = shipped('mmdet', 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py')
    swap = swap_backbone(source, rpe=[dict(type='TableRPE'), dict(type='RotaryRPE')], window_size=12,
                         pretrained='mine.pth', drop_path_rate=0.1)
    backbone = dict(swap.cfg.model.backbone)
    assert backbone['rpe'] == [dict(type='TableRPE'), dict(type='RotaryRPE')] and backbone['window_size'] == 12
    assert backbone['init_cfg'] == dict(type='Pretrained', checkpoint='mine.pth') and backbone['drop_path_rate'] == 0.1
    assert not swap.keeps_weights and swap.cfg.optim_wrapper.optimizer == source.optim_wrapper.optimizer
    keys = source.optim_wrapper.paramwise_cfg.custom_keys
    added = {key: dict(decay_mult=0.) for key in ('.rpe.', 'logit_scale', 'window_pos_embed')}
    assert swap.cfg.optim_wrapper.paramwise_cfg.custom_keys == {**keys, **added}
    assert swap_backbone(source, rpe=None, keep_optimizer=True).cfg.optim_wrapper == source.optim_wrapper


@pytest.mark.needs_ops
def test_another_size_is_another_backbone():
    swap = swap_backbone(shipped('mmdet', 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'), arch='base')
    assert swap.cfg.model.neck.in_channels == [128, 256, 512, 1024] and not swap.keeps_weights
    assert swap.cfg.model.backbone.init_cfg.checkpoint.endswith('swin_base_patch4_window7_224_22k.pth')


@pytest.mark.needs_ops
def test_swapping_again_changes_what_is_asked_for():
    once = swap_backbone(shipped('mmdet', 'retinanet/retinanet_r50_fpn_1x_coco.py')).cfg
    twice = swap_backbone(once, window_size=12)
    assert differences(once, twice.cfg) == {'model.backbone.window_size': 12}
    assert not twice.keeps_weights and 'resampled for the window' in '\n'.join(twice.notes)
    assert 'does not tell the extents' not in '\n'.join(twice.notes)
