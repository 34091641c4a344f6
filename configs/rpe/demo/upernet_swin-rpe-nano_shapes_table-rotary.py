_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/table-rotary.py']

model = dict(backbone=_base_.backbone)
