_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/v2.py']

model = dict(backbone=_base_.backbone)
