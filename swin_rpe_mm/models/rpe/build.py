"""From ``rpe=dict(type=...)`` to a module."""
import difflib
from typing import Any, Optional, Tuple

from torch import nn

from ...errors import InputError
from ...registry import MODELS


def check_rpe(rpe: Any) -> None:
    """Raise :class:`InputError` unless ``rpe`` is None or a dict whose type is a registered encoding."""
    if rpe is None:
        return
    if not isinstance(rpe, dict) or not isinstance(rpe.get('type'), str):
        raise InputError(f"rpe must be None or a dict with a type, such as dict(type='TableRPE'), got {rpe!r}")
    if _find(rpe['type']) is None:
        names = sorted(name for name in MODELS.module_dict if name.endswith('RPE') and name != 'SwinRPE')
        close = difflib.get_close_matches(rpe['type'], names, n=1)
        hint = f' (did you mean {close[0]!r}?)' if close else ''
        raise InputError(f'rpe type must be a registered encoding ({", ".join(names)}), got {rpe["type"]!r}{hint}')


def build_rpe(rpe: Optional[dict], num_heads: int, window_size: Tuple[int, ...]) -> Optional[nn.Module]:
    """Build the encoding of one attention module; None stays None."""
    check_rpe(rpe)
    if rpe is None:
        return None
    arguments = {key: value for key, value in rpe.items() if key != 'type'}
    return _find(rpe['type'])(num_heads=num_heads, window_size=window_size, **arguments)


def _find(name: str) -> Optional[type]:
    # get(), unlike build(), looks in this registry first whatever the default scope of the running config is
    try:
        return MODELS.get(name)
    except (KeyError, RuntimeError):  # some releases of mmengine raise for an unknown name, others return None
        return None
