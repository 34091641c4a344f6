_base_ = [
    '../_base_/models/mask-rcnn_swin-rpe-nano_fpn.py', '../_base_/datasets/coco_small.py',
    '../_base_/schedules/adamw_24e.py', '../_base_/default_runtime_det.py'
]

# Mask R-CNN without its mask branch is Faster R-CNN: BCCD has boxes only
model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(bbox_head=dict(num_classes=3), mask_roi_extractor=None, mask_head=None))

# cells are about 100 pixels wide in the photos of 640x480, so half the size is enough
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=(320, 240), ratio_range=(0.75, 1.25), keep_ratio=True),
    dict(type='RandomFlip', prob=0.75, direction=['horizontal', 'vertical', 'diagonal']),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(320, 240), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
]

data_root = 'data/bccd/'
metainfo = dict(classes=('RBC', 'WBC', 'Platelets'), palette=[(220, 60, 60), (90, 70, 200), (240, 190, 40)])
train_dataloader = dict(dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline))
test_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/instances_test.json',
        pipeline=test_pipeline))
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val.json', metric='bbox')
test_evaluator = dict(ann_file=data_root + 'annotations/instances_test.json', metric='bbox')

default_hooks = dict(
    logger=dict(interval=10), checkpoint=dict(max_keep_ckpts=1, save_best='coco/bbox_mAP', rule='greater'))
