"""The published recipe of Swin: optimizer, no weight decay where it does harm, warm-up.

A source that uses AdamW already keeps its learning rate and schedule, unless a recipe is published for Swin under that
very model. Milestones are kept throughout.
"""
from __future__ import annotations

from dataclasses import dataclass

from mmengine.config import Config

from ...errors import InputError
from ..configs import as_list, type_name

# constructors that know the layers of one other backbone
_TIED = ('LearningRateDecayOptimizerConstructor', 'LayerDecayOptimizerConstructor')
_WARMUPS = ('LinearLR', 'ConstantLR', 'QuadraticWarmupLR')
_NO_DECAY = ('absolute_pos_embed', 'window_pos_embed', 'relative_position_bias_table', '.rpe.', 'logit_scale', 'norm')


@dataclass(frozen=True)
class Recipe:
    """Learning rate, weight decay, the warm-up's first factor and its length in iterations, and images per step."""
    lr: float
    weight_decay: float
    start_factor: float
    warmup: int
    batch: int = 16


# Mask R-CNN in mmdet and UPerNet in mmseg
_BY_TASK = {
    'detection': Recipe(1e-4, 0.05, 1e-3, 1000),
    'segmentation': Recipe(6e-5, 0.01, 1e-6, 1500),
}
# models and decode heads whose Swin configs in mmdet and mmseg differ from those on other backbones
_BY_MODEL = {
    'MaskFormer': Recipe(6e-5, 0.01, 1e-6, 1500, batch=64),
    'MaskFormerHead': Recipe(6e-5, 0.01, 1e-6, 1500),
    'IterativeDecodeHead': Recipe(6e-5, 0.0005, 1e-3, 1000),
    'RTMDet': Recipe(1e-3, 0.05, 1e-5, 1000, batch=128),
}


def set_recipe(cfg: Config, names: list[str], task: str, depths: list[int]) -> list[str]:
    """Set optimizer, no-decay keys and warm-up.

    Args:
        cfg (Config): The config, which is changed.
        names (list[str]): Types of the detector or segmentor and its head, of which one may have a recipe of its own.
        task (str): ``'detection'`` or ``'segmentation'``.
        depths (list[int]): Blocks of each stage of the new backbone.

    Returns:
        list[str]: Sentences about what was done.
    """
    wrapper = cfg.get('optim_wrapper')
    if not wrapper or not wrapper.get('optimizer'):
        return ['the config has no optimizer: nothing is set for training']
    notes = []
    optimizer = wrapper.optimizer
    published = next((_BY_MODEL[name] for name in names if name in _BY_MODEL), None)
    tied = _constructor(wrapper) in _TIED
    if tied:
        notes.append(f'{_constructor(wrapper)} is left out, it knows the layers of the old backbone only')
        for key in ('constructor', 'paramwise_cfg'):
            wrapper.pop(key, None)
    if type_name(optimizer) == 'AdamW' and not tied and published is None:
        notes.append(f'AdamW is kept with lr={optimizer.get("lr")} and its schedule')
    else:
        recipe = published or _BY_TASK[task]
        old_lr = optimizer.get('lr')
        if type_name(optimizer) == 'AdamW':
            optimizer.update(lr=recipe.lr, weight_decay=recipe.weight_decay)
        else:
            wrapper.optimizer = dict(
                type='AdamW', lr=recipe.lr, betas=(0.9, 0.999), weight_decay=recipe.weight_decay)
        notes.append(f'optimizer: AdamW with lr={recipe.lr} and weight_decay={recipe.weight_decay}, as published for '
                     f'Swin, was {type_name(optimizer)} with lr={old_lr}')
        notes += _set_schedule(cfg, recipe, recipe.lr / old_lr if old_lr else 1., task)
        scale = cfg.get('auto_scale_lr')
        if scale and scale.get('base_batch_size', recipe.batch) != recipe.batch:
            notes.append(f'auto_scale_lr: the learning rate is that of {recipe.batch} images per step, was '
                         f'{scale["base_batch_size"]}')
            scale['base_batch_size'] = recipe.batch
    if wrapper.get('clip_grad'):
        notes.append(f'the gradient clip {dict(wrapper["clip_grad"])} is kept')
    notes += set_no_decay(cfg, depths)
    return notes


def check_kept_optimizer(cfg: Config) -> None:
    """Raise :class:`InputError` for an optimizer that cannot be kept."""
    constructor = _constructor(cfg.get('optim_wrapper') or {})
    if constructor in _TIED:
        raise InputError(f'keep_optimizer cannot keep {constructor}, which knows the layers of the old backbone only')


def _constructor(wrapper: dict) -> str:
    return type_name(dict(type=wrapper.get('constructor')))


def _set_schedule(cfg: Config, recipe: Recipe, ratio: float, task: str) -> list[str]:
    """The recipe's warm-up in place of the old one; floors follow the learning rate, milestones stay."""
    schedulers = as_list(cfg.get('param_scheduler'))
    steps = (cfg.get('train_cfg') or {}).get('max_iters')
    end = min(recipe.warmup, steps // 10) if steps else recipe.warmup
    warmup = dict(type='LinearLR', start_factor=recipe.start_factor, by_epoch=False, begin=0, end=end)
    first = type_name(schedulers[0]) if schedulers else ''
    note = f'warm-up: {end} iterations from {recipe.start_factor:g} times the learning rate'
    if first == 'QuadraticWarmupLR':
        note = f'{first} is kept'
    elif first in _WARMUPS:
        schedulers[0] = warmup
    else:
        schedulers.insert(0, warmup)
    for scheduler in schedulers[1:]:
        if task == 'segmentation' and type_name(scheduler) == 'PolyLR':
            scheduler.update(power=1.0, eta_min=0.0)
            if not scheduler.get('by_epoch', True):
                scheduler['begin'] = max(scheduler.get('begin', 0), end)
        elif scheduler.get('eta_min'):
            scheduler['eta_min'] = float(f'{scheduler["eta_min"] * ratio:.6g}')
    cfg.param_scheduler = schedulers
    return [note]


def set_no_decay(cfg: Config, depths: list[int]) -> list[str]:
    """Add the keys of what must not decay; they carry the backbone's own learning rate where it has one.

    mmengine takes the longest key that is part of a parameter's name, and that one alone. Under a key ``backbone``
    with a multiplier, every no-decay key must be longer than it and repeat the multiplier.

    Args:
        cfg (Config): The config, which is changed.
        depths (list[int]): Blocks of each stage of the backbone.

    Returns:
        list[str]: A sentence about it, or none where there is no optimizer.
    """
    wrapper = cfg.get('optim_wrapper')
    if not wrapper:
        return []
    paramwise = dict(wrapper.get('paramwise_cfg') or {})
    keys = dict(paramwise.get('custom_keys') or {})
    name = 'backbone.stages.0.blocks.0.attn.w_msa.qkv.weight'
    own = next((key for key in sorted(sorted(keys), key=len, reverse=True) if key in name), '')
    setting = dict(decay_mult=0.)
    if own and keys[own].get('lr_mult', 1.) != 1.:
        setting['lr_mult'] = keys[own]['lr_mult']
    added = _NO_DECAY
    if own:
        added = (*_NO_DECAY[:3], 'w_msa.rpe.', 'logit_scale', 'backbone.norm', 'patch_embed.norm', 'downsample.norm',
                 *(f'.blocks.{i}.norm' for i in range(max(depths))))
    for key in added:
        keys.setdefault(key, dict(setting))
    paramwise['custom_keys'] = keys
    wrapper['paramwise_cfg'] = paramwise
    return ['no weight decay for norms and position encodings']
