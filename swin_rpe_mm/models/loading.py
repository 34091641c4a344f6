"""Weights of any Swin into SwinRPE, whoever loads them."""
import logging
from typing import Dict, Optional

from mmengine.logging import print_log
from torch import Tensor, nn

from ..checkpoints import (
    LoadReport,
    fit_embedding,
    fit_input_channels,
    read_checkpoint,
    size_of_embedding,
    to_mm_layout,
    unwrap,
)
from ..errors import InputError
from . import DERIVED_BUFFERS
from ..rpe.reshaping import note_loaded, note_reshaped

_TABLE = 'relative_position_bias_table'
_FIRST_CONV = 'patch_embed.projection.weight'


def register_loading(backbone: nn.Module) -> None:
    """Have every state dict that is loaded into ``backbone`` converted, fitted and reported."""
    backbone._register_state_dict_hook(_note_windows)
    backbone._register_load_state_dict_pre_hook(_convert, with_module=True)


def load_pretrained(backbone: nn.Module, checkpoint: str, prefix: Optional[str] = None, trust: bool = False) -> None:
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


def _convert(backbone: nn.Module, state_dict: dict, prefix: str, metadata: dict, *_) -> None:
    """Bring the weights under ``prefix`` into our layout and our sizes, and say what became of them."""
    own = {key[len(prefix):]: state_dict.pop(key) for key in list(state_dict) if key.startswith(prefix)}
    if not own:
        return
    given = unwrap(own)
    weights, family = to_mm_layout(given)
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


def _count_tables(backbone: nn.Module, weights: Dict[str, Tensor], model: Dict[str, Tensor], metadata: dict) -> int:
    """How many tables the encodings will read for another window: other rows, or as many of another window."""
    noted = metadata.get('window_sizes', ())
    count = 0
    for key, value in weights.items():
        if _TABLE not in key or key not in model:
            continue
        stage = int(key.split('.')[1])
        joint = key.endswith(f'.w_msa.{_TABLE}') and stage < len(noted)
        count += len(value) != len(model[key]) or (joint and noted[stage] != backbone.stages[stage].window_size)
    return count


def _fit(backbone: nn.Module, weights: Dict[str, Tensor], model: Dict[str, Tensor], metadata: dict) -> int:
    """Fit embeddings and the first convolution in place; returns how many embeddings were resampled."""
    window = backbone.stages[0].window_size
    sizes = {'absolute_pos_embed': (getattr(backbone, 'pos_embed_size', None), None, 'pretrain_img_size'),
             'window_pos_embed': (window, metadata.get('window_sizes', (None, ))[0], 'window_size')}
    resampled = 0
    for name, (new, noted, argument) in sizes.items():
        if name in weights and name in model:
            old = noted or size_of_embedding(name, weights[name].shape[1], new, argument)
            resampled += old != new
            weights[name] = fit_embedding(weights[name], old, new)
            # an optimizer's averages in the file are of the same size as its embedding
            (note_loaded if old == new else note_reshaped)(backbone.get_parameter(name))
    if _FIRST_CONV in weights and weights[_FIRST_CONV].ndim == 4:
        old, new = weights[_FIRST_CONV].shape[1], model[_FIRST_CONV].shape[1]
        weights[_FIRST_CONV] = fit_input_channels(weights[_FIRST_CONV], new, backbone.input_weights)
        if old != new:
            print_log(f'SwinRPE: the first convolution of {old} channels was made one of {new} '
                      f'({backbone.input_weights})', 'current')
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
        skip = 1 if _TABLE in key else 0  # rows follow the window
        if value.shape[skip:] != model[key].shape[skip:]:
            raise InputError(f"{key} of the checkpoint has the shape {tuple(value.shape)}, the model's "
                             f'{tuple(model[key].shape)}: its arch, embed_dims, num_heads, mlp_ratio or patch_size is '
                             'another one')


def _note_windows(backbone: nn.Module, _state_dict: dict, _prefix: str, metadata: dict) -> None:
    metadata['window_sizes'] = tuple(stage.window_size for stage in backbone.stages)
