_base_ = ['../_base_/models/upernet_swin-rpe-nano.py', '../_base_/default_runtime_seg.py']

crop_size = (256, 256)
model = dict(
    data_preprocessor=dict(size=crop_size),
    decode_head=dict(num_classes=11),
    auxiliary_head=dict(num_classes=11))

data_root = 'data/camvid/'
metainfo = dict(
    classes=('sky', 'building', 'pole', 'road', 'pavement', 'tree', 'sign', 'fence', 'car', 'pedestrian', 'bicyclist'),
    palette=[(128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0),
             (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192)])

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(480, 360), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]

train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/val', seg_map_path='ann_dir/val'),
        pipeline=test_pipeline))
test_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/test', seg_map_path='ann_dir/test'),
        pipeline=test_pipeline))

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

max_iters = 4000
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=500)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5.),
    paramwise_cfg=dict(
        norm_decay_mult=0., bias_decay_mult=0., custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.))))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=200, end=max_iters)
]

# one process with 4 images
auto_scale_lr = dict(enable=False, base_batch_size=4)

default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(interval=500, max_keep_ckpts=1, save_best='mIoU', rule='greater'))
