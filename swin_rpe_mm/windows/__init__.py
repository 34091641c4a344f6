from .gather import Gather
from .layout import WindowLayout

__all__ = ['Gather', 'WindowLayout']
