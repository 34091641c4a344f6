"""Swin for dense prediction: padding that never reaches attention, and a choice of relative position encodings."""
from importlib import import_module

from .errors import InputError
from .models import SwinRPE
from .padding import attach_extents, get_extents
from .version import __version__

__all__ = [
    'DetDataPreprocessor', 'InputError', 'SegDataPreprocessor', 'SwinRPE', '__version__', 'attach_extents',
    'get_extents'
]

# these need mmdet or mmseg, which whoever uses only the other may not have
_LAZY = {'DetDataPreprocessor': 'det', 'SegDataPreprocessor': 'seg'}


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(import_module(f'.models.data_preprocessors.{_LAZY[name]}', __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
