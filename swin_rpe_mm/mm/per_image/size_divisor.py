"""Layers that take maps only if each is exactly half as large as the one before."""
from torch import nn

from ..extents import Size

# they double a map, or several times, and join it with the next; upstream fills their images up to multiples of 32
_DOUBLING = ('CSPNeXtPAFPN', 'HRFPN', 'MaskFeatModule', 'PanopticFPNHead', 'SOLOHead', 'YOLOV3Neck', 'YOLOXPAFPN')
_MULTIPLE = 32


def side_multiple(model: nn.Module) -> int:
    """What the sides of images must be multiples of in ``model``; 1 if its layers take any size."""
    if not any(kind.__name__ in _DOUBLING for module in model.modules() for kind in type(module).__mro__):
        return 1
    return max(_MULTIPLE, getattr(model.data_preprocessor, 'pad_size_divisor', 1))


def fill_up(extent: Size, multiple: int, size: Size) -> Size:
    """Sides up to the next multiple, as far as the batch reaches."""
    return tuple(min(-(-side // multiple) * multiple, most) for side, most in zip(extent, size))
