from .gather import Gather, into_windows, pack
from .layout import WindowLayout

__all__ = ['Gather', 'WindowLayout', 'into_windows', 'pack']
