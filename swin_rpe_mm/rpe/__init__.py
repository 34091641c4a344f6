"""Relative position encodings: what each is, how its tables are read for another window."""
from .base import RelativePositionEncoding
from .block import BlockRPE
from .build import RPEConfig, build_rpe, check_rpe, rpe_of_stage
from .clipped import ClippedRPE
from .contextual import ContextualRPE
from .decomposed import DecomposedRPE
from .dynamic import DynamicRPE
from .log_bucket import LogBucketRPE
from .log_cpb import LogCPB
from .low_rank import LowRankRPE
from .offsets import all_offsets, coordinates, offsets
from .rotary import RotaryRPE
from .sum import SumRPE
from .table import TableRPE

__all__ = [
    'BlockRPE', 'ClippedRPE', 'ContextualRPE', 'DecomposedRPE', 'DynamicRPE', 'LogBucketRPE', 'LogCPB', 'LowRankRPE',
    'RPEConfig', 'RelativePositionEncoding', 'RotaryRPE', 'SumRPE', 'TableRPE', 'all_offsets',
    'build_rpe', 'check_rpe', 'coordinates', 'offsets', 'rpe_of_stage'
]
