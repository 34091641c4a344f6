from .build import build_rpe, check_rpe
from .offsets import WindowGeometry, offsets
from .table import TableRPE

__all__ = ['TableRPE', 'WindowGeometry', 'build_rpe', 'check_rpe', 'offsets']
