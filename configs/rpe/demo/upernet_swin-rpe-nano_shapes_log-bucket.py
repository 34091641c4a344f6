_base_ = ['../../demo/upernet_swin-rpe-nano_shapes.py', '../_base_/log-bucket.py']

model = dict(backbone=_base_.backbone)
