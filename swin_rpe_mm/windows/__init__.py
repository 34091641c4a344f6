from .gather import Gather, into_windows, key_rows, pack
from .layout import WindowLayout

__all__ = ['Gather', 'WindowLayout', 'into_windows', 'key_rows', 'pack']
