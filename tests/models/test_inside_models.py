"""Inside a detector and a segmentor: the extents reach the backbone, and its features do not depend on the batch."""
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData, PixelData
from oracles.cases import SMALL, randomise, token_size
from oracles.compare import assert_forward

SIZES = [(61, 40), (33, 90)]
BACKBONE = dict(type='swin_rpe_mm.SwinRPE', **SMALL, window_size=3)
VARIANTS = {'Swin': {}, 'SwinV2': dict(arch='v2-nano'), 'halo': dict(halo=2, pooled_neighbours=1)}
NORM = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)


def detector(**backbone) -> torch.nn.Module:
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules
    register_all_modules(init_default_scope=True)
    return MODELS.build(ConfigDict(
        type='RetinaNet', data_preprocessor=dict(type='swin_rpe_mm.DetDataPreprocessor', **NORM, pad_size_divisor=32),
        backbone=BACKBONE | backbone, neck=dict(type='FPN', in_channels=[8, 16, 32, 64], out_channels=8, num_outs=5),
        bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=8, feat_channels=8, stacked_convs=1,
                       anchor_generator=dict(type='AnchorGenerator', octave_base_scale=4, scales_per_octave=1,
                                             ratios=[1.0], strides=[4, 8, 16, 32, 64])),
        train_cfg=dict(assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0),
                       sampler=dict(type='PseudoSampler'), allowed_border=-1, pos_weight=-1),
        test_cfg=dict(nms_pre=10, min_bbox_size=0, score_thr=0.0, nms=dict(type='nms', iou_threshold=0.5),
                      max_per_img=5)))


def segmentor(**backbone) -> torch.nn.Module:
    from mmseg.registry import MODELS
    from mmseg.utils import register_all_modules
    register_all_modules(init_default_scope=True)
    return MODELS.build(ConfigDict(
        type='EncoderDecoder', backbone=BACKBONE | backbone,
        data_preprocessor=dict(type='swin_rpe_mm.SegDataPreprocessor', **NORM, size=(96, 96)),
        decode_head=dict(type='FCNHead', in_channels=64, channels=8, in_index=3, num_convs=1, num_classes=3),
        train_cfg=dict(), test_cfg=dict(mode='whole')))


def det_batch(sizes) -> dict:
    from mmdet.structures import DetDataSample
    return dict(inputs=images(sizes), data_samples=[
        DetDataSample(metainfo=dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0)), gt_instances=InstanceData(
            bboxes=torch.tensor([[2.0, 3, 20, 30]]), labels=torch.tensor([1]))) for size in sizes])


def seg_batch(sizes) -> dict:
    from mmseg.structures import SegDataSample
    return dict(inputs=images(sizes), data_samples=[
        SegDataSample(metainfo=dict(img_shape=size, ori_shape=size),
                      gt_sem_seg=PixelData(data=torch.ones(1, *size, dtype=torch.long))) for size in sizes])


def images(sizes) -> list[torch.Tensor]:
    """Images whose content depends on their size alone."""
    return [torch.randint(0, 256, (3, *size), generator=torch.Generator().manual_seed(size[0]), dtype=torch.uint8)
            for size in sizes]


def features_of_step(model, data, training: bool) -> tuple[torch.Tensor, ...]:
    """What the backbone gives while the model takes a training or testing step."""
    seen = []
    handle = model.backbone.register_forward_hook(lambda module, args, out: seen.append(out))
    batch = model.data_preprocessor(data, training)
    if training:
        losses, _ = model.parse_losses(model(**batch, mode='loss'))
        losses.backward()
        assert losses.isfinite()
        assert all(value.grad is None or value.grad.isfinite().all() for value in model.parameters())
    else:
        with torch.no_grad():
            model(**batch, mode='predict')
    handle.remove()
    return seen[0]


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('build, batch', [
    pytest.param(detector, det_batch, marks=pytest.mark.needs_ops), (segmentor, seg_batch)])
@pytest.mark.parametrize('variant', VARIANTS)
def test_features_of_an_image_do_not_depend_on_its_batch(variant, build, batch, training):
    model = build(**VARIANTS[variant])
    randomise(model.backbone)
    model.train(training)
    sizes = SIZES if training or build is detector else [SIZES[0]] * 2  # mmseg tests batches of one size only
    together = features_of_step(model, batch(sizes), training)
    for i, size in enumerate(sizes):
        for stage, alone in enumerate(features_of_step(model, batch([size]), training)):
            h, w = token_size(size, stage)
            assert (together[stage][i, :, h:] == 0).all() and (together[stage][i, :, :, w:] == 0).all()
            assert_forward(together[stage][i, :, :h, :w], alone[0, :, :h, :w], 'inside detector and segmentor')
