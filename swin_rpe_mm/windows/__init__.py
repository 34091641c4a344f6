from .gather import Gather, between, into_windows, onto_map
from .layout import WindowLayout

__all__ = ['Gather', 'WindowLayout', 'between', 'into_windows', 'onto_map']
