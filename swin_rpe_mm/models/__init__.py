from . import data_preprocessors  # noqa: F401  (registers them)
from .backbones import SwinRPE

__all__ = ['SwinRPE']
