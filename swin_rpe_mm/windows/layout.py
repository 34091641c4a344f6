"""Which token sits in which slot of which window, and which keys a query may see, for a batch of maps.

One ``arange`` over all slots is taken apart by division into image, window and place; the kind of windows turns places
into coordinates; comparisons with sizes and extents tell what is real. No shape is worked out from data, so all of this
can be traced, exported, and computed on the device, about two dozen small operations a layout.
"""
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .geometry import WindowGeometry
from .indices import Length, as_number, ceil_div, split
from .kinds import Extent, Windows

Size = Tuple[Length, Length]


class WindowLayout(NamedTuple):
    """T windows of N slots over the L = H * W tokens of each of B maps. A tuple: what looks for the tensors among a
    module's arguments, such as tracers and drawers of graphs, finds these.

    A query sees a key if and only if their regions are equal. An empty slot has region -1, so it sees empty slots and
    is seen by empty slots only: no row of an attention matrix is ever empty, and one rule covers shift, window padding
    and batch padding.

    Attributes:
        geometry (WindowGeometry): Queries and keys of a window.
        rows (Tensor): ``(T * N,)`` long, the token ``b*L + y*W + x`` in each slot; ``B*L`` where the map has none.
        rows_back (Tensor): ``(B * L,)`` long, the slot ``t*N + n`` that holds each token.
        region (Tensor): ``(T, N)`` long, which side of the seams the slot's token comes from (0..3); -1 in slots that
            hold nothing real: window padding, and tokens outside the extent of their image.
        key_rows (Tensor, optional): ``(T * Nk,)`` long, the token of each key. A key that the map does not have
            repeats a token of its image, or is ``B*L`` where padding takes part. None: keys are the window's own.
        neighbours (Tensor, optional): ``(T, P)`` long, the windows around each window, row by row without itself;
            ``P = (2 * pooled_neighbours + 1) ** 2 - 1``. Itself where there is none.
        visible (Tensor): ``(T, N, Nk + P)`` bool, True where the query sees the key. The last P columns are the
            neighbours.
        padding_takes_part (bool): Whether window padding is attended to, as zeros that were projected.
    """
    geometry: WindowGeometry
    rows: Tensor
    rows_back: Tensor
    region: Tensor
    key_rows: Optional[Tensor]
    neighbours: Optional[Tensor]
    visible: Tensor
    padding_takes_part: bool

    @classmethod
    def build(cls,
              windows: Windows,
              batch_size: Length,
              map_size: Size,
              extents: Optional[Tensor] = None,
              mask_padding: bool = True,
              pooled_neighbours: int = 0,
              device: Optional[torch.device] = None) -> 'WindowLayout':
        """Lay windows over maps.

        Which tokens of an image see each other depends on its extent, not on the map that it sits in.

        Args:
            windows (Windows): Their kind.
            batch_size (int): B.
            map_size (tuple[int, int]): Height and width of the maps in tokens.
            extents (Tensor, optional): ``(B, 2)`` long, height and width of each image's content in tokens, on the
                device. None means that each image fills its map.
            mask_padding (bool): False gives window padding the region of its place, so that it takes part in
                attention, as it does in other Swins; extents are not looked at then.
            pooled_neighbours (int): How many windows away the neighbours reach.
            device (torch.device, optional): Where the tensors are made.
        """
        extents = extents if mask_padding else None
        geometry = windows.geometry(map_size)
        grid = _Grid(windows, batch_size, map_size, extents, mask_padding, device)
        rows, region = grid.slots(geometry.query_size, (0, 0), batch_size * map_size[0] * map_size[1])
        slots_per_window = geometry.query_size[0] * geometry.query_size[1]
        region = region.view(-1, slots_per_window)
        key_rows, key_region = None, region
        if geometry.key_size != geometry.query_size:
            outside = None if mask_padding else batch_size * map_size[0] * map_size[1]
            key_rows, key_region = grid.slots(geometry.key_size, geometry.origin, outside)
            key_region = key_region.view(-1, geometry.key_size[0] * geometry.key_size[1])
        visible = region[:, :, None] == key_region[:, None]
        neighbours = None
        if pooled_neighbours:
            neighbours, there = grid.neighbours(pooled_neighbours, (region >= 0).any(1))
            visible = torch.cat([visible, there[:, None].expand(-1, slots_per_window, -1)], dim=2)
        rows_back = grid.tokens(geometry.query_size)
        return cls(geometry, rows, rows_back, region, key_rows, neighbours, visible, not mask_padding)


class _Grid:
    """The windows of a batch of maps, counted image by image, row by row."""

    def __init__(self, windows: Windows, batch_size: Length, map_size: Size, extents: Optional[Tensor],
                 mask_padding: bool, device: Optional[torch.device]):
        self.windows, self.batch_size, self.map_size = windows, batch_size, map_size
        self.extents, self.mask_padding, self.device = extents, mask_padding, device
        self.counts = tuple(windows.count(axis, length) for axis, length in enumerate(map_size))

    def slots(self, size: Tuple[Length, ...], origin: Tuple[int, ...],
              outside: Optional[Length]) -> Tuple[Tensor, Tensor]:
        """Token and region of every slot, both ``(T * N,)``.

        Args:
            size (tuple[int, int]): Places of a window along each axis.
            origin (tuple[int, int]): The first place along each axis.
            outside (int, optional): What stands for tokens that a map does not have. None repeats one of the image's.
        """
        total = self.batch_size * self.counts[0] * self.counts[1] * size[0] * size[1]
        image, *at = split(torch.arange(total, device=self.device), (*self.counts, *size))
        coordinates, sides, real, on_map = [], [], [], []
        for axis, (window, place) in enumerate(zip(at[:2], at[2:])):
            length, extent = self.map_size[axis], self._extent(axis, image)
            coordinate, side = self.windows.token(axis, window, place + origin[axis], length, extent)
            coordinates.append(coordinate)
            sides.append(side)
            in_front = coordinate >= 0
            on_map.append(in_front & (coordinate < length))
            real.append(in_front & (coordinate < (extent if self.mask_padding else self._padded(axis))))
        if outside is None:
            y, x = (self._clamped(axis, coordinate, image) for axis, coordinate in enumerate(coordinates))
            rows = (image * self.map_size[0] + y) * self.map_size[1] + x
        else:
            y, x = coordinates
            rows = torch.where(on_map[0] & on_map[1], (image * self.map_size[0] + y) * self.map_size[1] + x, outside)
        return rows, torch.where(real[0] & real[1], sides[0] * 2 + sides[1], -1)

    def tokens(self, size: Tuple[Length, ...]) -> Tensor:
        """The slot of every token, ``(B * L,)``."""
        total = self.batch_size * self.map_size[0] * self.map_size[1]
        image, *coordinates = split(torch.arange(total, device=self.device), self.map_size)
        (wy, y), (wx, x) = (self.windows.slot(axis, coordinate, self.map_size[axis], self._extent(axis, image))
                            for axis, coordinate in enumerate(coordinates))
        slots = (((image * self.counts[0] + wy) * self.counts[1] + wx) * size[0] + y) * size[1] + x
        return slots

    def neighbours(self, reach: int, real: Tensor) -> Tuple[Tensor, Tensor]:
        """The windows up to ``reach`` away from each, and whether there is something real in them, both ``(T, P)``."""
        side = 2 * reach + 1
        total = self.batch_size * self.counts[0] * self.counts[1]
        image, wy, wx, step = split(
            torch.arange(total * (side**2 - 1), device=self.device), (*self.counts, side**2 - 1))
        step = step + (step >= side**2 // 2)  # the window itself is left out
        y = wy + torch.div(step, side, rounding_mode='floor') - reach
        x = wx + step % side - reach
        there = (y >= 0) & (y < self.counts[0]) & (x >= 0) & (x < self.counts[1])
        y, x = torch.where(there, y, wy), torch.where(there, x, wx)
        found = (image * self.counts[0] + y) * self.counts[1] + x
        there = there & real.index_select(0, found)
        return found.view(-1, side**2 - 1), there.view(-1, side**2 - 1)

    def _extent(self, axis: int, image: Tensor) -> Extent:
        return self.map_size[axis] if self.extents is None else self.extents[:, axis].index_select(0, image)

    def _padded(self, axis: int) -> Length:
        side = self.windows.geometry(self.map_size).query_size[axis]
        return ceil_div(self.map_size[axis], side) * side

    def _clamped(self, axis: int, coordinate: Tensor, image: Tensor) -> Tensor:
        last = as_number(self._extent(axis, image), coordinate) - 1
        return coordinate.clamp(min=0).clamp(max=last)
