_base_ = ['../_base_/models/upernet_swin-rpe-nano.py', '../_base_/default_runtime_seg.py']

data_root = 'data/shapes/'
# the background is a class like the others
metainfo = dict(
    classes=('background', 'circle', 'square', 'triangle', 'star'),
    palette=[(40, 40, 40), (230, 60, 60), (60, 160, 230), (250, 200, 40), (150, 80, 200)])
model = dict(
    data_preprocessor=dict(size_divisor=32, test_cfg=dict(size_divisor=32)),
    decode_head=dict(num_classes=5),
    auxiliary_head=dict(num_classes=5))

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        img_suffix='.png',
        data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        img_suffix='.png',
        data_prefix=dict(img_path='img_dir/val', seg_map_path='ann_dir/val'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

max_iters = 1300
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1.5e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5.),
    paramwise_cfg=dict(
        norm_decay_mult=0., bias_decay_mult=0., custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.))))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, eta_min_ratio=0.01)
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=max_iters, max_keep_ckpts=1))
randomness = dict(seed=0)
