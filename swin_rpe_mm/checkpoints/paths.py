"""mm's names of what belongs to an encoding, and the paths that it has here.

mm keeps Swin's table and SwinV2's network directly in the attention module. Here they belong to the encoding, and every
key is the path of a parameter: ``attn.w_msa.rpe.relative_position_bias_table`` for mm's
``attn.w_msa.relative_position_bias_table``, and ``attn.w_msa.rpe.cpb_mlp.0.weight`` likewise. Files of earlier versions
have mm's names.
"""
import re
from collections.abc import Mapping
from typing import Dict, Iterator, Optional, Tuple

from torch import Tensor, nn

from ..models.block import WindowAttention
from ..rpe import LogCPB, TableRPE

TABLE = 'relative_position_bias_table'
# buffers of other projects that follow from the window, and tell which one a file was made for
DERIVED_BUFFERS = ('relative_position_index', 'relative_coords_table')
# what mm has in the attention module: the encoding that it belongs to here, and the buffer beside it
_IN_MM_PLACE = {TABLE: (TableRPE, DERIVED_BUFFERS[0]), 'cpb_mlp': (LogCPB, DERIVED_BUFFERS[1])}
_ATTENTION = r'(?P<attention>.*\.attn\.w_msa\.)'
_OF_ENCODING = re.compile(rf'{_ATTENTION}(?P<encoding>.+)\.(?P<name>{TABLE}$|cpb_mlp(?=\.)).*')
_OF_ATTENTION = re.compile(
    rf'{_ATTENTION}(?P<rest>(?P<name>{TABLE}$|{"|".join(DERIVED_BUFFERS)}|cpb_mlp(?=\.)).*)')


def to_mm_names(weights: Mapping, noted: Mapping) -> Dict[str, Tensor]:
    """Paths as mm's names, of those encodings that mm has: the first table of offsets, or network, of each attention.

    Args:
        weights (Mapping): Tensors by name.
        noted (Mapping): What modules noted beside them, by their path. Without notes of ours, the table or network of
            an attention's only encoding is taken for Swin's or SwinV2's.
    """
    bare = not any(note.keys() & {'encoding', 'window_sizes'} for note in noted.values())
    moved: Dict[str, str] = {}
    owners: Dict[Tuple[str, str], str] = {}
    for key in weights:
        match = _OF_ENCODING.fullmatch(key)
        if match is None:
            continue
        attention, name, path = match['attention'], match['name'], match['attention'] + match['encoding']
        kind = noted.get(path, {}).get('encoding', ())[:1]
        known = match['encoding'] == 'rpe' if bare else kind == (_IN_MM_PLACE[name][0].__name__, )
        if known and owners.setdefault((attention, name), path) == path:
            moved[key] = attention + key[len(path) + 1:]
    return {moved.get(key, key): value for key, value in weights.items()}


def to_paths(weights: Mapping, model: Optional[nn.Module] = None) -> Dict[str, Tensor]:
    """mm's names as paths.

    Args:
        weights (Mapping): Tensors by name.
        model (nn.Module, optional): The backbone that they are for. None means one encoding in each attention. What
            has no place in the model keeps its name, but for buffers, which are left out.
    """
    places = None if model is None else dict(_places(model))
    result = {}
    for key, value in weights.items():
        match = _OF_ATTENTION.fullmatch(key)
        if match is None:
            result[key] = value
            continue
        place = 'rpe.' if places is None else places.get((match['attention'], match['name']))
        if place is not None:
            result[match['attention'] + place + match['rest']] = value
        elif match['name'] not in DERIVED_BUFFERS:
            result[key] = value
    return result


def swin_places(model: nn.Module) -> Tuple[str, ...]:
    """What the paths in a model start with that have a name in mm."""
    return tuple(f'{attention}{place}{name}' for (attention, name), place in _places(model) if name in _IN_MM_PLACE)


def _places(model: nn.Module) -> Iterator[Tuple[Tuple[str, str], str]]:
    """Where, in each attention, the first encoding is that has what mm names so."""
    for path, attention in model.named_modules():
        if not isinstance(attention, WindowAttention):
            continue
        for name, (kind, buffer) in _IN_MM_PLACE.items():
            own = next((f'{part}.' for part, module in attention.named_modules() if isinstance(module, kind)), None)
            if own is not None:
                yield (f'{path}.', name), own
                yield (f'{path}.', buffer), own
