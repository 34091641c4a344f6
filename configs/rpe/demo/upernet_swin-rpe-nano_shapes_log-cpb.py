_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/log-cpb.py']

model = dict(backbone=_base_.backbone)
