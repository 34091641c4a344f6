"""From ``rpe=dict(type=...)`` to a module."""
import difflib
import inspect
from typing import Any, List, Optional, Union

from ..errors import InputError
from ..registry import MODELS
from .base import RelativePositionEncoding
from .sum import SumRPE

_WINDOW = ('num_heads', 'window_size', 'key_size', 'head_dim')
RPEConfig = Union[None, dict, List[dict]]


def check_rpe(rpe: Any) -> None:
    """Raise :class:`InputError` unless ``rpe`` is None, a dict that names a registered encoding, or a list of such."""
    if rpe is None:
        return
    if isinstance(rpe, (list, tuple)) and rpe:
        for part in rpe:
            _check_one(part)
    else:
        _check_one(rpe)


def _check_one(rpe: Any) -> None:
    if not isinstance(rpe, dict) or not isinstance(rpe.get('type'), str):
        raise InputError("rpe must be None, a dict with a type, such as dict(type='TableRPE'), or a list of such "
                         f'dicts, got {rpe!r}')
    encoding = _find(rpe['type'])
    if not (isinstance(encoding, type) and issubclass(encoding, RelativePositionEncoding)):
        names = sorted(name for name, cls in MODELS.module_dict.items()
                       if isinstance(cls, type) and issubclass(cls, RelativePositionEncoding))
        raise InputError('rpe type must be a registered encoding, a RelativePositionEncoding '
                         f'({", ".join(names)}), got {rpe["type"]!r}{_hint(rpe["type"], names)}')
    known = _options(encoding)
    for option in rpe:
        if option != 'type' and option not in known:
            raise InputError(f'{rpe["type"]} has no option {option!r}; it takes {", ".join(known)}'
                             f'{_hint(option, known)}')


def _options(encoding: type) -> List[str]:
    """Names that a config may give."""
    names = {'resize_mode'}
    for cls in encoding.__mro__[:encoding.__mro__.index(RelativePositionEncoding)]:
        parameters = inspect.signature(cls).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return sorted(names.difference(_WINDOW))


def _hint(name: str, allowed: List[str]) -> str:
    close = difflib.get_close_matches(name, allowed, n=1)
    return f' (did you mean {close[0]!r}?)' if close else ''


def build_rpe(rpe: RPEConfig, **window) -> Optional[RelativePositionEncoding]:
    """Build the encoding of one attention module.

    Args:
        rpe (dict | list[dict], optional): None stays None; a list adds several.
        **window: ``num_heads``, ``window_size``, ``key_size`` and ``head_dim``, handed to every encoding.

    Raises:
        InputError: If there is no such encoding, or it has no such option.
    """
    check_rpe(rpe)
    if rpe is None:
        return None
    if isinstance(rpe, dict):
        return _build_one(rpe, window)
    return SumRPE([_build_one(part, window) for part in rpe], **window)


def _build_one(rpe: dict, window: dict) -> RelativePositionEncoding:
    return _find(rpe['type'])(**window, **{key: value for key, value in rpe.items() if key != 'type'})


def rpe_of_stage(rpe: Any, stage: int, stages: int) -> Any:
    """A stage's own config: an option given as a list of numbers or tuples has one entry per stage.

    Raises:
        InputError: If such a list has another length.
    """
    if isinstance(rpe, (list, tuple)):
        return [rpe_of_stage(part, stage, stages) for part in rpe]
    if not isinstance(rpe, dict):
        return rpe
    own = {}
    for option, value in rpe.items():
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict) for v in value)):
            value = rpe_of_stage(value, stage, stages)
        elif isinstance(value, list):
            if len(value) != stages:
                raise InputError(f'{option} of rpe as a list must have one entry per stage, {stages}, got {value}')
            value = value[stage]
        own[option] = value
    return own


def _find(name: str) -> Any:
    # get(), unlike build(), looks in this registry first whatever the default scope of the running config is
    try:
        return MODELS.get(name)
    except (KeyError, RuntimeError):  # some releases of mmengine raise for an unknown name, others return None
        return None
