_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/irpe.py']

model = dict(backbone=_base_.backbone)
