_base_ = [
    '../_base_/models/upernet_swin-rpe-nano.py', '../_base_/datasets/ade_small.py',
    '../_base_/schedules/adamw_small.py', '../_base_/default_runtime_seg.py'
]

crop_size = (256, 256)
model = dict(
    data_preprocessor=dict(size=crop_size),
    decode_head=dict(num_classes=11),
    auxiliary_head=dict(num_classes=11))

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(480, 360), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')
]

data_root = 'data/camvid/'
metainfo = dict(
    classes=('sky', 'building', 'pole', 'road', 'pavement', 'tree', 'sign', 'fence', 'car', 'pedestrian', 'bicyclist'),
    palette=[(128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0),
             (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192)])
train_dataloader = dict(dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(data_root=data_root, metainfo=metainfo))
test_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='img_dir/test', seg_map_path='ann_dir/test')))

max_iters = 4000
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=500)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=200, end=max_iters)
]

default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(interval=500, max_keep_ckpts=1, save_best='mIoU', rule='greater'))
