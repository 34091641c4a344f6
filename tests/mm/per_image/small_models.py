"""Whole models of mmdet's and mmseg's own configs, made small, on SwinRPE; random images of many sizes for them."""
from __future__ import annotations

import importlib
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData
from oracles.cases import randomise
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

CHANNELS = (16, 32, 64, 128)
BACKBONE = dict(
    type='swin_rpe_mm.SwinRPE', embed_dims=CHANNELS[0], depths=(2, 2, 2, 2), num_heads=(1, 2, 2, 4), drop_path_rate=0.)
CLASSES = 3
SHORTEST, LONGEST = 48, 160  # sides of images, in pixels

DETECTORS = {
    'Mask R-CNN': 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    'Mask R-CNN with group norm': 'gn/mask-rcnn_r50_fpn_gn-all_2x_coco.py',
    'Cascade Mask R-CNN': 'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py',
    'RetinaNet': 'retinanet/retinanet_r50_fpn_1x_coco.py',
    'FCOS': 'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py',
    'ATSS': 'atss/atss_r50_fpn_1x_coco.py',
    'DINO': 'dino/dino-4scale_r50_8xb2-12e_coco.py',
    'Deformable DETR': 'deformable_detr/deformable-detr_r50_16xb2-50e_coco.py',
    'Mask2Former': 'mask2former/mask2former_r50_8xb2-lsj-50e_coco.py',
}
SEGMENTORS = {
    'UPerNet': '_base_/models/upernet_swin.py',
    'UPerNet, sliding': '_base_/models/upernet_swin.py',
    'FCN': '_base_/models/fcn_r50-d8.py',
    'semantic Mask2Former': 'mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py',
}

# one number for each key, wherever in a model it stands
_FEW = dict(
    out_channels=32, feat_channels=32, conv_out_channels=32, channels=32, embed_dims=32, fc_out_channels=64,
    feedforward_channels=64, num_feats=16, num_groups=4, num_classes=CLASSES, num_things_classes=CLASSES,
    num_queries=20, num_layers=2, num_heads=4, stacked_convs=2, num_points=400, nms_pre=200, max_per_img=40,
    max_per_image=40, num_dn_queries=20)
_MORE = {'DINO': dict(out_channels=256, embed_dims=256, num_feats=128)}  # older mmdet writes its channels into the code
_MAPS = {96: CHANNELS[0], 192: CHANNELS[1], 384: CHANNELS[2], 768: CHANNELS[3],  # Swin-T's channels, and ResNet-50's
         256: CHANNELS[0], 512: CHANNELS[1], 1024: CHANNELS[2], 2048: CHANNELS[3]}


def build(name: str, padding: bool = True) -> nn.Module:
    """One of the models with seeded random weights, in evaluation; without ``padding`` its images stay as they are."""
    detects = name in DETECTORS
    package, path = ('mmdet', DETECTORS[name]) if detects else ('mmseg', SEGMENTORS[name])
    importlib.import_module(f'{package}.utils').register_all_modules(init_default_scope=False)
    if not detects and 'Mask2Former' in name:
        importlib.import_module('mmdet.utils').register_all_modules(init_default_scope=False)
    init_default_scope(package)
    file = Path(importlib.import_module(package).__file__).parent / '.mim/configs' / path
    model = Config.fromfile(file).model
    few = _FEW | _MORE.get(name, {})
    _shrink(model, few)
    model.pop('pretrained', None)
    model.backbone = deepcopy(BACKBONE)
    if detects:
        model.data_preprocessor.type = 'swin_rpe_mm.DetDataPreprocessor'
        if model.type in ('DINO', 'DeformableDETR'):
            model.backbone.out_indices = (1, 2, 3)
            model.bbox_head.embed_dims = few['embed_dims']
        elif model.type in ('FCOS', 'ATSS'):
            model.bbox_head.norm_cfg = dict(type='GN', num_groups=_FEW['num_groups'], requires_grad=True)
        if padding:
            model.data_preprocessor.pad_size_divisor = 32
            _pad_to(model.data_preprocessor.get('batch_augments'), (LONGEST + 9, LONGEST + 20))
        else:
            model.data_preprocessor.update(pad_size_divisor=1, batch_augments=None)
    else:
        size = dict(size=(LONGEST + 9, LONGEST + 20)) if padding else dict(size=None, size_divisor=1)
        test_cfg = dict(size_divisor=32) if padding else None
        model.data_preprocessor.update(type='swin_rpe_mm.SegDataPreprocessor', test_cfg=test_cfg, **size)
        if name == 'UPerNet, sliding':
            model.test_cfg = dict(mode='slide', crop_size=(96, 80), stride=(60, 50))
    built = randomise(MODELS.build(model))
    built.eval()
    _spread_masks(built)
    for module in built.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.
    return built


def _shrink(node: Any, few: dict) -> None:
    if isinstance(node, (list, tuple)):
        for child in node:
            _shrink(child, few)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key == 'in_channels' and isinstance(value, list):
            node[key] = [_MAPS[one] for one in value]
        elif key == 'in_channels':  # of a backbone's map in mmseg's heads, of a neck's in mmdet's
            node[key] = _MAPS[value] if 'in_index' in node else few['out_channels']
        elif key == 'norm_cfg' and value and value['type'] == 'SyncBN':
            node[key] = dict(type='BN')
        elif key == 'class_weight':
            node[key] = [1.] * CLASSES + [.1]
        elif key in few and isinstance(value, int):
            node[key] = min(value, few[key])
        elif key == 'score_thr':
            node[key] = 0.
        elif key == 'sampler' and value.type == 'RandomSampler':  # one that takes all
            value.update(num=100000, pos_fraction=1.)
        else:
            _shrink(value, few)


@torch.no_grad()
def _spread_masks(model: nn.Module) -> None:
    """Let Mask2Former's queries differ: with random weights all would see one empty mask."""
    for module in model.modules():
        if hasattr(module, 'query_feat') and hasattr(module, 'pixel_decoder'):
            module.query_feat.weight.mul_(10)
            module.query_embed.weight.mul_(5)
            module.pixel_decoder.mask_feature.weight.mul_(8)
            module.pixel_decoder.mask_feature.bias.zero_()


def _pad_to(augments: Any, size: tuple[int, int]) -> None:
    for augment in augments or ():
        augment.size = size


# ---- images ----

def random_data(name: str, rng: Random, count: int) -> list[dict]:
    """Images of random sizes with labels that the model learns: what a data loader would collate, one by one."""
    return [_sample(name, _image(rng), rng) for _ in range(count)]


def of_size(data: dict, height: int, width: int) -> dict:
    """The same image and labels of a segmentor, cut or repeated to a size."""
    from mmseg.structures import SegDataSample
    labels = data['data_samples'].gt_sem_seg.data
    tile = [-(-height // labels.shape[1]), -(-width // labels.shape[2])]
    image, labels = (value.repeat(1, *tile)[:, :height, :width].clone() for value in (data['inputs'], labels))
    size = (height, width)
    return dict(inputs=image, data_samples=SegDataSample(
        metainfo=dict(img_shape=size, ori_shape=size), gt_sem_seg=PixelData(data=labels)))


def _image(rng: Random) -> Tensor:
    """Rectangles of random colours under noise, so that no place looks like another."""
    height, width = (rng.randint(SHORTEST, LONGEST) for _ in range(2))
    noise = np.random.default_rng(rng.randrange(2**31))
    image = np.full((3, height, width), 90.)
    for _ in range(12):
        top, left = rng.randrange(height), rng.randrange(width)
        image[:, top:top + rng.randint(8, 70), left:left + rng.randint(8, 70)] = noise.integers(0, 256, (3, 1, 1))
    return torch.as_tensor((image + noise.normal(0, 12, image.shape)).clip(0, 255).astype(np.uint8))


def _sample(name: str, image: Tensor, rng: Random) -> dict:
    height, width = image.shape[1:]
    enlarged = rng.choice([1, 2])  # from the size that the network sees to the file's own
    metainfo = dict(
        img_shape=(height, width), ori_shape=(enlarged * height, enlarged * width),
        scale_factor=(1 / enlarged, 1 / enlarged))
    boxes = torch.tensor([_box(height, width, rng) for _ in range(rng.randint(1, 5))], dtype=torch.float)
    labels = torch.tensor([rng.randrange(CLASSES) for _ in boxes])
    if name in DETECTORS:
        from mmdet.structures import DetDataSample
        from mmdet.structures.mask import BitmapMasks
        masks = np.zeros((len(boxes), height, width), np.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.long().tolist()):
            mask[top:bottom, left:right] = 1
        truth = InstanceData(bboxes=boxes, labels=labels, masks=BitmapMasks(masks, height, width))
        return dict(inputs=image, data_samples=DetDataSample(
            metainfo=metainfo, gt_instances=truth, ignored_instances=InstanceData(bboxes=boxes[:0])))
    from mmseg.structures import SegDataSample
    classes = torch.zeros(1, height, width, dtype=torch.long)
    for (left, top, right, bottom), label in zip(boxes.long().tolist(), labels):
        classes[:, top:bottom, left:right] = label
    classes[:, :rng.randint(0, 9)] = 255
    return dict(inputs=image, data_samples=SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=classes)))


def _box(height: int, width: int, rng: Random) -> tuple[int, int, int, int]:
    h, w = rng.randint(12, height - 1), rng.randint(12, width - 1)
    top, left = rng.randint(0, height - h), rng.randint(0, width - w)
    return left, top, left + w, top + h


def collate(data: list[dict]) -> dict:
    """A batch as a data loader gives it; models write into samples, so they get copies."""
    return dict(inputs=[one['inputs'] for one in data], data_samples=[deepcopy(one['data_samples']) for one in data])


# ---- what models give ----

@torch.no_grad()
def predict(model: nn.Module, data: list[dict]) -> list[Any]:
    """A result per image: instances, or logits."""
    samples = model.test_step(collate(data))
    return [sample.pred_instances if 'pred_instances' in sample else sample.seg_logits.data for sample in samples]


def train(model: nn.Module, data: list[dict], norms: bool = False) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Losses by name with their sum as ``loss``, and gradients; batch norms train along with ``norms`` only."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not norms:
            module.eval()
    model.zero_grad()
    batch = model.data_preprocessor(collate(data), True)
    total, values = model.parse_losses(model(**batch, mode='loss'))
    total.backward()
    losses = {name: float(value.detach()) for name, value in values.items() if 'loss' in name}
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.eval()
    return losses, gradients
