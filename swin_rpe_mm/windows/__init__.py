from .gather import Gather
from .layout import WindowLayout
from .parts import Part, Parts, cut_into_parts

__all__ = ['Gather', 'Part', 'Parts', 'WindowLayout', 'cut_into_parts']
