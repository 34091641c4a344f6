"""The switch that makes a whole model invariant to padding: after the backbone each image runs alone."""
from .invariance import make_padding_invariant

__all__ = ['make_padding_invariant']
