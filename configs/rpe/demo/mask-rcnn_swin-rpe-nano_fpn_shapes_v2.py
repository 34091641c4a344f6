_base_ = ['../../demo/mask-rcnn_swin-rpe-nano_fpn_shapes.py', '../_base_/v2.py']

model = dict(backbone=_base_.backbone)
