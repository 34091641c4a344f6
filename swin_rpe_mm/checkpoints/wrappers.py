"""What training scripts wrap around the weights of a backbone."""
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Dict, Iterable, Optional

from torch import Tensor

from .layouts import ANCHORS

# entries of files that hold the state dict of a model
_ENTRIES = ('state_dict', 'model', 'module', 'net', 'state_dict_ema', 'model_ema')


def unwrap(checkpoint: Mapping, prefix: Optional[str] = None) -> Dict[str, Tensor]:
    """The backbone's state dict in a checkpoint.

    Takes off what training scripts wrap around it: an entry such as ``state_dict`` or ``model``, and what stands before
    the names of a whole detector's, segmentor's, classifier's or pre-training model's backbone, such as ``backbone.``,
    ``module.`` or ``encoder.``. Other parts of the model are left out.

    Args:
        checkpoint (Mapping): As read from the file.
        prefix (str, optional): Take the keys under this prefix, whatever else there is.

    Returns:
        dict[str, Tensor]: Weights by name.
    """
    state_dict = innermost(checkpoint)
    if prefix is None:
        prefix = find_prefix(state_dict)
    elif not prefix.endswith('.'):
        prefix += '.'
    tensors = {key: value for key, value in state_dict.items() if isinstance(value, Tensor)}
    weights = OrderedDict(_under(tensors, prefix))
    # what modules noted beside their weights, under their names; torch's load_state_dict looks for it here
    notes = {f'{key}.': value for key, value in getattr(state_dict, '_metadata', {}).items() if key}
    notes[''] = getattr(state_dict, '_metadata', {}).get('', {})
    notes = {key.rstrip('.'): value for key, value in _under(notes, prefix).items()}
    weights._metadata = notes  # type: ignore[attr-defined]
    return weights


def innermost(checkpoint: Mapping) -> Mapping:
    """The state dict in the entries of a file."""
    for entry in _ENTRIES:
        if isinstance(checkpoint.get(entry), Mapping):
            return innermost(checkpoint[entry])
    return checkpoint


def find_prefix(keys: Iterable[str]) -> Optional[str]:
    """What stands before the names of a Swin among ``keys``; None if there is none.

    Where there are several, as in a file with a momentum encoder, a ``backbone`` goes before others, then the shortest.
    """
    pattern = re.compile(rf'((?:.*?\.)??)(?:{"|".join(ANCHORS)})')
    found = {match[1] for match in map(pattern.fullmatch, keys) if match}
    return min(found, key=lambda prefix: (not prefix.endswith('backbone.'), len(prefix), prefix), default=None)


def _under(entries: Mapping, prefix: Optional[str]) -> dict:
    """The entries under ``prefix``, without it. None is for parts of a backbone: what usually stands before them."""
    if prefix is None:
        entries = dict(entries)
        for usual in ('module.', 'backbone.'):
            entries = _under(entries, usual) or entries
        return entries
    return {key[len(prefix):]: value for key, value in entries.items() if key.startswith(prefix)}
