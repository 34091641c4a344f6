"""Which token sits in which slot of which window.

Everything about cutting a map into windows, shifting them, padding and masking is an index here, worked out once per
map size. Swin (arXiv 2103.14030, section 3.2) shifts by rolling the map: the windows stay where they are, and those at
the end hold tokens from both sides of the seam, which must not see each other. Along one axis of 10 tokens, with
window 4 and shift 2 (`.` is padding, `|` is the seam):

    unshifted   [0 1 2 3] [4 5 6 7] [8 9 . .]
    shifted     [2 3 4 5] [6 7 8 9] [. . | 0 1]

The map is filled up to whole windows first and rolled then, never the other way round: rolling first would put the
padding between the first and the last token, and the seam in the wrong place.
"""
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ..index_cache import index_cache, index_property
from .gather import Gather

Size = Tuple[int, int]
Extents = Tuple[Size, ...]


@dataclass(frozen=True, eq=False)
class WindowLayout:
    """T windows of N slots over the tokens of B maps.

    A query sees a key if and only if their regions are equal. A padding slot has region -1, so it sees padding and is
    seen by padding only: no row of an attention matrix is ever empty, and one rule covers shift, window padding and
    batch padding.

    Attributes:
        slots (Tensor): ``(T, N)`` long, the token ``b*H*W + y*W + x`` in each slot; a padding slot repeats some real
            token of its image.
        valid (Tensor): ``(T, N)`` bool, False in padding slots.
        region (Tensor): ``(T, N)`` int8, which side of the cyclic seam the slot's token comes from (0..3); -1 in
            padding slots.
        key_slots, key_valid, key_region (Tensor): The same for the ``(T, Nk)`` keys. Without a halo they are the
            query's tensors.
        home (Tensor): ``(B*H*W,)`` long, the flat slot ``t*N + n`` that holds each token; 0 for tokens outside their
            extent, which no slot holds.
        holes (Tensor): ``(P,)`` long, the flat indices of the padding slots.
        inside, outside (Tensor): ``(K,)`` and ``(B*H*W - K,)`` long, the tokens inside and outside their extent.
        image_of_token (Tensor): ``(K,)`` long, the image each of the tokens inside belongs to.
        plain (int): Windows ``[0, plain)`` need no mask: all their slots and keys share one region.
        visible (Tensor): ``(T - plain, N, Nk + P)`` bool, for the other windows: True where the query sees the key. The
            last P columns are the neighbours.
        batch_size (int): B.
        neighbours (Tensor): ``(T, P)`` long, the windows around each window, row by row without itself;
            ``P = (2 * pooled_neighbours + 1) ** 2 - 1``. Itself where there is none.
        packed_slots, key_rows (Tensor): ``(T, N)`` and ``(T, Nk)`` long, the packed token in each slot and key slot;
            a padding slot repeats some real token. With a halo a token is a key of several windows.
        pack (Gather): From the maps' tokens ``(B*H*W, C)`` to packed tokens ``(K, C)``; the inverse leaves zeros
            outside the extents.
        into_windows (Gather): From packed tokens ``(K, C)`` to slots ``(T*N, C)``; padding slots are zero.
    """
    slots: Tensor
    valid: Tensor
    region: Tensor
    key_slots: Tensor
    key_valid: Tensor
    key_region: Tensor
    home: Tensor
    holes: Tensor
    inside: Tensor
    outside: Tensor
    image_of_token: Tensor
    plain: int
    visible: Tensor
    batch_size: int
    neighbours: Tensor

    @index_property
    def packed_slots(self) -> Tensor:
        return self._rank[self.slots]

    @index_property
    def key_rows(self) -> Tensor:
        return self.packed_slots if self.key_slots is self.slots else self._rank[self.key_slots]

    @index_property
    def pack(self) -> Gather:
        return Gather(self.inside, self.outside[:0], self._rank, self.outside)

    @index_property
    def into_windows(self) -> Gather:
        rows = self.packed_slots.flatten()
        if len(self.holes) == 0 and bool((rows.diff() == 1).all()):
            return Gather(None, None, None, None)
        return Gather(rows, self.holes, self.home[self.inside], self.outside[:0])

    @index_property
    def _rank(self) -> Tensor:
        """``(B*H*W,)`` long, the packed token of each token inside its extent."""
        rank = torch.zeros_like(self.home)
        rank[self.inside] = torch.arange(len(self.inside), device=rank.device)
        return rank

    @classmethod
    def build(cls,
              map_size: Size,
              window: Size,
              shift: Size = (0, 0),
              extents: Optional[Sequence[Size]] = None,
              halo: Size = (0, 0),
              mask_padding: bool = True,
              shift_covered_axes: bool = True,
              pooled_neighbours: int = 0,
              device: Union[str, torch.device] = 'cpu') -> 'WindowLayout':
        """Lay windows over maps.

        An image's windows are those it would have alone: they depend on its extent, not on the map it sits in.

        Args:
            map_size (tuple[int, int]): Height and width of the maps in tokens.
            window (tuple[int, int]): Height and width of a window in tokens; may exceed the map.
            shift (tuple[int, int]): How far the windows are shifted down and right; less than the window.
            extents (Sequence[tuple[int, int]], optional): Height and width of each image's content in tokens. None
                means one image that fills the map.
            halo (tuple[int, int]): How many tokens the keys reach beyond the window, above and below, left and right.
            mask_padding (bool): False gives window padding the region of its place, so that it takes part in
                attention, as it does in other Swins.
            shift_covered_axes (bool): False leaves the shift out along an axis that one window covers.
            pooled_neighbours (int): How many windows away the neighbours reach. With neighbours, the map is not rolled
                but its border cuts windows short, so that each window has one place among the others.
            device (torch.device): Where the tensors live.

        Returns:
            WindowLayout: From a bounded cache if the arguments were seen lately.
        """
        if extents is None:
            extents = (map_size, )
        return _build(tuple(map_size), tuple(window), tuple(shift), tuple(map(tuple, extents)), tuple(halo),
                      mask_padding, shift_covered_axes, pooled_neighbours, torch.device(device))


@index_cache(64)
def _build(map_size: Size, window: Size, shift: Size, extents: Extents, halo: Size, mask_padding: bool,
           shift_covered_axes: bool, pooled_neighbours: int, device: torch.device) -> WindowLayout:
    columns = map_size[1]
    tokens_per_image = map_size[0] * columns
    rolled = pooled_neighbours == 0
    queries, keys, grids = [], [], []
    for index, extent in enumerate(extents):
        if not shift_covered_axes:
            image_shift = tuple(0 if w >= e else s for s, w, e in zip(shift, window, extent))
        else:
            image_shift = shift
        first = index * tokens_per_image
        halos = [(0, 0)] if halo == (0, 0) else [(0, 0), halo]
        for found, reach in zip((queries, keys), halos):
            slots, *others = _cut(extent, window, image_shift, reach, columns, mask_padding, rolled)
            found.append((slots + first, *others))
        if not rolled:
            grids.append(tuple(-(-(e + -s % w) // w) for e, w, s in zip(extent, window, image_shift)))
    slots, valid, region = (torch.cat(part) for part in zip(*queries))
    key_slots, key_valid, key_region = (torch.cat(part) for part in zip(*keys)) if keys else (slots, valid, region)

    neighbours, there = _neighbours(grids, pooled_neighbours, len(slots))
    one_region = region[:, :1]
    unmasked = (region == one_region).all(1) & there.all(1)
    if keys:
        unmasked &= (key_region == one_region).all(1)
    masked = (~unmasked).nonzero().flatten()
    visible = region[masked, :, None] == key_region[masked, None, :]
    visible = torch.cat([visible, there[masked, None].expand(-1, visible.shape[1], -1)], dim=2)
    rank = (~valid).any(1).long()  # the plain windows first, those with padding slots last
    rank[masked] += 2
    if keys:  # and those that see the same keys side by side
        kinds = torch.cat([rank[masked, None] > 2, key_patterns(visible, valid[masked])], dim=1)
        rank[masked] = 2 + torch.unique(kinds, dim=0, return_inverse=True)[1]
    order = torch.argsort(rank, stable=True)
    visible = visible[torch.argsort(rank[masked], stable=True)]
    slots, valid, region = (part[order] for part in (slots, valid, region))
    if keys:
        key_slots, key_valid, key_region = (part[order] for part in (key_slots, key_valid, key_region))
    neighbours = order.argsort()[neighbours[order]]

    held = valid.flatten().nonzero().flatten()
    holes = held[:0] if len(held) == valid.numel() else (~valid).flatten().nonzero().flatten()
    home = torch.full((len(extents) * tokens_per_image, ), -1)
    home[slots.flatten()[held]] = held
    inside, outside = torch.arange(len(home)), held[:0]
    if len(held) < len(home):
        inside, outside = (home >= 0).nonzero().flatten(), (home < 0).nonzero().flatten()
        home.clamp_(min=0)
    plain = len(slots) - len(masked)

    queries = [part.to(device) for part in (slots, valid, region)]
    keys = queries if halo == (0, 0) else [part.to(device) for part in (key_slots, key_valid, key_region)]
    others = [part.to(device) for part in (home, holes, inside, outside, inside // tokens_per_image)]
    return WindowLayout(*queries, *keys, *others, plain, visible.to(device), len(extents),
                        neighbours.to(device))


def key_patterns(visible: Tensor, valid: Tensor) -> Tensor:
    """What the queries of each window see.

    Args:
        visible (Tensor): ``(T, N, Nk)`` bool, True where a query sees a key.
        valid (Tensor): ``(T, N)`` bool, False in padding slots: what these see is of no account.

    Returns:
        Tensor: ``(T, 1 + Nk)`` bool: whether queries differ in it, then for each key whether any query sees it.
    """
    anyone, everyone = (visible & valid[..., None]).any(1), (visible | ~valid[..., None]).all(1)
    return torch.cat([(anyone != everyone).any(1, keepdim=True), anyone], dim=1)


def _neighbours(grids: Sequence[Size], reach: int, windows: int) -> Tuple[Tensor, Tensor]:
    """The windows up to ``reach`` away from each, and whether they exist, both ``(T, P)``.

    ``grids`` has the numbers of windows down and across each image; the windows of an image follow one another.
    """
    if reach == 0:
        return torch.zeros(windows, 0, dtype=torch.long), torch.ones(windows, 0, dtype=torch.bool)
    steps = torch.cartesian_prod(*[torch.arange(-reach, reach + 1)] * 2)
    steps = steps[steps.any(1)]
    found, exist, first = [], [], 0
    for grid in grids:
        places = torch.cartesian_prod(*map(torch.arange, grid))
        others = places[:, None] + steps
        inside = ((others >= 0) & (others < torch.tensor(grid))).all(2)
        others = torch.where(inside[..., None], others, places[:, None])
        found.append(first + others[..., 0] * grid[1] + others[..., 1])
        exist.append(inside)
        first += grid[0] * grid[1]
    return torch.cat(found), torch.cat(exist)


def _cut(extent: Size, window: Size, shift: Size, halo: Size, columns: int, mask_padding: bool,
         rolled: bool) -> Tuple[Tensor, Tensor, Tensor]:
    """Slots, validity and region, each ``(T, N)``, of one image whose rows lie ``columns`` tokens apart."""
    (y, y_side, y_real, y_padded), (x, x_side, x_real, x_padded) = (
        _cut_axis(*axis, rolled) for axis in zip(extent, window, shift, halo))

    def grid(rows: Tensor, cols: Tensor, join) -> Tensor:  # (ny, h), (nx, w) -> (ny * nx, h * w)
        return join(rows[:, None, :, None], cols[None, :, None, :]).flatten(2).flatten(0, 1)

    slots = grid(y.clamp(0, extent[0] - 1), x.clamp(0, extent[1] - 1), lambda rows, cols: rows * columns + cols)
    valid = grid(y_real, x_real, torch.logical_and)
    seen = valid if mask_padding else grid(y_padded, x_padded, torch.logical_and)
    region = grid(y_side, x_side, lambda rows, cols: 2 * rows + cols).masked_fill(~seen, -1)
    return slots, valid, region.to(torch.int8)


def _cut_axis(length: int, window: int, shift: int, halo: int, rolled: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut one axis: coordinate, side of the seam, whether it is content, whether it is content or window padding.

    Each is ``(windows, window + 2 * halo)``. The rolled axis is read as a window onto two copies of the axis, the
    second of which starts at the seam; a halo that crosses the seam thus stays in its own copy and never wraps. An axis
    that is not rolled has no seam: with a shift, one window more starts before the first token.
    """
    padded = -(-length // window) * window
    first, end = (shift, shift + padded) if rolled else (-(-shift % window), length)
    coordinate = torch.arange(first, end, window)[:, None] + torch.arange(-halo, window + halo)
    side = (coordinate >= padded).long() if rolled else torch.zeros_like(coordinate)
    coordinate = coordinate - side * padded
    in_front = coordinate >= 0
    return coordinate, side, in_front & (coordinate < length), in_front & (coordinate < padded)
