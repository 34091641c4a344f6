"""A config of MMDetection or MMSegmentation in, the same model on SwinRPE out."""
from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config

from ...errors import InputError
from ...models.config import ARCHS
from ..configs import as_list, load_config, task_of, type_name
from .consumers import Wiring, rewire
from .feature_maps import image_channels
from .find import Place, find_backbone
from .preprocessor import swap_preprocessors
from .recipe import check_kept_optimizer, set_no_decay, set_recipe
from .weights import PRETRAINED, drop_path_of

BACKBONE = 'swin_rpe_mm.SwinRPE'
_SWIN = ('SwinTransformer', 'mmdet.SwinTransformer', 'mmseg.SwinTransformer', 'SwinRPE', BACKBONE)


@dataclass
class Swap:
    """A config on SwinRPE.

    Attributes:
        cfg (Config): The new config.
        source (Config): The config it was made from, unchanged.
        notes (list[str]): Sentences about what was changed and what was kept.
        keeps_weights (bool): Whether the model had Swin before, so that checkpoints of the source load into it.
    """
    cfg: Config
    source: Config
    notes: list[str] = field(default_factory=list)
    keeps_weights: bool = False


def swap_backbone(cfg: Config | str | Path,
                  arch: str | None = None,
                  rpe: dict | list | str | None = 'default',
                  window_size: int | tuple | list | None = None,
                  pretrained: str | None = 'default',
                  drop_path_rate: float | None = None,
                  keep_optimizer: bool = False) -> Swap:
    """Put the model of a config on SwinRPE, ready to train.

    The backbone is found inside wrappers (tracking, teacher and student), and everything that depends on its channels,
    strides and numbers of maps is rewritten. The optimizer becomes that of the published Swin recipes. A model that
    has mmdet's or mmseg's ``SwinTransformer`` keeps everything but the type, and its checkpoints.

    Args:
        cfg (Config | str | Path): The config, or its file. It is not changed.
        arch (str, optional): An arch of :class:`~swin_rpe_mm.SwinRPE`. None means ``tiny``, and for a model that has
            Swin already, its own sizes.
        rpe (dict | list | str | None): As in ``SwinRPE``; a string other than ``default`` is a type.
        window_size (int | tuple | list, optional): As in ``SwinRPE``.
        pretrained (str, optional): File or address of the backbone's weights; ``default`` are the published ones of
            ``arch``, None trains from random weights.
        drop_path_rate (float, optional): None means that of the published recipes.
        keep_optimizer (bool): Leave optimizer, learning rate and schedule as they are.

    Raises:
        InputError: If an argument is wrong, or a part of the model cannot be built here.
        SwapRefused: If the model cannot be on another backbone; says why.
    """
    if not isinstance(cfg, Config):
        cfg = load_config(str(cfg))
    if arch not in (None, *ARCHS):
        raise InputError(f'arch must be one of {", ".join(ARCHS)}, got {arch!r}')
    new = copy.deepcopy(cfg)
    swap = Swap(new, cfg)
    place = find_backbone(new)
    rpe = dict(type=rpe) if isinstance(rpe, str) and rpe != 'default' else rpe
    if _is_swin(place.backbone) and arch is None:
        _keep_swin(swap, place, rpe, window_size, pretrained, drop_path_rate, keep_optimizer)
    else:
        if keep_optimizer:
            check_kept_optimizer(new)
        _replace(swap, place, arch or 'tiny', rpe, window_size, pretrained, drop_path_rate, keep_optimizer)
    _add_import(new)
    return swap


def _is_swin(backbone: dict) -> bool:
    """mmpretrain's has other arguments."""
    kind = backbone.get('type')
    if isinstance(kind, type):  # in configs in Python's own syntax
        return (kind.__module__.partition('.')[0] in ('mmdet', 'mmseg', 'swin_rpe_mm')
                and kind.__name__ in ('SwinTransformer', 'SwinRPE'))
    return kind in _SWIN and backbone.get('_scope_') != 'mmpretrain'


def _keep_swin(swap: Swap, place: Place, rpe, window_size, pretrained, drop_path_rate, keep_optimizer: bool) -> None:
    """Only types change, and what was asked for."""
    backbone = place.backbone
    swap.notes.append(f'{place.name}: {type_name(backbone)} becomes SwinRPE with all its arguments')
    backbone['type'] = BACKBONE
    if rpe != 'default':
        backbone['rpe'] = rpe
    if window_size is not None:
        backbone['window_size'] = window_size
    if drop_path_rate is not None:
        backbone['drop_path_rate'] = drop_path_rate
    if pretrained != 'default':
        backbone.pop('pretrained', None)
        backbone['init_cfg'] = pretrained and dict(type='Pretrained', checkpoint=pretrained)
    swap.notes += swap_preprocessors(swap.cfg.model, place.path, task_of(swap.cfg), normalise=False)
    swap.notes.append('the recipe is kept')
    if rpe != 'default' and not keep_optimizer:
        swap.notes += set_no_decay(swap.cfg, list(backbone.get('depths') or ARCHS[backbone.get('arch', 'tiny')][1]))
    swap.keeps_weights = rpe == 'default' and window_size is None
    if swap.keeps_weights:
        swap.notes.append('all weights have the shapes that they had: checkpoints of the source load')
    elif rpe == 'default':
        swap.notes.append('checkpoints of the source load, and their tables are resampled for the window')


def _replace(swap: Swap, place: Place, arch: str, rpe, window_size, pretrained, drop_path_rate,
             keep_optimizer: bool) -> None:
    """Another backbone, with everything that hangs on it."""
    cfg, old, task = swap.cfg, place.backbone, task_of(swap.cfg)
    name = type_name(old)
    embed_dims, depths, num_heads = ARCHS[arch]
    before = copy.deepcopy(place.holder)
    wiring = rewire(place, task, cfg.get('default_scope'), lambda stage: embed_dims * 2**stage)

    backbone = dict(type=BACKBONE, arch=arch)
    if image_channels(old) != 3:
        backbone['in_channels'] = image_channels(old)
    if max(wiring.stages) == len(depths):  # as mmdet's rtmdet_l_swin_b_p6
        depths, num_heads = (*depths, 1), (*num_heads, 2 * num_heads[-1])
        backbone.update(depths=depths, num_heads=num_heads, strides=(4, 2, 2, 2, 2))
    if rpe != 'default':
        backbone['rpe'] = rpe
    if window_size is not None:
        backbone['window_size'] = window_size
    if old.get('with_cp'):
        backbone['with_cp'] = True
    backbone['drop_path_rate'] = drop_path_of(arch, task) if drop_path_rate is None else drop_path_rate
    if wiring.stages != [0, 1, 2, 3]:
        backbone['out_indices'] = tuple(wiring.stages)
    weights = PRETRAINED.get(arch) if pretrained == 'default' else pretrained
    if weights:
        backbone['init_cfg'] = dict(type='Pretrained', checkpoint=weights)
        if image_channels(old) != 3:
            backbone['input_weights'] = 'mean'
    place.holder['backbone'] = backbone

    swap.notes.append(f'{place.name}: {name} becomes SwinRPE, arch {arch}, drop path {backbone["drop_path_rate"]}, '
                      f'{"weights " + weights if weights else "random weights"}')
    swap.notes += _tell_maps(wiring) + wiring.notes
    if wiring.unread and not cfg.get('find_unused_parameters'):
        cfg.find_unused_parameters = True
        swap.notes.append(f'find_unused_parameters is set for training in several processes: no gradient reaches the '
                          f'norms of stages {wiring.unread}')
    swap.notes += _tell_changes(before, place)
    swap.notes += _tell_lost(old, place.holder)
    swap.notes += _drop_old_weights(cfg, place, name)
    if cfg.get('data_preprocessor'):  # which mmengine puts into a model that has none
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    normalise = bool(weights) and image_channels(old) == 3
    swap.notes += swap_preprocessors(cfg.model, place.path, task, normalise)
    if keep_optimizer:
        swap.notes.append('optimizer and schedule are kept')
    else:
        heads = as_list(place.holder.get('decode_head'))
        names = [type_name(node) for node in (place.holder, *heads)]
        swap.notes += set_recipe(cfg, names, task, list(depths))


def _tell_maps(wiring: Wiring) -> list[str]:
    pairs = [f'{old.channels} channels at stride {old.stride} -> {new.channels} at {new.stride}'
             for old, new in zip(wiring.old, wiring.new)]
    notes = [f'maps: {", ".join(pairs)}']
    if any(old.stride != new.stride for old, new in zip(wiring.old, wiring.new)):
        notes.append('strides are others than before: dilations and pool scales of heads are kept')
    return notes


def _tell_changes(before: dict, place: Place) -> list[str]:
    """What was rewritten beside the backbone."""
    notes = []

    def compare(old, new, name: str) -> None:
        if isinstance(new, dict) and isinstance(old, dict):
            for key in new:
                if (name, key) != (place.name.rpartition('.')[0], 'backbone'):
                    compare(old.get(key), new[key], f'{name}.{key}')
        elif isinstance(new, (list, tuple)) and new and isinstance(new[0], dict):
            for i, item in enumerate(new):
                compare(old[i], item, f'{name}[{i}]')
        elif old != new:
            notes.append(f'{name}: {old} -> {new}')

    compare(before, place.holder, place.name.rpartition('.')[0])
    return notes


def _tell_lost(old: dict, holder: dict) -> list[str]:
    """What goes with the old backbone, and what does not."""
    notes = []
    parts = [key for key in ('dcn', 'plugins', 'sac', 'gen_attention') if old.get(key)]
    if parts:
        notes.append(f"the old backbone's {' and '.join(parts)} go with it")
    if old.get('frozen_stages', -1) >= 0:
        notes.append(f'frozen_stages={old["frozen_stages"]} goes with it too: the published recipes train all of Swin')
    if any(key.startswith('teacher') and holder[key] for key in holder):
        notes.append('the teacher keeps its backbone')
    return notes


def _drop_old_weights(cfg: Config, place: Place, name: str) -> list[str]:
    """Weights of a whole model belong to its old backbone."""
    notes = []
    if cfg.get('load_from'):
        notes.append(f'load_from is dropped: its weights belong to {name}')
        cfg.load_from = None
    node = cfg.model
    for key in (*place.path, None):
        for setting in ('pretrained', 'init_cfg'):
            if node.get(setting):
                notes.append(f'{setting} of {type_name(node)} is dropped: its weights belong to {name}')
                node[setting] = None
        if key is not None:
            node = node[key]
    return notes


def _add_import(cfg: Config) -> None:
    """Let upstream's tools find what the config names."""
    imports = cfg.get('custom_imports') or {}
    names = [name for name in as_list(imports.get('imports')) if name != 'swin_rpe_mm']
    cfg.custom_imports = dict(
        imports=[*names, 'swin_rpe_mm'], allow_failed_imports=bool(imports.get('allow_failed_imports', False)))
