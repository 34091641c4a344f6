from .extents import attach_extents, get_extents, merge_extents, zero_outside
from .features import attach_features, get_features
from .invariance import make_padding_invariant

__all__ = [
    'attach_extents', 'attach_features', 'get_extents', 'get_features', 'make_padding_invariant', 'merge_extents',
    'zero_outside'
]
