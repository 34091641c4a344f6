# for small sets and random weights: no weight decay for position encodings, normalisation layers and biases
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5.),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        custom_keys={
            'absolute_pos_embed': dict(decay_mult=0.),
            'window_pos_embed': dict(decay_mult=0.),
            'relative_position_bias_table': dict(decay_mult=0.),
            '.rpe.': dict(decay_mult=0.),
            'logit_scale': dict(decay_mult=0.),
            'q_bias': dict(decay_mult=0.),
            'v_bias': dict(decay_mult=0.)
        }))

# one process with 4 images
auto_scale_lr = dict(enable=False, base_batch_size=4)
