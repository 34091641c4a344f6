_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/linear-cpb.py']

model = dict(backbone=_base_.backbone)
