_base_ = '../../coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_1x_coco.py'

# SwinV2's own weights, with windows of 8
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/swinv2_tiny_patch4_window8_256.pth'
model = dict(backbone=dict(arch='v2-tiny', init_cfg=dict(checkpoint=pretrained)))
