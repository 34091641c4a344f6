"""Swin for dense prediction: padding that never reaches attention, and a choice of relative position encodings."""
from importlib import import_module

from .errors import InputError
from .mm.backbone import SwinRPE
from .mm.extents import attach_extents, get_extents
from .mm.per_image import make_padding_invariant
from .version import __version__

__all__ = [
    'DetDataPreprocessor', 'InputError', 'PaddingInvarianceHook', 'RPEMonitorHook', 'SegDataPreprocessor',
    'SwapRefused', 'SwinRPE', '__version__', 'attach_extents', 'get_extents', 'make_padding_invariant', 'swap_backbone'
]

# the data preprocessors need mmdet or mmseg, which whoever uses only the other may not have, and the others a moment to
# load
_LAZY = {
    'DetDataPreprocessor': '.mm.data_preprocessors.det',
    'PaddingInvarianceHook': '.mm.hooks',
    'RPEMonitorHook': '.mm.hooks',
    'SegDataPreprocessor': '.mm.data_preprocessors.seg',
    'SwapRefused': '.mm.swap',
    'swap_backbone': '.mm.swap',
}


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
