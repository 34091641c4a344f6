"""What a checkpoint file holds for a backbone, and what became of it."""
from collections import OrderedDict
from dataclasses import dataclass
from typing import Dict, Optional, Sequence

from torch import Tensor

from ..errors import InputError

_SHOWN = 3


def unwrap(checkpoint: dict, prefix: Optional[str] = None) -> Dict[str, Tensor]:
    """The backbone's state dict in a checkpoint.

    Takes off what training scripts wrap around it: a ``state_dict`` or ``model`` entry, ``module.`` before every key,
    and the ``backbone.`` of a whole detector or segmentor, whose other parts are left out.

    Args:
        checkpoint (dict): As read from the file.
        prefix (str, optional): Take the keys under this prefix instead of ``backbone.``.

    Returns:
        dict[str, Tensor]: Weights by name.
    """
    for wrapper in ('state_dict', 'model'):
        if isinstance(checkpoint.get(wrapper), dict):
            checkpoint = checkpoint[wrapper]
            break
    prefix = (prefix or 'backbone').rstrip('.') + '.'
    weights = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor)}
    weights = OrderedDict(_strip(_strip(weights, 'module.'), prefix))
    # what modules noted beside their weights, under their own names; torch's load_state_dict looks for it here
    weights._metadata = _strip(_strip(getattr(checkpoint, '_metadata', {}), 'module.'), prefix)
    return weights


def _strip(entries: dict, prefix: str) -> dict:
    """The entries under ``prefix``, without it; all of them if there are none."""
    inner = {key[len(prefix):]: value for key, value in entries.items() if key.startswith(prefix)}
    return inner or entries


@dataclass(frozen=True)
class LoadReport:
    """Which keys of a file matched a model.

    Attributes:
        matched, missing, unexpected (Sequence[str]): Keys in both, in the model only, in the file only.
    """
    matched: Sequence[str]
    missing: Sequence[str]
    unexpected: Sequence[str]

    @classmethod
    def compare(cls, model_keys: Sequence[str], file_keys: Sequence[str]) -> 'LoadReport':
        model, file = set(model_keys), set(file_keys)
        return cls(sorted(model & file), sorted(model - file), sorted(file - model))

    def check(self, source: str, target: str) -> None:
        """Raise :class:`InputError` if nothing of ``source`` matches ``target``."""
        if not self.matched:
            raise InputError(f'no key of {source} matches {target}: the file has {_some(self.unexpected)}, the model '
                             f'needs {_some(self.missing)}')

    def __str__(self) -> str:
        parts = [f'{len(self.matched)} keys matched']
        for name in ('missing', 'unexpected'):
            keys = getattr(self, name)
            parts.append(f'{len(keys)} {name}' + (f' ({_some(keys)})' if keys else ''))
        return ', '.join(parts)


def _some(keys: Sequence[str]) -> str:
    shown = ', '.join(keys[:_SHOWN]) or 'no weights'
    return shown + (', ...' if len(keys) > _SHOWN else '')
