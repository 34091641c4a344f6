from .embeddings import INPUT_MODES, fit_embedding, fit_input_channels, size_of_embedding
from .files import read_checkpoint
from .layouts import to_mm_layout
from .report import LoadReport
from .wrappers import find_prefix, innermost, unwrap

__all__ = [
    'INPUT_MODES', 'LoadReport', 'find_prefix', 'fit_embedding', 'fit_input_channels', 'innermost', 'read_checkpoint',
    'size_of_embedding', 'to_mm_layout', 'unwrap'
]
