"""Windows over the tokens inside their images' extents alone, in an order that suits an executor.

The same windows as those of :class:`~swin_rpe_mm.windows.WindowLayout`, from the same arithmetic, but padding is left
out: tokens are packed, nothing lies between them, and windows without any are gone. Windows that need no mask come
first. All of it is worked out once per size and extents, and kept.
"""
from dataclasses import dataclass
from typing import NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ...windows import WindowLayout, Windows
from .gather import Gather
from .index_cache import index_cache, index_property

Size = Tuple[int, int]
Extents = Tuple[Size, ...]


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """T windows of N slots over the tokens of B maps.

    Attributes:
        slots (Tensor): ``(T, N)`` long, the token ``b*H*W + y*W + x`` in each slot; a padding slot repeats some real
            token of its image.
        valid (Tensor): ``(T, N)`` bool, False in padding slots.
        region (Tensor): ``(T, N)`` long, which side of the cyclic seam the slot's token comes from (0..3); -1 in
            padding slots.
        key_slots, key_valid (Tensor): The same for the ``(T, Nk)`` keys. Without a halo they are the query's tensors.
            A key that no query sees counts as padding.
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
              windows: Windows,
              map_size: Size,
              extents: Optional[Sequence[Size]] = None,
              mask_padding: bool = True,
              pooled_neighbours: int = 0) -> 'PackedLayout':
        """Lay windows over maps.

        Args:
            windows (Windows): Their kind.
            map_size (tuple[int, int]): Height and width of the maps in tokens.
            extents (Sequence[tuple[int, int]], optional): Height and width of each image's content in tokens. None
                means one image that fills the map.
            mask_padding, pooled_neighbours: As for :meth:`~swin_rpe_mm.windows.WindowLayout.build`.

        Returns:
            PackedLayout: From a bounded cache if the arguments were seen lately.
        """
        extents = (map_size, ) if extents is None else extents
        return _build(windows, tuple(map_size), tuple(map(tuple, extents)), mask_padding, pooled_neighbours)


@index_cache(64)
def _build(windows: Windows, map_size: Size, extents: Extents, mask_padding: bool,
           pooled_neighbours: int) -> PackedLayout:
    per_image = map_size[0] * map_size[1]
    tokens = len(extents) * per_image
    images = []  # each laid out as it would be alone: fewer windows than those of the map that it sits in
    windows_before = 0
    for index, extent in enumerate(extents):
        images.append(_image(windows, extent, map_size[1], index * per_image, windows_before, mask_padding,
                             pooled_neighbours))
        windows_before += len(images[-1].slots)
    slots, valid, region, key_slots, key_valid, seen, neighbours = (torch.cat(parts) for parts in zip(*images))
    has_halo = windows.geometry(map_size).key_size != windows.geometry(map_size).query_size

    unmasked = seen.all(2).all(1)
    masked = ~unmasked
    rank = (~valid).any(1).long()  # the plain windows first, those with padding slots last
    rank[masked] += 2
    if has_halo:  # and those that see the same keys side by side
        kinds = torch.cat([rank[masked, None] > 2, key_patterns(seen[masked], valid[masked])], dim=1)
        rank[masked] = 2 + torch.unique(kinds, dim=0, return_inverse=True)[1]
    order = torch.argsort(rank, stable=True)
    plain = int(unmasked.sum())
    slots, valid, region = slots[order], valid[order], region[order]
    key_slots, key_valid = (key_slots[order], key_valid[order]) if has_halo else (slots, valid)
    visible = seen[order[plain:]]
    neighbours = order.argsort()[neighbours[order]]

    held = valid.flatten().nonzero().flatten()
    holes = held[:0] if len(held) == valid.numel() else (~valid).flatten().nonzero().flatten()
    home = torch.full((tokens, ), -1, device='cpu')
    home[slots.flatten()[held]] = held
    inside, outside = torch.arange(tokens, device='cpu'), held[:0]
    if len(held) < tokens:
        inside, outside = (home >= 0).nonzero().flatten(), (home < 0).nonzero().flatten()
        home.clamp_(min=0)
    return PackedLayout(slots, valid, region, key_slots, key_valid, home, holes, inside, outside, inside // per_image,
                        plain, visible, len(extents), neighbours)


class _Image(NamedTuple):
    """One image's part of the tensors of :class:`PackedLayout`, all windows masked and in the order of the map."""
    slots: Tensor
    valid: Tensor
    region: Tensor
    key_slots: Tensor
    key_valid: Tensor
    visible: Tensor
    neighbours: Tensor


def _image(windows: Windows, extent: Size, columns: int, first_token: int, first_window: int, mask_padding: bool,
           pooled_neighbours: int) -> _Image:
    """An image whose rows lie ``columns`` tokens apart."""
    layout = WindowLayout.build(windows, 1, extent, None, mask_padding, pooled_neighbours, torch.device('cpu'))
    region, tokens = layout.region, extent[0] * extent[1]

    def held(rows: Tensor, real: Tensor) -> Tensor:
        rows = rows.view_as(real).masked_fill(~real, 0)
        return first_token + rows // extent[1] * columns + rows % extent[1]

    valid = (layout.rows < tokens).view_as(region)
    slots = key_slots = held(layout.rows, valid)
    key_valid = valid
    if layout.key_rows is not None:
        keys = layout.key_rows.view(len(region), -1)
        # with masks a key beyond the image repeats a token: it is one that no query sees
        key_valid = (layout.visible[:, :, :keys.shape[1]] & valid[:, :, None]).any(1) if mask_padding else keys < tokens
        key_slots = held(layout.key_rows, key_valid)
    neighbours = region.new_zeros(len(region), 0) if layout.neighbours is None else layout.neighbours + first_window
    return _Image(slots, valid, region, key_slots, key_valid, layout.visible, neighbours)


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
