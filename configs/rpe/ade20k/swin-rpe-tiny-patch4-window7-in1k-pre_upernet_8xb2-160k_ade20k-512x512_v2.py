_base_ = '../../ade20k/swin-rpe-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'

# SwinV2's own weights, with windows of 8
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/swinv2_tiny_patch4_window8_256.pth'
model = dict(backbone=dict(arch='v2-tiny', init_cfg=dict(checkpoint=pretrained)))
