"""Our weights in the layout of mmdet, mmpretrain or timm, so that those load them strictly: the inverse of ``layouts``.
"""
import re
from collections.abc import Mapping
from typing import Dict, List, Tuple

import torch
from torch import Tensor

from ..errors import InputError
from ..rpe.interpolate import source_sides
from .layouts.names import renamed, stages
from .paths import to_mm_names, to_paths

TARGETS = ('mmdet', 'mmpretrain', 'timm')

_TABLE, _INDEX, _COORDS = 'relative_position_bias_table', 'relative_position_index', 'relative_coords_table'
_KINDS = {_TABLE: 'TableRPE', 'cpb_mlp.0.weight': 'LogCPB'}  # by a key that each has
_AFFINE = r'\.(weight|bias)'
_ATTENTION = r'stages\.\d+\.blocks\.\d+\.attn\.w_msa\.'
# what every Swin of every project has
_COMMON = (
    rf'patch_embed\.(projection|norm){_AFFINE}',
    rf'stages\.\d+\.blocks\.\d+\.(norm1|norm2|ffn\.layers\.0\.0|ffn\.layers\.1){_AFFINE}',
    rf'stages\.\d+\.downsample\.(norm|reduction){_AFFINE}',
    rf'{_ATTENTION}(qkv|proj){_AFFINE}',
    rf'norm\d+{_AFFINE}',
)
_OF_V1 = (rf'{_ATTENTION}{_TABLE}', )
_OF_V2 = (rf'{_ATTENTION}(logit_scale|q_bias|v_bias|cpb_mlp\.0\.weight|cpb_mlp\.0\.bias|cpb_mlp\.2\.weight)', )
_EMBEDDING = r'absolute_pos_embed'
# what only our models have, and the argument that makes it
_OURS = {
    r'\.pooled_rpe\.': 'pooled_neighbours',
    r'\.rpe\.|relative_position_bias_table|cpb_mlp': 'rpe',
    r'window_pos_embed': "use_abs_pos_embed='window'",
    r'absolute_pos_embed': 'use_abs_pos_embed',
}


def to_layout(state_dict: Mapping, target: str) -> Tuple[Dict[str, Tensor], List[str]]:
    """Bring a backbone's state dict, in our layout, into that of another project.

    The other project computes the same as our model does with ``mask_padding=False`` and with windows that shift as its
    own do; arguments of a model that leave no trace in its weights are not looked at.

    Args:
        state_dict (Mapping): Weights by name without any prefix, with the ``_metadata`` of torch, if there is any.
        target (str): ``mmdet``, whose layout is mmseg's too, ``mmpretrain`` or ``timm`` (from 0.9 on, with
            ``num_classes=0``).

    Returns:
        tuple: The weights under the other names, with the buffers that strict loading needs, and sentences about what
        the other layout does not say.

    Raises:
        InputError: If ``target`` is none of these, or the weights have something that has no place there.
    """
    if target not in TARGETS:
        raise InputError(f'the layout to convert to must be one of {", ".join(TARGETS)}, got {target!r}')
    noted, notes = getattr(state_dict, '_metadata', {}), []
    named = to_mm_names(state_dict, noted)
    if named.keys() != state_dict.keys() and not any('encoding' in note for note in noted.values()):
        notes.append(f'the file does not say which encoding it has: it was taken for the one of {target}')
    state_dict = named
    weights = {key: value for key, value in state_dict.items() if not key.endswith((_INDEX, _COORDS))}
    version_2 = any(key.endswith('.logit_scale') for key in weights)
    if version_2 and target == 'mmdet':
        raise InputError('mmdet and mmseg have no SwinV2; mmpretrain and timm have')
    _check_places(weights, noted, version_2, target)
    if version_2:
        notes += _pretrained_windows(noted, target)
    else:
        windows = _windows(state_dict, noted, target)
        if target != 'timm':
            _check_square(windows, target)
            weights = _with_indices(weights, windows)
    if target == 'timm':
        weights, left_out = _in_layout_of_timm(weights)
        notes += left_out
    elif version_2:  # mmpretrain's merges patches at the start of a stage
        weights = renamed(weights, _merging_moves(weights))
    return weights, notes


def note_windows(state_dict: Dict[str, Tensor], metadata: Dict[str, dict]) -> Dict[str, Tensor]:
    """Bring weights with mm's names and buffers under those that our models give them. What index buffers tell becomes
    the notes that our state dicts have in their metadata.

    Where earlier versions of ours put several encodings together, names stay: only the model knows their places.

    Args:
        state_dict (dict[str, Tensor]): Weights in mm's layout.
        metadata (dict[str, dict]): The notes by module, which are added to in place.

    Returns:
        dict[str, Tensor]: The weights without those buffers. SwinV2's ``relative_coords_table`` stays: it tells the
        window that the weights were trained with.
    """
    below = (path.partition('.rpe.') for path in (*state_dict, *metadata))
    several = {attention for attention, _, rest in below if rest and not rest.startswith('cpb_mlp')}
    found: Dict[str, List[str]] = {}
    for key in state_dict:
        for name in _KINDS:
            attention = key.removesuffix(f'.{name}')
            if attention != key and attention.endswith('.w_msa') and attention not in several:
                found.setdefault(attention, []).append(name)
    alone = {attention: names[0] for attention, names in found.items() if len(names) == 1}
    for attention, name in alone.items():
        note = metadata.setdefault(f'{attention}.rpe', {})
        note.setdefault('encoding', (_KINDS[name], ))
        metadata.setdefault('', {}).setdefault('encodings', {})[f'{attention}.rpe'] = note
        table, index = f'{attention}.{_TABLE}', state_dict.get(f'{attention}.{_INDEX}')
        if name == _TABLE and index is not None:
            note.setdefault('offset_sides', tuple(source_sides(len(state_dict[table]), index, (0, 0), table)))
    weights = {key: value for key, value in state_dict.items() if not key.endswith(_INDEX)}
    return {path if path.partition('.rpe.')[0] in alone else key: value
            for (key, value), path in zip(weights.items(), to_paths(weights))}


def _check_places(weights: Dict[str, Tensor], noted: Mapping, version_2: bool, target: str) -> None:
    """Raise :class:`InputError` for a tensor that has no place in the other layout, or a place without its tensor."""
    kind = 'SwinV2' if version_2 else 'Swin'
    embedding = () if target == 'timm' else (_EMBEDDING, )
    allowed = re.compile('|'.join((*_COMMON, *(_OF_V2 if version_2 else _OF_V1), *embedding)))
    for key in weights:
        if not allowed.fullmatch(key):
            raise InputError(f'{key} has no place in the {kind} of {target}{_reason(key)}')
    for key in noted:
        if re.search(r'\.rpe\.encodings\.', key):
            raise InputError(f'{key} has no place in the {kind} of {target}: the argument rpe gives several encodings')
    needed = 'cpb_mlp.2.weight' if version_2 else _TABLE
    for key in list(weights):
        attention = key[:-len('qkv.weight')]
        if key.endswith('.qkv.weight') and attention + needed not in weights:
            raise InputError(f'the {kind} of {target} needs {attention}{needed}, which is not there: the argument rpe '
                             'gives another encoding, or none')


def _reason(key: str) -> str:
    for pattern, argument in _OURS.items():
        if re.search(pattern, key):
            return f': it comes from the argument {argument}'
    return ''


def _windows(state_dict: Mapping, noted: Mapping, target: str) -> Dict[str, Tuple[int, int]]:
    """The window that each table is for, by the table's key.

    Raises:
        InputError: If it cannot be told, or the keys reach beyond it.
    """
    own = noted.get('', {})
    windows, stage_windows = {}, own.get('window_sizes') or [own.get('window_size')]
    for key, table in state_dict.items():
        if not key.endswith(_TABLE):
            continue
        attention = key[:-len(_TABLE)]
        sides = noted.get(f'{attention}rpe', {}).get('offset_sides')
        if sides is None:
            sides = source_sides(len(table), state_dict.get(attention + _INDEX), (0, 0), key)
        windows[key] = tuple((side + 1) // 2 for side in sides)
        stage = int(key.split('.')[1])
        of_stage = stage_windows[stage] if stage < len(stage_windows) else None
        if any(side % 2 == 0 for side in sides) or (of_stage and tuple(of_stage) != windows[key]):
            raise InputError(f'{key} has no place in the Swin of {target}: it is for keys beyond the window, and comes '
                             'from the argument halo')
    return windows


def _check_square(windows: Dict[str, Tuple[int, int]], target: str) -> None:
    for key, window in windows.items():
        first = next(iter(windows.values()))
        if window[0] != window[1] or window != first:
            raise InputError(f'{target} has one square window in all stages, and {key} is for a window of '
                             f'{window[0]}x{window[1]}' + (f', not {first[0]}x{first[1]}' if window != first else '') +
                             ': change it with set_window_size, or convert to timm')


def _with_indices(weights: Dict[str, Tensor], windows: Dict[str, Tuple[int, int]]) -> Dict[str, Tensor]:
    """The index buffers of mmdet and mmpretrain, each behind its table."""
    result = {}
    for key, value in weights.items():
        result[key] = value
        if key in windows:
            result[key[:-len(_TABLE)] + _INDEX] = _index(windows[key][0])
    return result


def _index(side: int) -> Tensor:
    """Row of the table for each pair of slots of a square window, ``(side**2, side**2)``."""
    place = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    down, across = (place[:, None] - place[None] + side - 1).unbind(-1)
    return down * (2 * side - 1) + across


def _pretrained_windows(noted: Mapping, target: str) -> List[str]:
    """SwinV2's biases depend on the window of its training, which its weights do not say."""
    by_stage = {int(key.split('.')[1]): note['pretrained_window_size'] for key, note in noted.items()
                if key.startswith('stages.') and 'pretrained_window_size' in note}
    if not by_stage:
        return []
    sizes = [window[0] if len(set(window)) == 1 else tuple(window) for _, window in sorted(by_stage.items())]
    return [f'build the model of {target} with pretrained_window_sizes={sizes}']


def _in_layout_of_timm(weights: Dict[str, Tensor]) -> Tuple[Dict[str, Tensor], List[str]]:
    last = max(stages(weights, r'stages\.(\d+)\.'))
    norms = sorted({key.partition('.')[0] for key in weights if re.match(r'norm\d', key)} - {f'norm{last}'})
    notes = [f'left out, as timm has one output norm: {", ".join(norms)}'] if norms else []
    weights = {key: value for key, value in weights.items() if key.partition('.')[0] not in norms}
    merging = _merging_moves(weights)
    return renamed(_in_order_of_tokens(weights), [
        *merging,
        (rf'^norm{last}\.', 'norm.'),
        (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
        (r'^stages\.', 'layers.'),
        (r'\.attn\.w_msa\.', '.attn.'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
    ]), notes


def _merging_moves(weights: Dict[str, Tensor]) -> List[Tuple[str, str]]:
    """Rules that put patch merging at the start of the next stage, from the last on, so that none is moved twice."""
    merging = sorted(stages(weights, r'stages\.(\d+)\.downsample\.'), reverse=True)
    return [(rf'^stages\.{i}\.downsample\.', f'stages.{i + 1}.downsample.') for i in merging]


def _in_order_of_tokens(weights: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Patch merging joins whole tokens there, (0,0), (1,0), (0,1), (1,1), where ours goes channel by channel."""
    result = dict(weights)
    for key, value in weights.items():
        if not key.endswith('.downsample.reduction.weight'):
            continue
        result[key] = _by_token(value)
        for norm in (key.replace('reduction.weight', 'norm.weight'), key.replace('reduction.weight', 'norm.bias')):
            if norm in weights and len(weights[norm]) == value.shape[1]:  # SwinV2 norms what the projection gives
                result[norm] = _by_token(weights[norm])
    return result


def _by_token(value: Tensor) -> Tensor:
    by_channel = value.unflatten(-1, (-1, 4))[..., [0, 2, 1, 3]]
    return by_channel.transpose(-2, -1).flatten(-2)
