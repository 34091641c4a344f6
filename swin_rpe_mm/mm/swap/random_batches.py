"""Batches of random images with random labels, made to fit a model; what a data loader would hand to it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.structures import PixelData
from torch import Tensor, nn

from ..configs import as_list, type_name, walk

# A multiple of 128, which hourglasses and BiFPNs need, and an odd size that is filled up to it.
SIZES = ((128, 256), (99, 155))
_LARGE_SIZES = ((384, 384), (310, 351))  # for deformable convolutions on maps of stride 128: no map below 3x3
_DEFORMABLE = ('DeformConv2d', 'ModulatedDeformConv2d')
_ONE_SIZE = ('YOLACTHead', 'RTMDetInsHead')  # stack what belongs to single images
_ONE_IMAGE = ('MaskedConv2d', )  # guided anchoring's, which takes one image at a time in testing
FRAMES = 2
_BLOCK = 16  # side of the squares of one class, in pixels
_OBJECTS = [3, 5]


def random_batch(model: nn.Module, cfg: dict, training: bool) -> dict:
    """Two images, or two short videos, with everything that any model of the kind asks for.

    Segmentors, trackers and guided anchoring are tested with one image or video, which is all that they take.

    Args:
        model (nn.Module): Built from ``cfg``.
        cfg (dict): The whole config.
        training (bool): Whether the batch is to train with, or to test with.

    Returns:
        dict: ``inputs`` and ``data_samples``, as the model's data preprocessor takes them.
    """
    sizes = _sizes(model, cfg)
    if _is_a(model, 'mmseg', 'BaseSegmentor'):
        return _segmentation(cfg, sizes if training else sizes[1:])
    if _is_a(model, 'mmdet', 'BaseMOTModel') and not (training and _trains_on_images(cfg)):
        return _video(cfg, sizes if training else sizes[1:])
    if _is_a(model, 'mmdet', 'SemiBaseDetector') and training:
        branches = {name: _detection(model, cfg, sizes) for name in ('sup', 'unsup_teacher', 'unsup_student')}
        return {key: {name: batch[key] for name, batch in branches.items()} for key in ('inputs', 'data_samples')}
    return _detection(model, cfg, sizes[1:] if not training and _holds(model, _ONE_IMAGE) else sizes)


def _sizes(model: nn.Module, cfg: dict) -> tuple[tuple[int, int], ...]:
    """Heights and widths of the images; where a model is made for one size alone, as SSD is, twice that."""
    fixed = [node['input_size'] for node in walk(cfg['model'])
             if type_name(node).endswith('SSDAnchorGenerator') and node.get('input_size')]
    if fixed:
        return ((fixed[0], fixed[0]), ) * len(SIZES)
    sizes = _LARGE_SIZES if _holds(model, _DEFORMABLE) else SIZES
    return sizes[:1] * len(sizes) if _holds(model, _ONE_SIZE) else sizes


def _holds(model: nn.Module, names: Sequence[str]) -> bool:
    """Whether a module of one of these classes, or made from it, is in a model."""
    return any(kind.__name__ in names for module in model.modules() for kind in type(module).__mro__)


def _is_a(model: nn.Module, package: str, name: str) -> bool:
    """Whether a model is of a class of that name in that package; neither package need be installed."""
    return any(kind.__name__ == name and kind.__module__.startswith(f'{package}.') for kind in type(model).__mro__)


def _trains_on_images(cfg: dict) -> bool:
    return bool(cfg['model'].get('data_preprocessor', {}).get('use_det_processor'))


def _channels(cfg: dict) -> int:
    return (cfg['model'].get('backbone') or {}).get('in_channels', 3)


def _image(channels: int, size: tuple[int, int]) -> Tensor:
    return torch.randint(256, (channels, *size), dtype=torch.uint8)


def _segmentation(cfg: dict, sizes: Sequence[tuple[int, int]]) -> dict:
    from mmseg.structures import SegDataSample
    classes = min(_numbers(cfg['model'], 'num_classes'), default=2)

    def sample(size: tuple[int, int]) -> SegDataSample:
        h, w = size
        coarse = torch.randint(classes, (1, h // _BLOCK + 1, w // _BLOCK + 1))
        labels = coarse.repeat_interleave(_BLOCK, 1).repeat_interleave(_BLOCK, 2)[:, :h, :w]
        labels[:, :_BLOCK // 2] = 255  # a strip that counts for nothing
        edges = torch.zeros_like(labels)
        edges[:, _BLOCK::_BLOCK] = edges[:, :, _BLOCK::_BLOCK] = 1
        return SegDataSample(
            metainfo=dict(img_shape=size, ori_shape=(2 * h, 2 * w), pad_shape=size),
            gt_sem_seg=PixelData(data=labels), gt_edge_map=PixelData(data=edges),
            gt_depth_map=PixelData(data=torch.rand(1, h, w) + 0.5))

    return dict(inputs=[_image(_channels(cfg), size) for size in sizes], data_samples=[sample(size) for size in sizes])


def _detection(model: nn.Module, cfg: dict, sizes: Sequence[tuple[int, int]]) -> dict:
    """Boxes and ignored boxes, and what only some models take: masks, a label map, proposals."""
    from mmdet.testing import demo_mm_inputs, demo_mm_proposals
    stuff = _semantic_classes(cfg['model'])
    shapes = [(_channels(cfg), *size) for size in sizes]
    batch = demo_mm_inputs(len(sizes), shapes, num_items=_OBJECTS[:len(sizes)], num_classes=max(stuff, 2),
                           with_semantic=stuff > 0)
    for sample, proposals in zip(batch['data_samples'], demo_mm_proposals(shapes, 8)):
        if not getattr(model, 'with_rpn', True):
            sample.proposals = proposals
        sample.set_metainfo(dict(homography_matrix=torch.eye(3).numpy()))
        _draw_objects(sample, cfg)
    return batch


def _video(cfg: dict, sizes: Sequence[tuple[int, int]]) -> dict:
    from mmdet.testing import demo_track_inputs
    shapes = [(_channels(cfg), *size) for size in sizes]
    batch = demo_track_inputs(len(sizes), FRAMES, key_frames_inds=[0], image_shapes=shapes, num_items=_OBJECTS)
    for video in batch['data_samples']:
        for sample in video:
            sample.gt_instances.instances_ids = torch.arange(len(sample.gt_instances))
            sample.set_metainfo(dict(ori_video_length=FRAMES))
            _draw_objects(sample, cfg)
    return batch


def _draw_objects(sample: Any, cfg: dict) -> None:
    """Draw labels that the model knows, boxes large enough that none is dropped, and masks where they are learned."""
    objects, (h, w) = sample.gt_instances, sample.img_shape
    corners = torch.rand(len(objects), 2) * 0.5
    sides = 0.2 + torch.rand(len(objects), 2) * 0.3
    objects.bboxes = torch.cat([corners, corners + sides], 1) * torch.tensor([w, h, w, h])
    objects.labels = torch.randint(_box_classes(cfg['model']), (len(objects), ))
    if not _learns_masks(cfg):
        return
    from mmdet.structures.mask import BitmapMasks
    masks = torch.zeros(len(objects), h, w, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, objects.bboxes.long().tolist()):
        mask[top:bottom, left:right] = 1
    objects.masks = BitmapMasks(masks.numpy(), h, w)


def _learns_masks(cfg: dict) -> bool:
    """Whether the training pipeline reads masks; without a pipeline they are there."""
    loaders = as_list(cfg.get('train_dataloader'))
    reads = [node.get('with_mask', type_name(node) == 'LoadPanopticAnnotations') for node in walk(loaders)
             if type_name(node).startswith('Load')]
    return any(reads) or not reads


def _box_classes(model: dict) -> int:
    return min(_numbers({key: value for key, value in model.items() if key != 'reid'}, 'num_classes')
               + _numbers(model, 'num_things_classes'), default=1)


def _semantic_classes(model: dict) -> int:
    """Classes of the label map that a model learns beside its boxes; 0 if there is none."""
    stuff = _numbers(model, 'num_stuff_classes')
    if stuff:
        return stuff[0] + _numbers(model, 'num_things_classes')[0]
    heads = [node['semantic_head'] for node in walk(model) if node.get('semantic_head')]
    return _numbers(heads, 'num_classes')[0] if heads else 0


def _numbers(node: Any, key: str) -> list[int]:
    """Every number above 0 that ``key`` has inside ``node``; of a list, its first."""
    values = [as_list(inner[key])[0] for inner in walk(node) if as_list(inner.get(key))]
    return [value for value in values if isinstance(value, int) and value > 0]
