_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/contextual.py']

model = dict(backbone=_base_.backbone)
