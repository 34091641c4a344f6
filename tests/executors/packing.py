"""Packed layouts by the numbers that tests draw."""
from swin_rpe_mm.executors.cpu.packed import PackedLayout
from swin_rpe_mm.windows import PaddedWindows, ShiftedWindows


def kind_of(window, shift=(0, 0), halo=(0, 0), shift_covered_axes=True, pooled_neighbours=0):
    """The kind of windows that a backbone would take."""
    kind = PaddedWindows if pooled_neighbours else ShiftedWindows
    return kind(tuple(window), tuple(halo), tuple(shift), shift_covered_axes)


def packed(map_size, window, shift=(0, 0), extents=None, halo=(0, 0), mask_padding=True, shift_covered_axes=True,
           pooled_neighbours=0) -> PackedLayout:
    """A packed layout; with masks off every image fills its map."""
    if not mask_padding and extents is not None:
        extents = [map_size] * len(extents)
    return PackedLayout.build(kind_of(window, shift, halo, shift_covered_axes, pooled_neighbours), map_size, extents,
                              mask_padding, pooled_neighbours)
