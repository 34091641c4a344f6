from .base import RelativePositionEncoding
from .build import build_rpe, check_rpe, rpe_of_stage
from .offsets import WindowGeometry, all_offsets, coordinates, offsets
from .sum import SumRPE
from .table import TableRPE

__all__ = [
    'RelativePositionEncoding', 'SumRPE', 'TableRPE', 'WindowGeometry', 'all_offsets', 'build_rpe', 'check_rpe',
    'coordinates', 'offsets', 'rpe_of_stage'
]
