# Mask R-CNN narrow enough for a CPU, for training from random weights: group norm wherever there are convolutions, one
# box and one mask predictor for all classes, few proposals, and one sample per bin in RoIAlign, whose adaptive number
# of samples costs a third of a training step on a CPU
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'

norm_cfg = dict(type='GN', num_groups=8)
model = dict(
    data_preprocessor=dict(type='swin_rpe_mm.DetDataPreprocessor'),
    backbone=dict(_delete_=True, type='swin_rpe_mm.SwinRPE', arch='nano', drop_path_rate=0.),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=64, norm_cfg=norm_cfg, num_outs=4),
    rpn_head=dict(in_channels=64, feat_channels=64, anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=dict(roi_layer=dict(sampling_ratio=1), out_channels=64, finest_scale=28),
        bbox_head=dict(
            type='ConvFCBBoxHead',
            num_shared_convs=2,
            num_shared_fcs=1,
            in_channels=64,
            conv_out_channels=64,
            fc_out_channels=256,
            norm_cfg=norm_cfg,
            reg_class_agnostic=True),
        mask_roi_extractor=dict(roi_layer=dict(sampling_ratio=1), out_channels=64, finest_scale=28),
        mask_head=dict(
            num_convs=2, in_channels=64, conv_out_channels=32, norm_cfg=norm_cfg, class_agnostic=True)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=400, max_per_img=200),
        rcnn=dict(sampler=dict(num=32, pos_fraction=0.5))),
    test_cfg=dict(rpn=dict(nms_pre=400, max_per_img=200)))
