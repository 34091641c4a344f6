# UPerNet narrow enough for a CPU, for training from random weights: group norm instead of batch statistics, a loss that
# is averaged over labelled pixels alone, not over batch padding, and classifiers that start wider than mmseg's 0.01,
# from which a few hundred iterations hardly get away
_base_ = './upernet_swin-rpe.py'

norm_cfg = dict(type='GN', num_groups=8)
head_init_cfg = dict(type='Normal', std=0.2, override=dict(name='conv_seg'))
model = dict(
    backbone=dict(arch='nano', drop_path_rate=0.),
    decode_head=dict(
        in_channels=[32, 64, 128, 256],
        channels=32,
        norm_cfg=norm_cfg,
        init_cfg=head_init_cfg,
        loss_decode=dict(avg_non_ignore=True)),
    auxiliary_head=dict(
        in_channels=128,
        channels=32,
        norm_cfg=norm_cfg,
        init_cfg=head_init_cfg,
        loss_decode=dict(avg_non_ignore=True)))
