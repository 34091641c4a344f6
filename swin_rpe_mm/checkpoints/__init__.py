"""Checkpoints of every Swin: read safely, brought into our names and sizes, reported, written for other projects."""
from .files import read_checkpoint
from .layouts import to_mm_layout
from .loading import load_pretrained, register_loading
from .paths import DERIVED_BUFFERS, to_mm_names, to_paths
from .report import LoadReport
from .wrappers import find_prefix, innermost, unwrap

__all__ = [
    'DERIVED_BUFFERS', 'LoadReport', 'find_prefix', 'innermost', 'load_pretrained', 'read_checkpoint',
    'register_loading', 'to_mm_layout', 'to_mm_names', 'to_paths', 'unwrap'
]
