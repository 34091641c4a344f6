"""Weights of any Swin into SwinRPE, whoever loads them."""
import logging
from typing import Any, Dict, Mapping, Optional

from mmengine.logging import print_log
from torch import Tensor

from ..errors import InputError
from ..models.embeddings import fit_embedding, fit_input_channels, size_of_embedding
from ..models.swin import Swin
from ..rpe import RelativePositionEncoding
from .files import read_checkpoint
from .layouts import to_mm_layout
from .paths import DERIVED_BUFFERS, swin_places, to_mm_names, to_paths
from .report import LoadReport
from .wrappers import unwrap

_FIRST_CONV = 'patch_embed.projection.weight'


def register_loading(backbone: Swin) -> None:
    """Have every state dict that is loaded into ``backbone`` converted, fitted and reported."""
    backbone._register_state_dict_hook(_note)
    backbone._register_load_state_dict_pre_hook(_convert, with_module=True)


def load_pretrained(backbone: Swin,
                    checkpoint: str,
                    prefix: Optional[str] = None,
                    trust: bool = False,
                    map_location: Any = 'cpu') -> None:
    """Load the file or address of an ``init_cfg``.

    Raises:
        InputError: If it cannot be read, or does not fit; the sentence names it.
    """
    weights = unwrap(read_checkpoint(checkpoint, map_location, trust), prefix)
    print_log(f'SwinRPE loads {checkpoint}', 'current')
    try:
        if not weights:
            raise InputError('it holds no weights')
        backbone.load_state_dict(weights, strict=False)
    except InputError as error:
        raise InputError(f'{checkpoint} does not fit: {error}') from error


def _convert(backbone: Swin, state_dict: dict, prefix: str, metadata: dict, *_) -> None:
    """Bring the weights under ``prefix`` into our layout and our sizes, and say what became of them."""
    own = {key[len(prefix):]: state_dict.pop(key) for key in list(state_dict) if key.startswith(prefix)}
    if not own:
        return
    given = unwrap(own)
    noted = _noted(state_dict, metadata)
    weights, family = to_mm_layout(given)
    # what only moves into its encoding is as it was
    converted = sum(given.get(key) is not weights[key] for key in weights if not key.endswith(DERIVED_BUFFERS))
    model = backbone.state_dict()
    weights = _at_paths(weights, backbone, model, noted)
    tables = _offset_tables(backbone)
    report = LoadReport.compare(
        model,
        [key for key in weights if not key.endswith(DERIVED_BUFFERS)],
        family=family,
        converted=converted,
        resampled=_count_tables(backbone, weights, tables, noted) + _fit(backbone, weights, model, noted))
    report.check('the checkpoint', 'SwinRPE')
    _check_kind(weights, model)
    _check_shapes(weights, model, tables)
    print_log(f'SwinRPE: {report}', 'current')
    if report.details():
        print_log(f'SwinRPE: {report.details()}', 'current', logging.DEBUG)
    state_dict.update({prefix + key: value for key, value in weights.items()})


def _note(backbone: Swin, state_dict: Dict[str, Tensor], prefix: str, metadata: dict) -> None:
    metadata['window_sizes'] = tuple(stage.window_size for stage in backbone.stages)
    metadata['encodings'] = {path[len(prefix):]: note for path, note in getattr(state_dict, '_metadata', {}).items()
                             if path.startswith(prefix) and 'encoding' in note}


def _noted(state_dict: Mapping, metadata: dict) -> dict:
    """What a backbone of ours noted beside its weights; empty for other projects' and for bare weights."""
    # where a loader took a prefix off the weights, the notes are under their old names
    notes = [metadata, *getattr(state_dict, '_metadata', {}).values()]
    return next((note for note in notes if note.keys() & {'window_sizes', 'encodings'}), {})


def _at_paths(weights: Dict[str, Tensor], backbone: Swin, model: Mapping, noted: Mapping) -> Dict[str, Tensor]:
    """Weights under the paths of the model. Encodings of several kinds have tables of one name: what an encoding of
    another kind would have under the path of one's own gets a name that nothing has."""
    apart = {}
    if 'encodings' in noted:
        weights = to_mm_names(weights, noted['encodings'])
        apart = {key: kind for key, kind in _kinds(weights, backbone, noted['encodings']).items() if key in model}
    elif noted:  # in files of earlier versions, what is Swin's has mm's names
        apart = {key: 'another encoding' for key in weights if key.startswith(swin_places(backbone))}
    else:
        elsewhere = {key: value for key, value in weights.items() if key not in model}
        weights = {key: value for key, value in weights.items() if key in model} | to_mm_names(elsewhere, {})
    weights = {f'{key} of {apart[key]}' if key in apart else key: value for key, value in weights.items()}
    return to_paths(weights, backbone)


def _kinds(weights: Mapping, backbone: Swin, encodings: Mapping) -> Dict[str, str]:
    """For each of the weights that come from another kind of encoding than the model has at that place, that kind."""
    modules, kinds = dict(backbone.named_modules()), {}
    for key in weights:
        path = max((path for path in encodings if key.startswith(f'{path}.')), key=len, default='')
        own = modules.get(path)
        if isinstance(own, RelativePositionEncoding) and not set(own.kinds) & set(encodings[path]['encoding']):
            kinds[key] = encodings[path]['encoding'][0]
    return kinds


def _offset_tables(backbone: Swin) -> Dict[str, int]:
    """The tables that encodings read for another window, and over how many axes each runs."""
    return {f'{path}.{name}': len(axes) for path, module in backbone.named_modules()
            if isinstance(module, RelativePositionEncoding) for name, axes in module.offset_tables().items()}


def _count_tables(backbone: Swin, weights: Dict[str, Tensor], tables: Mapping, noted: Mapping) -> int:
    """How many tables the encodings will read for another window: other rows, or as many of another window."""
    windows, count = noted.get('window_sizes', ()), 0
    for key in tables:
        if key not in weights:
            continue
        stage = int(key.split('.')[1])
        turned = tables[key] > 1 and stage < len(windows) and windows[stage] != backbone.stages[stage].window_size
        count += turned or len(weights[key]) != len(backbone.get_parameter(key))
    return count


def _fit(backbone: Swin, weights: Dict[str, Tensor], model: Mapping, noted: Mapping) -> int:
    """Fit embeddings and the first convolution in place; returns how many embeddings were resampled."""
    window = backbone.stages[0].window_size
    sizes = {'absolute_pos_embed': (backbone.config.pos_embed_size, None, 'pretrain_img_size'),
             'window_pos_embed': (window, noted.get('window_sizes', (None, ))[0], 'window_size')}
    resampled = 0
    for name, (new, old, argument) in sizes.items():
        if name in weights and name in model:
            old = old or size_of_embedding(name, weights[name].shape[1], new, argument)
            resampled += old != new
            weights[name] = fit_embedding(weights[name], old, new)
    if _FIRST_CONV in weights and weights[_FIRST_CONV].ndim == 4:
        old, new = weights[_FIRST_CONV].shape[1], model[_FIRST_CONV].shape[1]
        weights[_FIRST_CONV] = fit_input_channels(weights[_FIRST_CONV], new, backbone.config.input_weights)
        if old != new:
            print_log(f'SwinRPE: the first convolution of {old} channels was made one of {new} '
                      f'({backbone.config.input_weights})', 'current')
    return resampled


def _check_kind(weights: Dict[str, Tensor], model: Dict[str, Tensor]) -> None:
    """Swin and SwinV2 share most names, and would load into one another."""
    kinds = ['SwinV2' if any(key.endswith('.logit_scale') for key in keys) else 'Swin' for keys in (weights, model)]
    if kinds[0] != kinds[1] and any('.attn.' in key for key in weights):
        raise InputError(f'the checkpoint is one of {kinds[0]}, the model a {kinds[1]}; SwinV2 has an arch that starts '
                         'with v2-')


def _check_shapes(weights: Dict[str, Tensor], model: Mapping, tables: Mapping) -> None:
    for key, value in weights.items():
        old, new = tuple(value.shape), tuple(model.get(key, value).shape)
        if old == new or (key in tables and old[1:] == new[1:]):  # rows follow the window
            continue
        if old[1:] == new[1:] and '.pooled_rpe.' in key:
            cause = 'its pooled_neighbours is another one'
        elif old[1:] == new[1:] and '.rpe.' in key:
            cause = 'its rpe has other options'
        else:
            cause = 'its arch, embed_dims, num_heads, mlp_ratio or patch_size is another one'
        raise InputError(f"{key} of the checkpoint has the shape {old}, the model's {new}: {cause}")
