_base_ = ['../_base_/models/mask-rcnn_swin-rpe-nano_fpn.py', '../_base_/default_runtime_det.py']

data_root = 'data/shapes/'
metainfo = dict(
    classes=('circle', 'square', 'triangle', 'star'),
    palette=[(230, 60, 60), (60, 160, 230), (250, 200, 40), (150, 80, 200)])
# Swin's own standard deviation of 0.02 is made for wide layers; with 32 channels learning starts sooner from Xavier's
model = dict(
    backbone=dict(init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform')),
    roi_head=dict(bbox_head=dict(num_classes=4), mask_head=dict(num_classes=4)))

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale_factor=1.0, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(
        type='CocoDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='img_dir/train/'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='img_dir/val/'),
        test_mode=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric', ann_file=data_root + 'annotations/instances_val.json', metric=['bbox', 'segm'])
test_evaluator = val_evaluator

max_iters = 650
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
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(by_epoch=False, interval=max_iters, max_keep_ckpts=1))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
