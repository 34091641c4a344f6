# Swin-RPE-L on the recipe of Swin-T: the weights, their gradients and the optimizer's averages are spread over all
# processes, and blocks are computed again in the backward pass. It wants several processes: tools/dist_train.sh
_base_ = './mask-rcnn_swin-rpe-t-p4-w7_fpn_ms-crop-3x_coco.py'

pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_large_patch4_window12_384_22k.pth'
model = dict(
    backbone=dict(arch='large', window_size=12, with_cp=True, init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[192, 384, 768, 1536]))

runner_type = 'FlexibleRunner'
strategy = dict(type='swin_rpe_mm.mm.sharding.SwinFSDPStrategy')
