_base_ = [
    '../_base_/models/upernet_swin-rpe.py', '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/swin_160k.py', '../_base_/default_runtime_seg.py'
]

pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
