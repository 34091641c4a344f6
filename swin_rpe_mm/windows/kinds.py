"""Kinds of windows: which token each slot holds. Everything else follows from it.

Swin (arXiv 2103.14030, section 3.2) shifts its windows by rolling the map, so that the last window holds tokens from
both ends, which must not see each other; the paper's figure 4 calls it cyclic. Here nothing is rolled: a shift is only
another index. Along one axis of 10 tokens, with window 4 and shift 2 (`.` is padding, `|` is the seam):

    unshifted              [0 1 2 3] [4 5 6 7] [8 9 . .]
    ShiftedWindows         [2 3 4 5] [6 7 8 9] [. . | 0 1]
    PaddedWindows          [. . 0 1] [2 3 4 5] [6 7 8 9]

The map is filled up to whole windows first and wrapped then, never the other way round: that would put the padding
between the first and the last token, and the seam in the wrong place.
"""
from dataclasses import dataclass
from typing import Tuple, Union

import torch
from torch import Tensor

from ..registry import WINDOWS
from .geometry import WindowGeometry
from .indices import Length, as_number, ceil_div

Size = Tuple[int, int]
Extent = Union[Length, Tensor]


@dataclass(frozen=True)
class Windows:
    """Base of all kinds. A kind is arithmetic along each axis of a map, 0 for rows and 1 for columns.

    A subclass overrides :meth:`token` and :meth:`slot`, which are inverse to each other, and whatever else differs.
    Lengths may be symbolic; windows, places, coordinates and extents are tensors that broadcast.

    Args:
        window_size (tuple[int, int]): Height and width of a window in tokens; may exceed the map.
        halo (tuple[int, int]): How many tokens the keys reach beyond the window, above and below, left and right.
        shift (tuple[int, int]): How far the windows are shifted down and right; less than the window.
        shift_covered_axes (bool): False leaves the shift out along an axis that one window covers.
    """
    window_size: Size
    halo: Size = (0, 0)
    shift: Size = (0, 0)
    shift_covered_axes: bool = True

    def geometry(self, map_size: Tuple[Length, Length]) -> WindowGeometry:
        """Queries and keys of a window over maps of a size."""
        return WindowGeometry.centred(self.window_size, tuple(w + 2 * h for w, h in zip(self.window_size, self.halo)))

    def count(self, axis: int, length: Length) -> Length:
        """How many windows cover an axis of so many tokens."""
        return ceil_div(length, self.window_size[axis])

    def token(self, axis: int, window: Tensor, place: Tensor, length: Length, extent: Extent) -> Tuple[Tensor, Tensor]:
        """Which token lies at a place of a window.

        Args:
            axis (int): 0 or 1.
            window (Tensor): Number of the window along the axis, from 0.
            place (Tensor): Place in the window; with a halo there are places before 0 and beyond the window.
            length (int): Tokens of the map along the axis.
            extent (int | Tensor): Those of the image.

        Returns:
            tuple[Tensor, Tensor]: The token's coordinate, outside of the map where the place is empty, and the side of
            the seam that it comes from, 0 or 1: tokens from different sides do not see each other.
        """
        raise NotImplementedError

    def slot(self, axis: int, coordinate: Tensor, length: Length, extent: Extent) -> Tuple[Tensor, Tensor]:
        """The window that holds a token, and its place there; arguments as for :meth:`token`."""
        raise NotImplementedError

    def _shift(self, axis: int, extent: Extent, like: Tensor) -> Union[int, Tensor]:
        side, shift = self.window_size[axis], self.shift[axis]
        if self.shift_covered_axes or not shift:
            return shift
        extent = as_number(extent, like)
        return (0 if extent <= side else shift) if isinstance(extent, int) else torch.where(extent <= side, 0, shift)


@WINDOWS.register_module()
@dataclass(frozen=True)
class ShiftedWindows(Windows):
    """Swin's windows: those at the end of a shifted axis hold the tokens before the first shift, beyond a seam.

    The axis is read as a window onto two copies of it, the second of which starts at the seam; a halo that crosses the
    seam thus stays in its own copy and never wraps.
    """

    def token(self, axis, window, place, length, extent):
        padded = self.count(axis, length) * self.window_size[axis]
        coordinate = window * self.window_size[axis] + place + self._shift(axis, extent, place)
        if not self.shift[axis] and not self.halo[axis]:
            return coordinate, torch.zeros_like(coordinate)
        side = (coordinate >= padded).long()
        return coordinate - side * as_number(padded, coordinate), side

    def slot(self, axis, coordinate, length, extent):
        padded = self.count(axis, length) * self.window_size[axis]
        place = (coordinate - self._shift(axis, extent, coordinate)) % as_number(padded, coordinate)
        side = self.window_size[axis]
        return torch.div(place, side, rounding_mode='floor'), place % side


@WINDOWS.register_module()
@dataclass(frozen=True)
class PaddedWindows(Windows):
    """Shifted windows that the border of the map cuts short, so that each has one place among the others."""

    def count(self, axis, length):
        side = self.window_size[axis]
        return ceil_div(length + -self.shift[axis] % side, side)

    def token(self, axis, window, place, length, extent):
        coordinate = window * self.window_size[axis] + place - self._front(axis, extent, place)
        return coordinate, torch.zeros_like(coordinate)

    def slot(self, axis, coordinate, length, extent):
        place, side = coordinate + self._front(axis, extent, coordinate), self.window_size[axis]
        return torch.div(place, side, rounding_mode='floor'), place % side

    def _front(self, axis: int, extent: Extent, like: Tensor) -> Union[int, Tensor]:
        """How many places are empty before the first token."""
        return -self._shift(axis, extent, like) % self.window_size[axis]


@WINDOWS.register_module()
@dataclass(frozen=True)
class GlobalWindows(Windows):
    """One window as large as the map: attention over the whole image. Neither window, halo nor shift matter.

    The encoding must know offsets of any size: ``LogCPB``, ``ClippedRPE``, ``LogBucketRPE``, ``RotaryRPE`` and others,
    but not a table of the offsets of one window.
    """

    def geometry(self, map_size):
        return WindowGeometry.square(map_size)

    def count(self, axis, length):
        return 1

    def token(self, axis, window, place, length, extent):
        return place, torch.zeros_like(place)

    def slot(self, axis, coordinate, length, extent):
        return torch.zeros_like(coordinate), coordinate
