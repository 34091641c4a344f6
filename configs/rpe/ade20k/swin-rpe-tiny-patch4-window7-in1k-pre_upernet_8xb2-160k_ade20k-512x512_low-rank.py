_base_ = [
    '../../ade20k/swin-rpe-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py',
    '../_base_/low-rank.py'
]

model = dict(backbone=_base_.backbone)
