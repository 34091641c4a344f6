_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/rotary-mixed.py']

model = dict(backbone=_base_.backbone)
