"""What became of a checkpoint: which tensors matched a model."""
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Tuple

from ..errors import InputError

_SHOWN = 3
_ALMOST_NOTHING = 0.1  # of the model's tensors or the file's, whichever are fewer


@dataclass(frozen=True)
class LoadReport:
    """Which tensors of a file matched a model.

    Attributes:
        matched, missing, unexpected (Sequence[str]): Keys in both, in the model only, in the file only.
        family (str): The project whose layout the file has; ``mm`` for ours.
        converted (int): How many tensors got another name or another order.
        resampled (int): How many were read for another window or image size.
    """
    matched: Sequence[str]
    missing: Sequence[str]
    unexpected: Sequence[str]
    family: str = 'mm'
    converted: int = 0
    resampled: int = 0

    @classmethod
    def compare(cls, model_keys: Collection[str], file_keys: Collection[str], **counts) -> 'LoadReport':
        model, file = set(model_keys), set(file_keys)
        return cls(sorted(model & file), sorted(model - file), sorted(file - model), **counts)

    def check(self, source: str, target: str) -> None:
        """Raise :class:`InputError` if nothing, or almost nothing, of ``source`` matches ``target``."""
        in_model, in_file = len(self.matched) + len(self.missing), len(self.matched) + len(self.unexpected)
        if self.matched and len(self.matched) >= _ALMOST_NOTHING * min(in_model, in_file):
            return
        amount = f'only {len(self.matched)} of {in_file} keys' if self.matched else 'no key'
        cause = 'its arch is likely another one'
        if self.family == 'unknown':
            cause = "it is likely another model's, or a Swin's under a name that the prefix of init_cfg must give"
        raise InputError(f'{amount} of {source} matches {target}: the file has {_some(self.unexpected)}, the model '
                         f'needs {_some(self.missing)}; {cause}')

    def __str__(self) -> str:
        parts = [f'{len(self.matched)} keys matched']
        if self.converted:
            parts.append(f'{self.converted} converted from the layout of {self.family}')
        if self.resampled:
            parts.append(f'{self.resampled} resampled')
        for name, keys in self._differences():
            few = f' ({", ".join(keys)})' if 0 < len(keys) <= _SHOWN else ''
            parts.append(f'{len(keys)} {name}{few}')
        return ', '.join(parts)

    def details(self) -> str:
        """All names that :meth:`__str__` counts and does not show; empty if there are none."""
        return '; '.join(f'{name}: {", ".join(keys)}' for name, keys in self._differences() if len(keys) > _SHOWN)

    def _differences(self) -> Tuple[Tuple[str, Sequence[str]], ...]:
        return ('missing', self.missing), ('unexpected', self.unexpected)


def _some(keys: Sequence[str]) -> str:
    shown = ', '.join(keys[:_SHOWN]) or 'no weights'
    return shown + (', ...' if len(keys) > _SHOWN else '')
