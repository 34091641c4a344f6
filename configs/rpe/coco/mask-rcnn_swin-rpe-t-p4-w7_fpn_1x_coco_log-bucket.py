_base_ = ['../../coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_1x_coco.py', '../_base_/log-bucket.py']

model = dict(backbone=_base_.backbone)
