_base_ = [
    '../_base_/models/upernet_swin-rpe-nano.py', '../_base_/datasets/ade_small.py',
    '../_base_/schedules/adamw_small.py', '../_base_/default_runtime_seg.py'
]

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

data_root = 'data/shapes/'
# the background is a class like the others
metainfo = dict(
    classes=('background', 'circle', 'square', 'triangle', 'star'),
    palette=[(40, 40, 40), (230, 60, 60), (60, 160, 230), (250, 200, 40), (150, 80, 200)])
train_dataloader = dict(
    num_workers=1,
    dataset=dict(data_root=data_root, metainfo=metainfo, img_suffix='.png', pipeline=train_pipeline))
val_dataloader = dict(num_workers=1, dataset=dict(data_root=data_root, metainfo=metainfo, img_suffix='.png'))
test_dataloader = val_dataloader

max_iters = 1300
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, eta_min_ratio=0.01)
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=max_iters, max_keep_ckpts=1))
randomness = dict(seed=0)
