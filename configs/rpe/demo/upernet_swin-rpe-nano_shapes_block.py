_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/block.py']

model = dict(backbone=_base_.backbone)
