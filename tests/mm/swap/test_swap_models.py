"""Models of every kind on SwinRPE: which stages are returned, what reads them, and what the file says."""
from __future__ import annotations

from copy import deepcopy

import pytest
from mmengine.config import Config
from shipped import shipped

import swin_rpe_mm
from swin_rpe_mm import InputError, SwapRefused, swap_backbone
from swin_rpe_mm.mm.swap import write_config
from swin_rpe_mm.mm.swap.check import check

C = [96, 192, 384, 768]
# config, stages that are returned (None for all), and settings of the model
DETECTORS = [
    ('faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', None, {'neck.in_channels': C}),
    # levels that the neck skips are not returned, as in mmdet's RetinaNet on Swin
    ('retinanet/retinanet_r50_fpn_1x_coco.py', (1, 2, 3), {'neck.in_channels': C[1:], 'neck.start_level': 0}),
    ('dino/dino-4scale_r50_8xb2-12e_coco.py', (1, 2, 3), {'neck.in_channels': C[1:]}),
    ('detr/detr_r50_8xb2-150e_coco.py', (3, ), {'neck.in_channels': C[3:]}),
    # deepest map first
    ('yolo/yolov3_d53_8xb8-320-273e_coco.py', (1, 2, 3), {'neck.in_channels': C[:0:-1]}),
    ('yolox/yolox_s_8xb8-300e_coco.py', (1, 2, 3), {'neck.in_channels': C[1:], 'neck.out_channels': 128}),
    # SSD's neck hands the maps on, and its head reads them
    ('ssd/ssd300_coco.py', (1, 2), {
        'neck.in_channels': (192, 384),
        'neck.out_channels': (192, 384, 512, 256, 256, 256),
        'bbox_head.in_channels': (192, 384, 512, 256, 256, 256)
    }),
    # its neck reads the deepest of four maps
    ('centernet/centernet_r18-dcnv2_8xb16-crop512-140e_coco.py', (3, ), {'neck.in_channels': 768}),
    ('hrnet/faster-rcnn_hrnetv2p-w18-1x_coco.py', None, {'neck.in_channels': C}),
    ('libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco.py', None, {'neck.0.in_channels': C, 'neck.1.in_channels': 256}),
    # no neck: the head's pixel decoder reads the maps
    ('mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py', None, {'panoptic_head.in_channels': C}),
    # one dilated map of stride 16, which anchors and boxes are made for
    ('faster_rcnn/faster-rcnn_r50-caffe-dc5_1x_coco.py', (2, ), {
        'rpn_head.in_channels': 384,
        'roi_head.bbox_roi_extractor.out_channels': 384,
        'roi_head.bbox_roi_extractor.featmap_strides': [16],
        'roi_head.bbox_head.in_channels': 384
    }),
    # a fifth stage, as mmdet's Swin for P6 has it
    ('rtmdet/rtmdet_x_p6_4xb8-300e_coco.py', (1, 2, 3, 4), {
        'neck.in_channels': [192, 384, 768, 1536], 'backbone.depths': (2, 2, 6, 2, 1)
    }),
    # this operator of mmcv has no implementation on the CPU
    ('carafe/faster-rcnn_r50_fpn-carafe_1x_coco.py', None, {'neck.in_channels': C}),
]
WRAPPED = [
    ('soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco.py', None, C),
    ('bytetrack/bytetrack_yolox_x_8xb4-80e_crowdhuman-mot17halftrain_test-mot17halfval.py', (1, 2, 3), C[1:]),
    ('deepsort/deepsort_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test-mot17halfval.py', None, C),
]
SEGMENTORS = [
    # dilated maps are those of the last stages; what nobody reads is not returned
    ('pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py', (2, 3), {
        'decode_head.in_channels': 768, 'decode_head.in_index': 1,
        'auxiliary_head.in_channels': 384, 'auxiliary_head.in_index': 0
    }),
    ('deeplabv3plus/deeplabv3plus_r50-d8_4xb2-40k_cityscapes-512x1024.py', (0, 2, 3), {
        'decode_head.in_channels': 768, 'decode_head.in_index': 2, 'decode_head.c1_in_channels': 96,
        'auxiliary_head.in_index': 1
    }),
    ('upernet/upernet_r50_4xb2-40k_cityscapes-512x1024.py', None, {
        'decode_head.in_channels': C, 'decode_head.in_index': [0, 1, 2, 3], 'auxiliary_head.in_channels': 384
    }),
    # this head makes use of the last of its three maps alone
    ('encnet/encnet_r50-d8_4xb2-40k_cityscapes-512x1024.py', (2, 3), {
        'decode_head.in_channels': [768], 'decode_head.in_index': (1, )
    }),
    ('ann/ann_r50-d8_4xb2-40k_cityscapes-512x1024.py', (2, 3), {
        'decode_head.in_channels': [384, 768], 'decode_head.in_index': [0, 1]
    }),
    # a cascade of two heads
    ('ocrnet/ocrnet_hr18_4xb2-40k_cityscapes-512x1024.py', None, {
        'decode_head.0.in_channels': C, 'decode_head.1.in_channels': C, 'decode_head.1.channels': 512
    }),
    # its first head gives the prior of the second, which must have the size of the second's map
    ('ocrnet/ocrnet_r101-d8_4xb2-40k_cityscapes-512x1024.py', (3, ), {
        'decode_head.0.in_channels': 768, 'decode_head.0.in_index': 0,
        'decode_head.1.in_channels': 768, 'decode_head.1.in_index': 0
    }),
    # the neck hands maps on, and heads read them
    ('fastfcn/fastfcn_r50-d32_jpu_psp_4xb2-80k_cityscapes-512x1024.py', (1, 2, 3), {
        'neck.in_channels': (192, 384, 768), 'decode_head.in_channels': 2048, 'auxiliary_head.in_channels': 384,
        'auxiliary_head.in_index': 1
    }),
    # a head inside a head
    ('knet/knet-s3_r50-d8_pspnet_8xb2-adamw-80k_ade20k-512x512.py', (2, 3), {
        'decode_head.kernel_generate_head.in_channels': 768, 'decode_head.kernel_generate_head.in_index': 1,
        'decode_head.kernel_update_head.0.in_channels': 512
    }),
    ('segmenter/segmenter_vit-s_fcn_8xb1-160k_ade20k-512x512.py', (3, ), {
        'decode_head.in_channels': 768, 'decode_head.channels': 768
    }),
]


def get(node, path: str):
    for key in path.split('.'):
        node = node[int(key)] if key.isdigit() else node[key]
    return node


def check_swapped(swap, place, stages, settings, preprocessor, out):
    backbone = place.backbone
    assert backbone.type == 'swin_rpe_mm.SwinRPE' and backbone.get('out_indices') == stages
    assert backbone.init_cfg.checkpoint.endswith('swin_tiny_patch4_window7_224.pth')
    assert {key: get(place, key) for key in settings} == settings
    assert preprocessor is None or swap.cfg.model.data_preprocessor.type == preprocessor
    assert swap.cfg.custom_imports.imports[-1] == 'swin_rpe_mm' and not swap.keeps_weights
    assert swap.cfg.optim_wrapper.optimizer.type == 'AdamW' and swap.cfg.load_from is None
    write_config(swap, out)
    assert without_scopes(Config.fromfile(out).to_dict()) == without_scopes(swap.cfg.to_dict())


def without_scopes(node):
    if isinstance(node, dict):
        return {key: without_scopes(value) for key, value in node.items() if key != '_scope_'}
    return [without_scopes(item) for item in node] if isinstance(node, (list, tuple)) else node


@pytest.mark.needs_ops
@pytest.mark.parametrize(('path', 'stages', 'settings'), DETECTORS, ids=[case[0] for case in DETECTORS])
def test_detectors(path, stages, settings, tmp_path):
    source = shipped('mmdet', path)
    before = deepcopy(source.to_dict())
    swap = swap_backbone(source)
    assert source.to_dict() == before
    out = tmp_path / 'out.py'
    check_swapped(swap, swap.cfg.model, stages, settings, 'swin_rpe_mm.DetDataPreprocessor', out)
    assert out.read_text().startswith(f"_base_ = 'mmdet::{path}'\ncustom_imports = ")
    assert len(out.read_text().splitlines()) < 60


@pytest.mark.needs_ops
@pytest.mark.parametrize(('path', 'stages', 'channels'), WRAPPED, ids=[case[0] for case in WRAPPED])
def test_wrapped_detectors(path, stages, channels, tmp_path):
    source = shipped('mmdet', path)
    source.setdefault('optim_wrapper', dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.02)))
    swap = swap_backbone(source)
    check_swapped(swap, swap.cfg.model.detector, stages, {'neck.in_channels': channels}, None, tmp_path / 'out.py')
    assert swap.cfg.model.get('reid') == source.model.get('reid')
    assert swap.cfg.model.detector.get('init_cfg') is None


@pytest.mark.needs_ops
def test_branches_share_one_data_preprocessor():
    swap = swap_backbone(shipped('mmdet', WRAPPED[0][0]))
    inner = swap.cfg.model.data_preprocessor.data_preprocessor
    assert swap.cfg.model.data_preprocessor.type == 'MultiBranchDataPreprocessor'
    assert inner.type == 'swin_rpe_mm.DetDataPreprocessor'
    assert (inner.mean, inner.bgr_to_rgb, inner.pad_size_divisor) == ([123.675, 116.28, 103.53], True, 32)


@pytest.mark.parametrize(('path', 'stages', 'settings'), SEGMENTORS, ids=[case[0] for case in SEGMENTORS])
def test_segmentors(path, stages, settings, tmp_path):
    swap = swap_backbone(shipped('mmseg', path))
    check_swapped(swap, swap.cfg.model, stages, settings, 'swin_rpe_mm.SegDataPreprocessor', tmp_path / 'out.py')
    assert swap.cfg.model.get('pretrained') is None


def test_prior_of_ocr_has_the_size_of_its_map():
    swap = swap_backbone(shipped('mmseg', 'ocrnet/ocrnet_r101-d8_4xb2-40k_cityscapes-512x1024.py'), arch='nano')
    assert 'decode_head[0], FCNHead, reads the same map as decode_head[1], OCRHead' in '\n'.join(swap.notes)
    assert check(swap.cfg).without_gradient == ()


@pytest.mark.needs_ops
def test_what_is_said():
    notes = '\n'.join(swap_backbone(shipped('mmdet', 'dcn/mask-rcnn_r50-dconv-c3-c5_fpn_1x_coco.py')).notes)
    for words in ('model.backbone: ResNet becomes SwinRPE, arch tiny, drop path 0.2',
                  '512 channels at stride 8 -> 192 at 8',
                  'model.neck.in_channels: [256, 512, 1024, 2048] -> [96, 192, 384, 768]',
                  "the old backbone's dcn go with it", 'frozen_stages=1 goes with it too',
                  'AdamW with lr=0.0001 and weight_decay=0.05', 'was SGD with lr=0.02', 'warm-up: 1000 iterations'):
        assert words in notes
    notes = '\n'.join(swap_backbone(shipped('mmseg', SEGMENTORS[0][0])).notes)
    assert 'dilations and pool scales of heads are kept' in notes and 'pretrained of EncoderDecoder is dropped' in notes


@pytest.mark.needs_ops
def test_neck_that_counts_on_a_map_it_does_not_read():
    swap = swap_backbone(shipped('mmdet', 'nas_fcos/nas-fcos_r50-caffe_fpn_nashead-gn-head_4xb4-1x_coco.py'))
    assert swap.cfg.model.neck.in_channels == C and swap.cfg.model.neck.start_level == 1
    assert 'out_indices' not in swap.cfg.model.backbone and swap.cfg.find_unused_parameters
    assert 'no gradient reaches the norms of stages [0]' in '\n'.join(swap.notes)


@pytest.mark.needs_ops
def test_arguments():
    path = 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
    source = shipped('mmdet', path)
    source.load_from = 'old.pth'
    swap = swap_backbone(source, arch='v2-base', rpe='TableRPE', window_size=(6, 8), pretrained='mine.pth',
                         drop_path_rate=0.4)
    backbone = dict(swap.cfg.model.backbone)
    assert backbone == dict(
        type='swin_rpe_mm.SwinRPE', arch='v2-base', rpe=dict(type='TableRPE'), window_size=(6, 8), drop_path_rate=0.4,
        init_cfg=dict(type='Pretrained', checkpoint='mine.pth'))
    assert swap.cfg.model.neck.in_channels == [128, 256, 512, 1024]
    assert swap.cfg.load_from is None and 'load_from is dropped' in '\n'.join(swap.notes)
    swap = swap_backbone(source, arch='nano', rpe=None, pretrained=None)
    assert dict(swap.cfg.model.backbone) == dict(
        type='swin_rpe_mm.SwinRPE', arch='nano', rpe=None, drop_path_rate=0.)
    with pytest.raises(InputError, match="arch must be one of nano, tiny.*got 'huge'"):
        swap_backbone(source, arch='huge')


@pytest.mark.needs_ops
def test_normalisation_follows_the_weights():
    caffe = shipped('mmdet', 'mask_rcnn/mask-rcnn_r50-caffe_fpn_1x_coco.py')
    kept = dict(caffe.model.data_preprocessor)
    changed = swap_backbone(caffe).cfg.model.data_preprocessor
    ours = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
    assert dict(changed) == {**kept, **ours, 'type': 'swin_rpe_mm.DetDataPreprocessor'}
    random = swap_backbone(caffe, pretrained=None).cfg.model.data_preprocessor
    assert dict(random) == {**kept, 'type': 'swin_rpe_mm.DetDataPreprocessor'}


def test_images_of_other_channels():
    source = shipped('mmseg', 'upernet/upernet_r50_4xb2-40k_cityscapes-512x1024.py')
    source.model.backbone.in_channels = 5
    source.model.data_preprocessor.update(mean=[1.] * 5, std=[2.] * 5, bgr_to_rgb=False)
    swap = swap_backbone(source)
    assert swap.cfg.model.backbone.in_channels == 5 and swap.cfg.model.backbone.input_weights == 'mean'
    assert swap.cfg.model.data_preprocessor.mean == [1.] * 5


def test_data_preprocessor_beside_the_model():
    source = shipped('mmseg', 'upernet/upernet_r50_4xb2-40k_cityscapes-512x1024.py')
    source.data_preprocessor = source.model.pop('data_preprocessor')
    inner = swap_backbone(source).cfg.model.data_preprocessor
    assert inner.type == 'swin_rpe_mm.SegDataPreprocessor' and inner.size == (512, 1024)


def test_channels_are_measured():
    """They are the backbone's own, whatever its name says; a neck that does not fit is told."""
    source = shipped('mmseg', 'sem_fpn/fpn_r50_4xb2-80k_cityscapes-512x1024.py')
    source.model.backbone.base_channels = 32
    with pytest.raises(InputError, match=r'FPN .*in_channels=\[256, 512, 1024, 2048\]|FPN cannot be built and run'):
        swap_backbone(source)
    source.model.neck.in_channels = [128, 256, 512, 1024]
    with_half = swap_backbone(source)
    assert with_half.cfg.model.neck.in_channels == C


def test_models_without_a_backbone():
    source = shipped('mmseg', 'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py')
    source.model.backbone.type = 'NoSuchNet'
    with pytest.raises(InputError, match='NoSuchNet cannot be built and run here.*NoSuchNet is not in the'):
        swap_backbone(source)
    del source.model['backbone']
    with pytest.raises(InputError, match='the model must have one backbone, found none'):
        swap_backbone(source)
    source.pop('model')
    with pytest.raises(InputError, match='lacks model'):
        swap_backbone(source)
    with pytest.raises(InputError, match='config file nowhere.py does not exist'):
        swap_backbone('nowhere.py')


def test_head_that_does_not_fit():
    source = shipped('mmseg', 'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py')
    source.model.decode_head.in_channels = source.model.auxiliary_head.in_channels = 7
    with pytest.raises(InputError, match='nothing beside model.backbone is found that reads'):
        swap_backbone(source)


def test_public_names():
    assert issubclass(SwapRefused, InputError)
    assert {'swap_backbone', 'SwapRefused'} <= set(swin_rpe_mm.__all__)
