"""The new config as a file: what differs from the source, which it inherits from, or all of it."""
from __future__ import annotations

import os
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from mmengine.config import Config

from ...errors import InputError
from .swap import Swap

_PACKAGES = ('mmdet', 'mmseg', 'mmpretrain')
_WIDTH = 120


def write_config(swap: Swap, out: str | Path, flat: bool = False) -> list[str]:
    """Write a config that reads as ``swap.cfg``.

    Args:
        swap (Swap): What :func:`~swin_rpe_mm.swap_backbone` gave.
        out (str | Path): The file; it appears when it is complete.
        flat (bool): Write all of it instead of the differences.

    Returns:
        list[str]: Sentences about how it was written.

    Raises:
        InputError: If it cannot be written.
    """
    out = Path(out)
    wanted = _settings(swap.cfg)
    notes = []
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f'{out.stem}_{os.getpid()}_partial.py')
        try:
            done = False
            if not flat:
                base = base_of(swap.source, out)
                partial.write_text(_text({'_base_': base, **difference(_settings(swap.source), wanted)}))
                done = _reads_as(partial, wanted)
                if not done:
                    notes.append(f'{base} cannot be inherited from here: the config is written in full')
            if not done:
                partial.write_text(_text(wanted))
                if not _reads_as(partial, wanted):
                    raise InputError(f'{out} cannot be written: the config holds values that have no text')
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f'{out} cannot be written: {error.strerror}') from error
    return notes


def base_of(source: Config, out: Path) -> str:
    """How a config at ``out`` names its source: by package where it lies in one, else by a relative path."""
    path = Path(source.filename).resolve()
    for package in _PACKAGES:
        folder = configs_of(package)
        if folder and folder in path.parents:
            return f'{package}::{path.relative_to(folder).as_posix()}'
    return Path(os.path.relpath(path, out.resolve().parent)).as_posix()


def configs_of(package: str) -> Path | None:
    """The folder of configs in an installed package, which is not imported; None where there is none."""
    try:
        spec = find_spec(package) if package.isidentifier() else None
    except ValueError:  # a module that was made by hand
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        configs = Path(folder, '.mim', 'configs').resolve()
        if configs.is_dir():
            return configs
    return None


def difference(old: dict, new: dict) -> dict:
    """What to merge into ``old``, by mmengine's rules, to get ``new``."""
    if set(old) - set(new):
        return {'_delete_': True, **new}
    changes = {}
    for key, value in new.items():
        if key not in old:
            changes[key] = value
        elif isinstance(value, dict) and isinstance(old[key], dict):
            inner = difference(old[key], value)
            if inner:
                changes[key] = inner
        elif isinstance(value, dict):
            changes[key] = {'_delete_': True, **value}
        elif value != old[key]:
            changes[key] = value
    return changes


def _text(content: dict) -> str:
    """A config file: one setting after the other, what it inherits from and imports first."""
    first = [key for key in ('_base_', 'custom_imports') if key in content]
    order = [*first, *(key for key in content if key not in first)]
    return '\n'.join(f'{key} = {_literal(content[key], len(key) + 3, 0)}' for key in order) + '\n'


def _literal(value: Any, column: int, indent: int) -> str:
    """A value as Python text, broken into lines where it does not fit after ``column``."""
    if isinstance(value, dict):
        # type first, as people write it, and _delete_ before everything
        keys = sorted(value, key=lambda key: (key != '_delete_', key != 'type'))
        named = all(isinstance(key, str) and key.isidentifier() and not iskeyword(key) for key in keys)
        names = [f'{key}=' if named else f'{key!r}: ' for key in keys]
        brackets, values = ('dict(', ')') if named else ('{', '}'), [value[key] for key in keys]
    elif isinstance(value, (list, tuple)):
        names, values = [''] * len(value), list(value)
        brackets = '[]' if isinstance(value, list) else '()'
    else:
        return repr(value)
    comma = ',' if isinstance(value, tuple) and len(value) == 1 else ''
    line = ', '.join(name + _literal(item, 0, 0) for name, item in zip(names, values))
    line = f'{brackets[0]}{line}{comma}{brackets[1]}'
    if '\n' not in line and column + len(line) < _WIDTH or not values:
        return line
    inner = indent + 4
    lines = [' ' * inner + name + _literal(item, inner + len(name), inner) for name, item in zip(names, values)]
    return f'{brackets[0]}\n' + ',\n'.join(lines) + f'{comma}{brackets[1]}'


def _reads_as(path: Path, wanted: dict) -> bool:
    try:
        return _settings(Config.fromfile(path)) == wanted
    except Exception:  # a base that is not to be had fails in any way
        return False


def _settings(cfg: Config) -> dict:
    """A config as plain values, without what its file imported or defined for itself."""
    scope = cfg.get('default_scope')
    return {
        key: _plain(value, scope)
        for key, value in cfg.to_dict().items() if not isinstance(value, (ModuleType, FunctionType, type))
    }


def _plain(value: Any, scope: str | None) -> Any:
    """Without the default scope, which inheritance adds everywhere; classes and functions, of configs in Python's own
    syntax, by name."""
    if isinstance(value, dict):
        return {key: _plain(item, scope) for key, item in value.items() if (key, item) != ('_scope_', scope)}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item, scope) for item in value)
    if isinstance(value, (type, FunctionType)):
        return f'{value.__module__}.{value.__qualname__}'
    return value
