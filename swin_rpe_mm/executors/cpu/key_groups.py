"""Windows that see the same keys, and keys that several windows share.

With a halo, a window near the border of its image has keys that lie beyond it. Windows that agree on which of their
keys any query sees are attended to together, with these keys alone: no product is spent on the others, and a mask is
needed only where the queries of one window differ, at a seam.

A token is a key of several windows. When keys are counted down the columns, those of a window and of the next one to
its right are overlapping parts of one strip, of which a token is a part only as often as windows lie below one another:

    keys of window 0    [a0 a1 b0 b1 c0 c1]
    keys of window 1          [b0 b1 c0 c1 d0 d1]
"""
from typing import Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .index_cache import index_cache
from .packed import PackedLayout, key_patterns
from .parts import cut_into_parts


class KeyGroup(NamedTuple):
    """Windows that follow one another in a layout, G of them, and M keys that each of them needs.

    Attributes:
        windows (slice): The windows.
        keys (Tensor, optional): ``(M,)`` long, which of the layout's key slots; None for all of them.
        pattern (int): The same for all groups of a layout with the same ``keys``.
        size (int): M.
        step (int): How far the keys of the next window begin from those of the one before.
        rows (Tensor): ``((G - 1) * step + M,)`` long, the packed token of each key.
        valid (Tensor): The same for whether it is one: False for padding.
        visible (Tensor): ``(V, N, M)`` bool, for the last V windows; queries of the others see every key.
    """
    windows: slice
    keys: Optional[Tensor]
    pattern: int
    size: int
    step: int
    rows: Tensor
    valid: Tensor
    visible: Tensor

    def gather(self, tokens: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        """What the keys hold of the packed tokens ``(K, C)``, or of ``padding (C,)``; returns ``(G, M, C)``."""
        strip = tokens.index_select(0, self.rows)
        if padding is not None:
            strip = torch.where(self.valid[:, None], strip, padding)
        return strip.unfold(0, self.size, self.step).transpose(1, 2)

    def cut(self, start: int, stop: int) -> 'KeyGroup':
        """The group of the layout's windows from ``start`` to before ``stop``, which must be among its own."""
        first, last = start - self.windows.start, stop - self.windows.start
        plain = self.windows.stop - self.windows.start - len(self.visible)
        keys = slice(first * self.step, (last - 1) * self.step + self.size)
        return self._replace(windows=slice(start, stop), rows=self.rows[keys], valid=self.valid[keys],
                             visible=self.visible[max(first - plain, 0):max(last - plain, 0)])

    def split(self, most: int) -> Iterator['KeyGroup']:
        """Groups of at most ``most`` windows."""
        for start in range(self.windows.start, self.windows.stop, most):
            yield self.cut(start, min(start + most, self.windows.stop))


Groups = Tuple[KeyGroup, ...]


def all_keys(layout: PackedLayout) -> KeyGroup:
    """All windows of a layout with all their keys; ``visible`` has the neighbours too."""
    windows, keys = layout.key_rows.shape
    return KeyGroup(slice(0, windows), None, 0, keys, keys, layout.key_rows.flatten(), layout.key_valid.flatten(),
                    layout.visible)


@index_cache(64)
def group_by_keys(layout: PackedLayout, key_size: Tuple[int, ...]) -> Groups:
    """The windows of a layout without neighbours by the keys that they see.

    Args:
        layout (PackedLayout): The layout.
        key_size (tuple[int, ...]): How many keys a window has along each axis.
    """
    plain = layout.plain
    down_columns = torch.arange(layout.key_rows.shape[1]).view(key_size).movedim(-1, 0).flatten()
    down_columns = down_columns.to(layout.key_rows.device)
    groups = _strips(layout, slice(0, plain), down_columns, 0, layout.visible[:0]) if plain else []
    patterns, counts = torch.unique_consecutive(
        key_patterns(layout.visible, layout.valid[plain:]), dim=0, return_counts=True)
    last = plain
    for number, (pattern, count) in enumerate(zip(patterns, counts.tolist()), 1):
        windows = slice(last, last + count)
        last = windows.stop
        keys = down_columns[pattern[1:][down_columns]]
        # padding slots, whose own keys may be left out, see all: no row of an attention matrix is ever empty
        visible = layout.visible[windows.start - plain:windows.stop - plain, :, keys] | ~layout.valid[windows, :, None]
        groups += _strips(layout, windows, keys, number, visible if pattern[0] else visible[:0])
    return tuple(groups)


@index_cache(64)
def groups_of_parts(layout: PackedLayout, windows: int,
                    key_size: Optional[Tuple[int, ...]] = None) -> Tuple[Groups, ...]:
    """For each part of ``cut_into_parts(layout, windows)`` the groups of its windows, counted from the part's first.

    Args:
        layout (PackedLayout): The layout.
        windows (int): How many windows a part may have.
        key_size (tuple[int, ...], optional): As for :func:`group_by_keys`; None leaves all windows all their keys.
    """
    groups = group_by_keys(layout, key_size) if key_size else (all_keys(layout), )
    return tuple(_of_part(groups, part.windows) for part in cut_into_parts(layout, windows).parts)


def _of_part(groups: Groups, windows: slice) -> Groups:
    found = []
    for group in groups:
        start, stop = max(group.windows.start, windows.start), min(group.windows.stop, windows.stop)
        if start < stop:
            own = slice(start - windows.start, stop - windows.start)
            found.append(group.cut(start, stop)._replace(windows=own))
    return tuple(found)


def _strips(layout: PackedLayout, windows: slice, keys: Tensor, pattern: int, visible: Tensor) -> List[KeyGroup]:
    """A group of windows, cut where the keys of one do not overlap with those of the next."""
    rows, valid = layout.key_rows[windows][:, keys], layout.key_valid[windows][:, keys]
    count, size = rows.shape
    # where the first key of each window is found among those of the window before
    found = (rows[:-1] == rows[1:, :1]).byte().argmax(1)
    step, joined = size, torch.zeros_like(found, dtype=torch.bool)
    for guess in found[found > 0].unique().tolist():
        overlap = ((rows[1:, :-guess] == rows[:-1, guess:]) & (valid[1:, :-guess] == valid[:-1, guess:])).all(1)
        if overlap.sum() > joined.sum():
            step, joined = guess, overlap
    breaks = [0, *((~joined).nonzero().flatten() + 1).tolist(), count]
    runs = []
    for start, stop in zip(breaks, breaks[1:]):
        if stop - start > 1:
            runs.append((start, stop, step))
        elif runs and runs[-1][2] == size:  # windows that share nothing stay together
            runs[-1] = (runs[-1][0], stop, size)
        else:
            runs.append((start, stop, size))
    groups = []
    for start, stop, step in runs:
        strip = [torch.cat([part[start], part[start + 1:stop, -step:].flatten()]) for part in (rows, valid)]
        own = slice(windows.start + start, windows.start + stop)
        groups.append(KeyGroup(own, keys, pattern, size, step, *strip, visible[start:stop]))
    return groups
