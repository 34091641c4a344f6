# for small sets and random weights: no weight decay for position biases, normalisation layers and biases
max_epochs = 24
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=4)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5.),
    paramwise_cfg=dict(
        norm_decay_mult=0., bias_decay_mult=0., custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.))))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        eta_min_ratio=0.01,
        convert_to_iter_based=True)
]

# one process with 4 images
auto_scale_lr = dict(enable=False, base_batch_size=4)
