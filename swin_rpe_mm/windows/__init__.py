"""Kinds of windows and how they lie over maps: index arithmetic, no parameters, no state."""
from .extents import merge_extents, tokens_inside, zero_outside
from .geometry import WindowGeometry
from .kinds import GlobalWindows, PaddedWindows, ShiftedWindows, Windows
from .layout import WindowLayout

__all__ = [
    'GlobalWindows', 'PaddedWindows', 'ShiftedWindows', 'WindowGeometry', 'WindowLayout', 'Windows', 'merge_extents',
    'tokens_inside', 'zero_outside'
]
