default_scope = 'mmseg'
custom_imports = dict(imports=['swin_rpe_mm'], allow_failed_imports=False)

# hooks for training by iterations, as segmentation does
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=16000),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'))

# an image's results don't depend on what it is batched with, in any layer of the model
custom_hooks = [dict(type='swin_rpe_mm.PaddingInvarianceHook')]

env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))

vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='SegLocalVisualizer', vis_backends=vis_backends, name='visualizer')
log_processor = dict(by_epoch=False)

log_level = 'INFO'
load_from = None
resume = False

tta_model = dict(type='SegTTAModel')
