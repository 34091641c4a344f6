_base_ = [
    '../_base_/models/mask-rcnn_swin-rpe-nano_fpn.py', '../_base_/schedules/adamw_24e.py',
    '../_base_/default_runtime_det.py'
]

# up to about 200 nuclei per image, many of them in contact
model = dict(
    roi_head=dict(bbox_head=dict(num_classes=1), mask_head=dict(num_classes=1)),
    test_cfg=dict(rpn=dict(nms_pre=1000, max_per_img=500), rcnn=dict(max_per_img=300)))

data_root = 'data/nuclei/'
metainfo = dict(classes=('nucleus', ), palette=[(60, 200, 120)])

# the images have many sizes, from 256x256 on: trained on crops, tested as they are
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomCrop', crop_type='absolute', crop_size=(224, 224)),
    dict(type='RandomFlip', prob=0.75, direction=['horizontal', 'vertical', 'diagonal']),
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
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='images/'),
        test_mode=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(
    type='CocoMetric', ann_file=data_root + 'annotations/instances_val.json', metric=['bbox', 'segm'])
test_evaluator = val_evaluator

default_hooks = dict(
    logger=dict(interval=10), checkpoint=dict(max_keep_ckpts=1, save_best='coco/segm_mAP', rule='greater'))
