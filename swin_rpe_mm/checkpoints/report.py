"""Which keys of a checkpoint matched a model."""
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError

_SHOWN = 3


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
