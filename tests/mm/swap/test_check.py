"""One training step and one test step of swapped models, and what is said when a model cannot take them."""
from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner.checkpoint import CheckpointLoader

from swin_rpe_mm import InputError
from swin_rpe_mm.mm.swap import swap_backbone
from swin_rpe_mm.mm.swap.check import CheckFailed, build, check, of_package, prepare
from swin_rpe_mm.mm.swap.random_batches import SIZES, random_batch

DETECTORS = [
    # boxes, masks and a label map
    'panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py',
    # proposals that come with the images
    'fast_rcnn/fast-rcnn_r50_fpn_1x_coco.py',
    # labelled and unlabelled images
    'soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco.py',
    # videos, and a model whose backbone lies in its detector
    'qdtrack/qdtrack_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test-mot17halfval.py',
    # a teacher with a checkpoint of its own
    'ld/ld_r18-gflv1-r101_fpn_1x_coco.py',
]
SEGMENTORS = [
    'sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py',
    'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
]


def shipped(package: str, path: str) -> Config:
    return Config.fromfile(Path(find_spec(package).submodule_search_locations[0], '.mim/configs', path))


def fcn() -> Config:
    return swap_backbone(shipped('mmseg', 'fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py'), arch='nano').cfg


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """Nothing reads a checkpoint."""
    def refuse(*args, **kwargs):
        raise AssertionError('a checkpoint was asked for')
    monkeypatch.setattr(CheckpointLoader, 'load_checkpoint', refuse)
    monkeypatch.setattr(torch.hub, 'load_state_dict_from_url', refuse)


@pytest.mark.needs_ops
@pytest.mark.parametrize('path', DETECTORS)
def test_detectors_train_and_test(path):
    result = check(swap_backbone(shipped('mmdet', path), arch='nano').cfg)
    assert 0 < result.backbone_parameters < result.parameters
    assert result.losses['loss'] > 0
    assert 'pred_' in result.predictions
    assert not result.without_gradient


@pytest.mark.parametrize('path', SEGMENTORS)
def test_segmentors_train_and_test(path):
    result = check(swap_backbone(shipped('mmseg', path), arch='nano').cfg)
    assert result.losses['loss'] > 0
    h, w = SIZES[1]
    assert result.predictions == f'pred_sem_seg {2 * h}x{2 * w}'  # the size that the image had in its file


def test_parameters_are_counted():
    cfg = fcn()
    result = check(cfg)
    with of_package(cfg):
        model = build(prepare(cfg))
    assert result.parameters == sum(p.numel() for p in model.parameters())
    assert result.backbone_parameters == sum(p.numel() for p in model.backbone.parameters())


def test_config_and_random_numbers_stay():
    cfg = fcn()
    before, state = deepcopy(cfg.to_dict()), torch.random.get_rng_state()
    first = check(cfg)
    assert cfg.to_dict() == before
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(1)
    assert check(cfg).losses == first.losses


@pytest.mark.parametrize('change, step, words', [
    (dict(decode_head=dict(type='NoSuchHead')), 'building the model', 'KeyError: .*NoSuchHead'),
    (dict(decode_head=dict(in_channels=7)), 'the training step', 'RuntimeError: .* channels'),
    (dict(decode_head=dict(loss_decode=dict(loss_weight=float('nan')))), 'the training step', 'the losses are .*nan'),
    (dict(test_cfg=dict(mode='whale')), 'the test step', 'whale'),
])
def test_failure_names_the_step(change, step, words):
    cfg = fcn()
    cfg.merge_from_dict(dict(model=change))
    with pytest.raises(CheckFailed, match=f'^{step} failed: .*{words}') as caught:
        check(cfg)
    assert caught.value.step == step
    assert caught.value.__cause__ is not None


def test_parameters_without_a_gradient():
    """The norm of a stage that no head reads: it stops training in several processes, unless that is set."""
    cfg = fcn()
    assert cfg.model.backbone.out_indices == (2, 3)
    cfg.model.backbone.out_indices = (1, 2, 3)
    cfg.model.auxiliary_head.in_index, cfg.model.decode_head.in_index = 1, 2
    with pytest.raises(CheckFailed, match='2 trainable parameters .* get no gradient, such as backbone.norm1.weight'):
        check(cfg)
    cfg.find_unused_parameters = True
    assert check(cfg).without_gradient == ('backbone.norm1.weight', 'backbone.norm1.bias')


def test_frozen_parameters_need_no_gradient():
    cfg = fcn()
    cfg.model.backbone.frozen_stages = 2
    assert not check(cfg).without_gradient


def test_wrong_argument_stays_one_sentence():
    cfg = fcn()
    cfg.model.backbone.rpe = dict(type='NoSuchRPE')
    with pytest.raises(InputError, match="got 'NoSuchRPE'"):
        check(cfg)


def test_config_without_a_model():
    with pytest.raises(InputError, match='has no model to check'):
        check(Config(dict(default_scope='mmseg')))


@pytest.mark.needs_ops
def test_text_encoder_cannot_be_checked():
    cfg = shipped('mmdet', 'grounding_dino/grounding_dino_swin-t_finetune_16xb2_1x_coco.py')
    with pytest.raises(InputError, match='holds a BertModel, which is downloaded'):
        check(cfg)


def batch_of(package: str, path: str, training: bool = True) -> dict:
    cfg = prepare(swap_backbone(shipped(package, path), arch='nano').cfg)
    with of_package(cfg):
        return random_batch(build(cfg), cfg, training)


@pytest.mark.needs_ops
@pytest.mark.parametrize('path, classes, semantic, masks', [
    ('htc/htc_r50_fpn_1x_coco.py', 80, 183, True),
    ('mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py', 80, 133, True),
    ('pascal_voc/faster-rcnn_r50_fpn_1x_voc0712.py', 20, 0, False),
    ('rpn/rpn_r50_fpn_1x_coco.py', 1, 0, False),
])
def test_boxes_and_labels_fit_the_model(path, classes, semantic, masks):
    batch = batch_of('mmdet', path)
    seen = torch.cat([sample.gt_instances.labels for sample in batch['data_samples']])
    assert 0 <= seen.min() and seen.max() < classes
    assert classes == 1 or seen.unique().numel() > 1
    for image, sample in zip(batch['inputs'], batch['data_samples']):
        h, w = sample.img_shape
        assert image.shape == (3, h, w)
        left, top, right, bottom = sample.gt_instances.bboxes.unbind(1)
        assert (left >= 0).all() and (right <= w).all() and (right - left > 8).all()
        assert (top >= 0).all() and (bottom <= h).all() and (bottom - top > 8).all()
        assert ('masks' in sample.gt_instances) == masks
        assert not masks or sample.gt_instances.masks.masks.any((1, 2)).all()
        assert ('gt_sem_seg' in sample) == (semantic > 0)
        if semantic:
            labels = sample.gt_sem_seg.sem_seg
            assert labels.shape == (1, h, w)
            assert classes < labels.max() < semantic


@pytest.mark.needs_ops
def test_proposals_are_for_models_without_their_own():
    """Given to a model that has some, they would take the place of its own in testing."""
    for training in (True, False):
        sample, _ = batch_of('mmdet', 'fast_rcnn/fast-rcnn_r50_fpn_1x_coco.py', training)['data_samples']
        assert len(sample.proposals) > 0
        sample, _ = batch_of('mmdet', 'faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', training)['data_samples']
        assert 'proposals' not in sample


@pytest.mark.needs_ops
@pytest.mark.parametrize('path, sizes', [
    ('ssd/ssd300_coco.py', {(300, 300)}),
    ('legacy_1.x/ssd300_coco_v1.py', {(300, 300)}),
    ('yolact/yolact_r50_1xb8-55e_coco.py', {SIZES[0]}),
    ('ddod/ddod_r50_fpn_1x_coco.py', {(384, 384), (310, 351)}),
])
def test_images_of_sizes_that_a_model_needs(path, sizes):
    assert {tuple(image.shape[1:]) for image in batch_of('mmdet', path)['inputs']} == sizes


def test_label_maps_fit_the_model():
    batch = batch_of('mmseg', 'fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py')
    assert [image.shape[1:] for image in batch['inputs']] == [torch.Size(size) for size in SIZES]
    for sample in batch['data_samples']:
        labels = sample.gt_sem_seg.data
        assert labels.shape == (1, *sample.img_shape)
        assert (labels == 255).any() and labels[labels != 255].max() < 19
        assert set(sample.gt_edge_map.data.unique().tolist()) == {0, 1}
    assert len(batch_of('mmseg', 'fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py', training=False)['inputs']) == 1
