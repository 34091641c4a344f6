_base_ = 'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py'
custom_imports = dict(imports=['swin_rpe_mm'], allow_failed_imports=False)

pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'
model = dict(
    data_preprocessor=dict(type='swin_rpe_mm.DetDataPreprocessor'),
    backbone=dict(
        _delete_=True,
        type='swin_rpe_mm.SwinRPE',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
# beside position biases and norms, which the recipe names: what other encodings and SwinV2 have
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={
            'window_pos_embed': dict(decay_mult=0.),
            '.rpe.': dict(decay_mult=0.),
            'logit_scale': dict(decay_mult=0.)
        }))
