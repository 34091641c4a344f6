"""Swin for dense prediction: padding that never reaches attention, and a choice of relative position encodings."""
from importlib import import_module

from .errors import InputError
from .models import SwinRPE
from .padding import attach_extents, get_extents, make_padding_invariant
from .version import __version__

__all__ = [
    'DetDataPreprocessor', 'InputError', 'PaddingInvarianceHook', 'RPEMonitorHook', 'SegDataPreprocessor',
    'SwapRefused', 'SwinRPE', '__version__', 'attach_extents', 'get_extents', 'make_padding_invariant', 'swap_backbone'
]

# the data preprocessors need mmdet or mmseg, which whoever uses only the other may not have, and the others a moment to
# load
_LAZY = {
    'DetDataPreprocessor': '.models.data_preprocessors.det',
    'PaddingInvarianceHook': '.engine.hooks',
    'RPEMonitorHook': '.engine.hooks',
    'SegDataPreprocessor': '.models.data_preprocessors.seg',
    'SwapRefused': '.swap',
    'swap_backbone': '.swap',
}


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
