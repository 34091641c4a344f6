"""Tiny data sets and configs on which a training takes seconds, for the tests of the tools."""
from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.visualization import Visualizer

REPO = Path(__file__).parents[2]
TASKS = [pytest.param('detection', marks=pytest.mark.needs_ops), 'segmentation']
# for python's -W: what mmcv says in every program where it has no compiled operators
MMCV_LITE = 'ignore::UserWarning:mmcv.cnn.bricks.transformer'
SIZE = 64
COUNTS = dict(train=8, val=5)  # an odd number, so that two processes have one image twice

COMMON = """
_base_ = ['{repo}/configs/_base_/models/{model}', '{repo}/configs/_base_/{runtime}']
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(_delete_=True, type='CheckpointHook', interval=1))
log_processor = dict(by_epoch=True, window_size=1)
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=2, val_interval=2)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=6)]
auto_scale_lr = dict(enable=False, base_batch_size=16)
randomness = dict(seed=1)

loader = dict(num_workers=0, persistent_workers=False)
"""

DETECTION = """
metainfo = dict(classes=('disc', 'box'))
model = dict(
    roi_head=dict(bbox_head=dict(num_classes=2), mask_head=dict(num_classes=2)),
    test_cfg=dict(rcnn=dict(score_thr=0.)))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
]
train_dataloader = dict(
    batch_size=2, **loader, sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset', data_root='{data}', ann_file='train.json', data_prefix=dict(img='img_dir/train'),
        metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1, **loader, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset', data_root='{data}', ann_file='val.json', data_prefix=dict(img='img_dir/val'),
        metainfo=metainfo, test_mode=True, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='CocoMetric', ann_file='{data}/val.json', metric=['bbox', 'segm'])
test_evaluator = val_evaluator
"""

# no dropout, so that two trainings with the same seed end alike, and group norm, so that processes agree
SEGMENTATION = """
metainfo = dict(classes=('ground', 'disc', 'box'), palette=[[0, 0, 0], [200, 0, 0], [0, 0, 200]])
norm_cfg = dict(type='GN', num_groups=4)
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    backbone=dict(arch='nano', drop_path_rate=0.),
    decode_head=dict(
        in_channels=[32, 64, 128, 256], channels=16, dropout_ratio=0., num_classes=3, norm_cfg=norm_cfg,
        pool_scales=(1, 2)),
    auxiliary_head=dict(in_channels=128, channels=16, dropout_ratio=0., num_classes=3, norm_cfg=norm_cfg))
pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[[dict(type='RandomFlip', prob=0.), dict(type='RandomFlip', prob=1.)],
                    [dict(type='LoadAnnotations')], [dict(type='PackSegInputs')]])
]
train_dataloader = dict(
    batch_size=2, **loader, sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset', data_root='{data}', metainfo=metainfo, pipeline=pipeline,
        data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train')))
val_dataloader = dict(
    batch_size=1, **loader, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset', data_root='{data}', metainfo=metainfo, pipeline=pipeline, test_mode=True,
        data_prefix=dict(img_path='img_dir/val', seg_map_path='ann_dir/val')))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
"""

MODELS = dict(detection='mask-rcnn_swin-rpe-nano_fpn.py', segmentation='upernet_swin-rpe.py')
RUNTIMES = dict(detection='default_runtime_det.py', segmentation='default_runtime_seg.py')
BODIES = dict(detection=DETECTION, segmentation=SEGMENTATION)


def draw_data(root: Path) -> Path:
    """Draw a disc and a box on each image; write COCO annotations and label maps."""
    rng = np.random.default_rng(0)
    for split, count in COUNTS.items():
        images, annotations = [], []
        for folder in ('img_dir', 'ann_dir'):
            (root / folder / split).mkdir(parents=True)
        for i in range(count):
            image = rng.integers(0, 60, (SIZE, SIZE, 3), dtype=np.uint8)
            labels = np.zeros((SIZE, SIZE), np.uint8)
            x, y, r = (int(v) for v in rng.integers(14, 20, 3) + (0, 0, -6))
            angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
            disc = np.stack([x + r * np.cos(angles), y + r * np.sin(angles)], 1)
            box = np.array([[34, 34], [34 + r, 34], [34 + r, 36 + r], [34, 36 + r]], float)
            for label, (corners, color) in enumerate([(disc, (200, 40, 40)), (box, (40, 40, 200))], 1):
                cv2.fillPoly(image, [corners.round().astype(np.int32)], color)
                cv2.fillPoly(labels, [corners.round().astype(np.int32)], label)
                low, high = corners.min(0), corners.max(0)
                annotations.append(
                    dict(
                        id=len(annotations) + 1, image_id=i, category_id=label, iscrowd=0,
                        bbox=[*low, *(high - low)], area=float(np.prod(high - low)),
                        segmentation=[corners.flatten().tolist()]))
            cv2.imwrite(str(root / 'img_dir' / split / f'{i}.jpg'), image)
            cv2.imwrite(str(root / 'ann_dir' / split / f'{i}.png'), labels)
            images.append(dict(id=i, file_name=f'{i}.jpg', height=SIZE, width=SIZE))
        categories = [dict(id=1, name='disc'), dict(id=2, name='box')]
        content = dict(images=images, annotations=annotations, categories=categories)
        (root / f'{split}.json').write_text(json.dumps(content))
    return root


def write_config(path: Path, task: str, data: Path | str, extra: str = '') -> Path:
    """Write a config for the tiny data; ``extra`` is Python text that comes last."""
    body = (COMMON + BODIES[task]).format(repo=REPO, model=MODELS[task], runtime=RUNTIMES[task], data=data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body + extra)
    return path


def load_tool(name: str) -> Callable:
    """``main`` of a script in ``tools/``, to call it without a new process."""
    spec = importlib.util.spec_from_file_location(f'tools_{name}', REPO / 'tools' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(argv: list[str]):
        for kind in (Visualizer, *Visualizer.__subclasses__()):
            kind._instance_dict.clear()  # a config gives its visualizer a name, and the next run would get the same one
        return module.main(argv)

    return run
