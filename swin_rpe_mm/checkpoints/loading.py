"""Weights of any Swin into SwinRPE, whoever loads them."""
import logging
from typing import Dict, Mapping, Optional

from mmengine.logging import print_log
from torch import Tensor, nn

from ..errors import InputError
from ..models.embeddings import fit_embedding, fit_input_channels, size_of_embedding
from ..models.swin import Swin
from ..rpe import RelativePositionEncoding
from .files import read_checkpoint
from .layouts import to_mm_layout
from .paths import DERIVED_BUFFERS, TABLE, to_mm_names, to_paths
from .report import LoadReport
from .wrappers import unwrap

_IN_MM = ('TableRPE', 'LogCPB')  # what they have gets mm's name first, which tells them apart
_FIRST_CONV = 'patch_embed.projection.weight'


def register_loading(backbone: Swin) -> None:
    """Have every state dict that is loaded into ``backbone`` converted, fitted and reported."""
    backbone._register_state_dict_hook(_note_windows)
    backbone._register_load_state_dict_pre_hook(_convert, with_module=True)


def load_pretrained(backbone: Swin, checkpoint: str, prefix: Optional[str] = None, trust: bool = False) -> None:
    """Load the file or address of an ``init_cfg``.

    Raises:
        InputError: If it cannot be read, or does not fit; the sentence names it.
    """
    weights = unwrap(read_checkpoint(checkpoint, trust=trust), prefix)
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
    noted = _notes(state_dict, prefix)
    weights, family = to_mm_layout(given)
    weights = to_paths(to_mm_names(_set_apart(weights, backbone, noted), noted), backbone)
    model = backbone.state_dict()
    compared = [key for key in weights if not key.endswith(DERIVED_BUFFERS)]
    report = LoadReport.compare(
        model,
        compared,
        family=family,
        converted=sum(given.get(key) is not weights[key] for key in compared),
        resampled=_count_tables(backbone, weights, model, metadata) + _fit(backbone, weights, model, metadata))
    report.check('the checkpoint', 'SwinRPE')
    _check_kind(weights, model)
    _check_shapes(weights, model)
    print_log(f'SwinRPE: {report}', 'current')
    if report.details():
        print_log(f'SwinRPE: {report.details()}', 'current', logging.DEBUG)
    state_dict.update({prefix + key: value for key, value in weights.items()})


def _notes(state_dict: Mapping, prefix: str) -> Dict[str, dict]:
    """What modules noted beside their weights, by their path in the backbone."""
    noted = getattr(state_dict, '_metadata', {})
    return {path[len(prefix):]: note for path, note in noted.items() if path.startswith(prefix)}


def _set_apart(weights: Dict[str, Tensor], backbone: Swin, noted: Mapping) -> Dict[str, Tensor]:
    """Tables of one encoding share their names with those of another: they get names that nothing has."""
    other = {}
    for path, module in backbone.named_modules():
        kind = noted.get(path, {}).get('encoding')
        if isinstance(module, RelativePositionEncoding) and kind not in (None, type(module).__name__, *_IN_MM):
            other[f'{path}.'] = kind
    return {next((f'{key} of {kind}' for path, kind in other.items() if key.startswith(path)), key): value
            for key, value in weights.items()}


def _count_tables(backbone: Swin, weights: Dict[str, Tensor], model: Dict[str, Tensor], metadata: dict) -> int:
    """How many tables the encodings will read for another window: other rows, or as many of another window."""
    noted = metadata.get('window_sizes', ())
    count = 0
    for key, value in weights.items():
        if TABLE not in key or key not in model:
            continue
        stage = int(key.split('.')[1])
        joint = key.endswith(f'.w_msa.rpe.{TABLE}') and stage < len(noted)
        count += len(value) != len(model[key]) or (joint and noted[stage] != backbone.stages[stage].window_size)
    return count


def _fit(backbone: Swin, weights: Dict[str, Tensor], model: Dict[str, Tensor], metadata: dict) -> int:
    """Fit embeddings and the first convolution in place; returns how many embeddings were resampled."""
    window = backbone.stages[0].window_size
    sizes = {'absolute_pos_embed': (backbone.config.pos_embed_size, None, 'pretrain_img_size'),
             'window_pos_embed': (window, metadata.get('window_sizes', (None, ))[0], 'window_size')}
    resampled = 0
    for name, (new, noted, argument) in sizes.items():
        if name in weights and name in model:
            old = noted or size_of_embedding(name, weights[name].shape[1], new, argument)
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


def _check_shapes(weights: Dict[str, Tensor], model: Dict[str, Tensor]) -> None:
    for key, value in weights.items():
        if key not in model or key.endswith(DERIVED_BUFFERS):
            continue
        skip = 1 if TABLE in key else 0  # rows follow the window
        if value.shape[skip:] != model[key].shape[skip:]:
            raise InputError(f"{key} of the checkpoint has the shape {tuple(value.shape)}, the model's "
                             f'{tuple(model[key].shape)}: its arch, embed_dims, num_heads, mlp_ratio or patch_size is '
                             'another one')


def _note_windows(backbone: Swin, _state_dict: dict, _prefix: str, metadata: dict) -> None:
    metadata['window_sizes'] = tuple(stage.window_size for stage in backbone.stages)
