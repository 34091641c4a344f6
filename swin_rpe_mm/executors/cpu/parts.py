"""Cutting a layout into parts of a few windows each.

Windows do not see each other, or with a halo nothing but each other's keys, so a block may be run on some of them at a
time. With few enough, all that a block makes on its way stays in a CPU's cache, and only the tokens themselves are read
from memory and written to it.
"""
import itertools
from typing import NamedTuple, Tuple

import torch
from torch import Tensor

from ..tuning import current
from .index_cache import index_cache
from .packed import PackedLayout


class Part(NamedTuple):
    """Some of a layout's windows.

    Attributes:
        windows (slice): Which.
        tokens (Tensor): ``(P,)`` long, the packed tokens they hold, in the order of their slots.
        layout (PackedLayout): The windows over these P tokens alone. It knows no keys beyond them, see
            :class:`~.key_groups.KeyGroup`.
    """
    windows: slice
    tokens: Tensor
    layout: PackedLayout


class Parts(NamedTuple):
    """All parts of a layout.

    Attributes:
        parts (tuple[Part, ...]): The parts.
        tokens (int): How many tokens most parts have; 0 where there is no such number.
    """
    parts: Tuple[Part, ...]
    tokens: int


def cut_into_parts(layout: PackedLayout, windows: int) -> Parts:
    """Cut a layout without neighbours into parts.

    Most have the same number of windows, all of them full, a multiple of the tuning's ``window_step``: few numbers of
    tokens occur, whatever the sizes of the maps.

    Args:
        layout (PackedLayout): The layout.
        windows (int): How many windows a part may have.
    """
    return _cut(layout, windows, current().window_step)


@index_cache(64)
def _cut(layout: PackedLayout, windows: int, window_step: int) -> Parts:
    total = len(layout.slots)
    if total <= windows:
        return Parts((_part(layout, slice(0, total)), ), 0)
    full = int(layout.valid.all(1).sum())
    step = full // -(-full // windows) // window_step * window_step if full else 0
    sizes = [step] * (full // step) if step else []
    rest = total - sum(sizes)
    sizes += [len(piece) for piece in torch.arange(rest).chunk(-(-rest // windows))] if rest else []
    ends = itertools.accumulate(sizes)
    parts = tuple(_part(layout, slice(end - size, end)) for size, end in zip(sizes, ends))
    return Parts(parts, step * layout.slots.shape[1])


def _part(layout: PackedLayout, windows: slice) -> Part:
    held, valid, region = layout.packed_slots[windows], layout.valid[windows], layout.region[windows]
    home = valid.flatten().nonzero().flatten()
    if len(home) == held.numel():  # most parts
        tokens, slots, holes = held.flatten(), home.view_as(held), home[:0]
    else:
        taken = valid.flatten()
        tokens, holes = held.flatten()[home], (~taken).nonzero().flatten()
        slots = (taken.cumsum(0) - 1).clamp_(min=0).view_as(valid)
    masked = slice(max(windows.start - layout.plain, 0), max(windows.stop - layout.plain, 0))
    own = PackedLayout(slots, valid, region, slots, valid, home, holes,
                       torch.arange(len(home), device=home.device), home[:0], layout.image_of_token[tokens],
                       min(max(layout.plain - windows.start, 0), len(valid)), layout.visible[masked],
                       layout.batch_size, layout.neighbours[windows])
    return Part(windows, tokens, own)
