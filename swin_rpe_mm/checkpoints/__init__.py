from .layouts import to_mm_layout
from .report import LoadReport
from .wrappers import unwrap

__all__ = ['LoadReport', 'to_mm_layout', 'unwrap']
