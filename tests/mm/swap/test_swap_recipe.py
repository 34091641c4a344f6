"""Optimizer, weight decay and warm-up of the published recipes, and what is left as it was."""
from __future__ import annotations

import pytest
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from shipped import shipped
from torch import nn

from swin_rpe_mm import InputError, SwinRPE, swap_backbone
from swin_rpe_mm.mm.swap.recipe import check_kept_optimizer, set_recipe
from swin_rpe_mm.mm.swap.weights import PRETRAINED, drop_path_of

SGD = dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=1e-4)
NAMES = ['FasterRCNN']


class Model(nn.Module):
    """A detector's parameters."""

    def __init__(self, **backbone):
        super().__init__()
        self.backbone = SwinRPE(arch='nano', depths=(1, 1, 3, 1), use_abs_pos_embed='window', **backbone)
        self.neck = nn.Linear(2, 2)
        self.neck_norm = nn.LayerNorm(2)


def recipe(task='detection', names=NAMES, **settings) -> tuple[Config, str]:
    cfg = Config(settings)
    return cfg, '\n'.join(set_recipe(cfg, list(names), task, [1, 1, 3, 1]))


def groups(cfg: Config, model: nn.Module) -> dict[str, dict]:
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)]: group for group in optimizer.param_groups for p in group['params']}


def should_decay(name: str) -> bool:
    free = ('norm', 'pos_embed', 'relative_position_bias_table', '.rpe.', 'logit_scale')
    return not any(part in name for part in free)


@pytest.mark.parametrize('backbone', [
    dict(), dict(rpe=[dict(type='RotaryRPE', mode='mixed'), dict(type='LowRankRPE')]), dict(rpe=dict(type='LogCPB'))])
@pytest.mark.parametrize('lr_mult', [None, 0.1])
def test_what_does_not_decay(backbone, lr_mult):
    """Nothing that should decay goes without it, and the backbone's learning rate is one throughout."""
    paramwise = {} if lr_mult is None else dict(paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=lr_mult))))
    cfg, _ = recipe(optim_wrapper=dict(type='OptimWrapper', optimizer=SGD, **paramwise))
    found = groups(cfg, Model(**backbone))
    for name, group in found.items():
        assert group['lr'] == pytest.approx(1e-4 * (lr_mult or 1 if name.startswith('backbone') else 1)), name
        if name.startswith('backbone') or lr_mult is None:
            assert (group['weight_decay'] > 0) == should_decay(name), name


def test_existing_keys_stay():
    keys = {'backbone': dict(lr_mult=0.5, decay_mult=2.), 'neck': dict(lr_mult=3.), 'norm': dict(decay_mult=0.5)}
    cfg, _ = recipe(optim_wrapper=dict(
        type='OptimWrapper', optimizer=SGD, paramwise_cfg=dict(bypass_duplicate=True, custom_keys=keys)))
    now = cfg.optim_wrapper.paramwise_cfg
    assert now.bypass_duplicate and {key: dict(now.custom_keys[key]) for key in keys} == keys
    found = groups(cfg, Model())
    assert found['neck.weight']['lr'] == pytest.approx(3e-4)
    assert found['backbone.stages.2.blocks.2.norm1.weight']['weight_decay'] == 0
    assert found['backbone.stages.2.blocks.2.norm1.weight']['lr'] == pytest.approx(5e-5)
    assert found['backbone.stages.2.blocks.2.attn.w_msa.qkv.weight']['weight_decay'] == pytest.approx(0.1)


@pytest.mark.parametrize(('task', 'lr', 'decay', 'warmup'), [
    ('detection', 1e-4, 0.05, dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=1000)),
    ('segmentation', 6e-5, 0.01, dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500))])
def test_published_recipes(task, lr, decay, warmup):
    steps = dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1)
    old = dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=500)
    wrapper = dict(type='AmpOptimWrapper', optimizer=SGD, clip_grad=dict(max_norm=35, norm_type=2))
    cfg, notes = recipe(task, optim_wrapper=wrapper, param_scheduler=[old, steps],
                        auto_scale_lr=dict(enable=False, base_batch_size=64))
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper' and dict(cfg.optim_wrapper.clip_grad) == wrapper['clip_grad']
    assert dict(cfg.optim_wrapper.optimizer) == dict(type='AdamW', lr=lr, betas=(0.9, 0.999), weight_decay=decay)
    assert [dict(scheduler) for scheduler in cfg.param_scheduler] == [warmup, steps]
    assert cfg.auto_scale_lr.base_batch_size == 16
    for words in (f'AdamW with lr={lr}', 'was SGD with lr=0.02', 'gradient clip', f'{warmup["end"]} iterations',
                  'that of 16 images per step, was 64', 'no weight decay for norms'):
        assert words in notes


def test_polynomial_schedules_start_after_the_warmup_and_end_at_zero():
    """The old floor of 1e-4 would lie above the new learning rate."""
    poly = dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=0, end=40000, by_epoch=False)
    cfg, _ = recipe('segmentation', optim_wrapper=dict(optimizer=SGD), param_scheduler=poly)
    assert [scheduler.type for scheduler in cfg.param_scheduler] == ['LinearLR', 'PolyLR']
    assert dict(cfg.param_scheduler[1]) == dict(poly, eta_min=0., power=1., begin=1500)


def test_floors_follow_the_learning_rate():
    cosine = dict(type='CosineAnnealingLR', eta_min=0.001, begin=5, T_max=295, end=300, by_epoch=True)
    quadratic = dict(type='QuadraticWarmupLR', by_epoch=True, begin=0, end=5, convert_to_iter_based=True)
    cfg, notes = recipe(optim_wrapper=dict(optimizer=SGD), param_scheduler=[quadratic, cosine])
    assert dict(cfg.param_scheduler[0]) == quadratic and 'QuadraticWarmupLR is kept' in notes
    assert dict(cfg.param_scheduler[1]) == dict(cosine, eta_min=5e-6)


def test_warmup_of_short_trainings():
    cfg, _ = recipe(optim_wrapper=dict(optimizer=SGD), train_cfg=dict(type='IterBasedTrainLoop', max_iters=2000))
    assert cfg.param_scheduler[0].end == 200


def test_adamw_keeps_its_rate():
    schedule = [dict(type='MultiStepLR', milestones=[11], by_epoch=True)]
    adamw = dict(type='AdamW', lr=2e-4, weight_decay=1e-4)
    cfg, notes = recipe(optim_wrapper=dict(optimizer=adamw), param_scheduler=schedule)
    assert dict(cfg.optim_wrapper.optimizer) == adamw and cfg.param_scheduler[0].milestones == [11]
    assert len(cfg.param_scheduler) == 1 and 'AdamW is kept with lr=0.0002' in notes


@pytest.mark.parametrize(('name', 'lr', 'decay', 'batch'), [
    ('MaskFormer', 6e-5, 0.01, 64), ('RTMDet', 1e-3, 0.05, 128), ('IterativeDecodeHead', 6e-5, 0.0005, 16)])
def test_models_with_a_recipe_of_their_own(name, lr, decay, batch):
    """As in mmdet's and mmseg's configs of these models on Swin."""
    cfg, _ = recipe(names=['EncoderDecoder', name], auto_scale_lr=dict(base_batch_size=8), optim_wrapper=dict(
        optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4, eps=1e-8)))
    assert dict(cfg.optim_wrapper.optimizer) == dict(type='AdamW', lr=lr, weight_decay=decay, eps=1e-8)
    assert cfg.auto_scale_lr.base_batch_size == batch


def test_constructors_of_other_backbones():
    wrapper = dict(
        type='OptimWrapper', constructor='LearningRateDecayOptimizerConstructor',
        optimizer=dict(type='AdamW', lr=2e-4, weight_decay=0.05),
        paramwise_cfg=dict(decay_rate=0.7, decay_type='layer_wise', num_layers=12))
    cfg, notes = recipe(optim_wrapper=wrapper)
    assert 'constructor' not in cfg.optim_wrapper and list(cfg.optim_wrapper.paramwise_cfg) == ['custom_keys']
    assert cfg.optim_wrapper.optimizer.lr == 1e-4
    assert 'LearningRateDecayOptimizerConstructor is left out' in notes
    with pytest.raises(InputError, match='keep_optimizer cannot keep LearningRateDecayOptimizerConstructor'):
        check_kept_optimizer(Config(dict(optim_wrapper=wrapper)))


def test_no_optimizer():
    cfg, notes = recipe()
    assert 'optim_wrapper' not in cfg and notes == 'the config has no optimizer: nothing is set for training'


def test_kept_optimizer():
    source = shipped('mmseg', 'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py')
    swap = swap_backbone(source, keep_optimizer=True)
    for key in ('optim_wrapper', 'param_scheduler'):
        assert swap.cfg[key] == source[key]
    assert 'optimizer and schedule are kept' in swap.notes


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_every_arch_has_a_drop_path_and_weights(task):
    from swin_rpe_mm.models.config import ARCHS
    for arch in ARCHS:
        assert 0 <= drop_path_of(arch, task) <= 0.3
        assert arch.endswith('nano') != (arch in PRETRAINED)
        assert arch not in PRETRAINED or PRETRAINED[arch].startswith('https://github.com/SwinTransformer/storage/')
