_base_ = [
    '../_base_/models/mask-rcnn_swin-rpe-nano_fpn.py', '../_base_/datasets/coco_small.py',
    '../_base_/schedules/adamw_small.py', '../_base_/default_runtime_det.py'
]

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

data_root = 'data/shapes/'
metainfo = dict(
    classes=('circle', 'square', 'triangle', 'star'),
    palette=[(230, 60, 60), (60, 160, 230), (250, 200, 40), (150, 80, 200)])
train_dataloader = dict(
    num_workers=1,
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(
        data_root=data_root, metainfo=metainfo, data_prefix=dict(img='img_dir/train/'), pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(data_root=data_root, metainfo=metainfo, data_prefix=dict(img='img_dir/val/')))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val.json')
test_evaluator = val_evaluator

max_iters = 650
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, eta_min_ratio=0.01)
]
default_hooks = dict(
    logger=dict(interval=10), checkpoint=dict(by_epoch=False, interval=max_iters, max_keep_ckpts=1))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
