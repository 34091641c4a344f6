_base_ = ['../../demo/mask-rcnn_swin-rpe-nano_fpn_shapes.py', '../_base_/contextual.py']

model = dict(backbone=_base_.backbone)
