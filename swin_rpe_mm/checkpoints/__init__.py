from .layouts import DERIVED, to_mm_layout
from .report import LoadReport
from .wrappers import unwrap

__all__ = ['DERIVED', 'LoadReport', 'to_mm_layout', 'unwrap']
