_base_ = [
    '../_base_/models/mask-rcnn_swin-rpe-nano_fpn.py', '../_base_/datasets/coco_small.py',
    '../_base_/schedules/adamw_24e.py', '../_base_/default_runtime_det.py'
]

# up to about 200 nuclei per image, many of them in contact
model = dict(
    roi_head=dict(bbox_head=dict(num_classes=1), mask_head=dict(num_classes=1)),
    test_cfg=dict(rpn=dict(nms_pre=1000, max_per_img=500), rcnn=dict(max_per_img=300)))

# the images have many sizes, from 256x256 on: trained on crops, tested as they are
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomCrop', crop_type='absolute', crop_size=(224, 224)),
    dict(type='RandomFlip', prob=0.75, direction=['horizontal', 'vertical', 'diagonal']),
    dict(type='PackDetInputs')
]

data_root = 'data/nuclei/'
metainfo = dict(classes=('nucleus', ), palette=[(60, 200, 120)])
train_dataloader = dict(dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(data_root=data_root, metainfo=metainfo))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val.json')
test_evaluator = val_evaluator

default_hooks = dict(
    logger=dict(interval=10), checkpoint=dict(max_keep_ckpts=1, save_best='coco/segm_mAP', rule='greater'))
