from .layouts import to_mm_layout
from .report import LoadReport, unwrap

__all__ = ['LoadReport', 'to_mm_layout', 'unwrap']
