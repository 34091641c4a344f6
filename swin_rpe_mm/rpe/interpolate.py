"""A table over offsets, read for a window of another size.

There are two meanings. ``bicubic`` and ``linear`` are relative to the window: the table is stretched over the new one,
and the farthest offset goes on reading about the farthest entry. ``crop`` and ``geometric`` are relative to the token:
near offsets keep their entries.
"""
import math
from typing import Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError


def resize_table(table: Tensor, old_sides: Tuple[int, ...], new_sides: Tuple[int, ...], mode: str) -> Tensor:
    """Read a table over a grid of offsets for a window of another size, one axis after the other.

    Args:
        table (Tensor): ``(product of old sides, features)``, the offsets of the last axis fastest.
        old_sides, new_sides (tuple[int, ...]): How many offsets there are along each axis, ``2 * window - 1``.
        mode (str): ``bicubic`` stretches the table over the new window, as Swin does for another resolution
            (``align_corners=False``, no antialiasing); ``linear`` does so without overshoot. ``geometric`` keeps the
            near offsets and stretches the far ones: the old offset ``i`` is put at ``1 + q + ... + q**(i - 1)``, with
            q such that the farthest old one comes to lie on the farthest new one, and a cubic spline is read at whole
            offsets (BEiT, arXiv 2106.08254). ``crop`` keeps the entry of every offset that exists in both and repeats
            the edge where the new window reaches further.

    Returns:
        Tensor: ``(product of new sides, features)``; ``table`` itself if the sides are equal.

    Raises:
        InputError: If the mode is unknown or cannot make that change.
    """
    check_mode('mode', mode)
    if tuple(old_sides) == tuple(new_sides):
        return table
    grid = table.to(torch.promote_types(table.dtype, torch.float32)).unflatten(0, old_sides)
    for axis, (old, new) in enumerate(zip(old_sides, new_sides)):
        if old != new:
            last = grid.movedim(axis, -1)
            grid = MODES[mode](last.flatten(0, -2), new).unflatten(0, last.shape[:-1]).movedim(-1, axis)
    return grid.flatten(0, len(new_sides) - 1).to(table.dtype).contiguous()


def check_mode(name: str, mode: str) -> None:
    """Raise :class:`InputError`, naming the argument, unless the mode is one of ``MODES``."""
    if mode not in MODES:
        raise InputError(f'{name} must be one of {", ".join(MODES)}, got {mode!r}')


def _bicubic(rows: Tensor, new: int) -> Tensor:
    return F.interpolate(rows[None, :, None], size=(1, new), mode='bicubic', align_corners=False)[0, :, 0]


def _linear(rows: Tensor, new: int) -> Tensor:
    return F.interpolate(rows[None], size=new, mode='linear', align_corners=False)[0]


def _crop(rows: Tensor, new: int) -> Tensor:
    old = rows.shape[-1]
    reach, new_reach = _reach('crop', old), _reach('crop', new)
    offset = torch.arange(-new_reach, new_reach + 1, device=rows.device)
    return rows[:, offset.clamp(-reach, reach) + reach]


def _geometric(rows: Tensor, new: int) -> Tensor:
    reach, new_reach = _reach('geometric', rows.shape[-1]), _reach('geometric', new)
    ratio = _ratio(reach, new_reach)
    steps = ratio**torch.arange(reach, dtype=torch.float64)
    far = steps.cumsum(0)
    knots = torch.cat([-far.flip(0), far.new_zeros(1), far])
    knots[[0, -1]] = far.new_tensor([-new_reach, new_reach])  # bisection stops a little short
    targets = torch.arange(-new_reach, new_reach + 1, dtype=torch.float64)
    return rows @ _spline_weights(knots, targets).to(rows)


def _ratio(reach: int, new_reach: int) -> float:
    """q in [1.01, 1.5] with ``1 + q + ... + q**(reach - 1) = new_reach``, by bisection."""
    low, high = 1.01, 1.5

    def total(q: float) -> float:
        return sum(q**i for i in range(reach))

    if not total(low) <= new_reach <= total(high):
        least, most = math.ceil(total(low)), math.floor(total(high))
        possible = f'to {least}..{most}' if least <= most else 'to no whole number'
        raise InputError(f'geometric can stretch offsets up to {reach} {possible}, not to {new_reach}; crop and '
                         'bicubic take any window')
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) < new_reach else (low, middle)
    return low


def _spline_weights(knots: Tensor, targets: Tensor) -> Tensor:
    """What each of n knots contributes to a cubic spline at m targets, ``(n, m)``.

    The second derivatives M at the knots solve the continuity of the first derivative at inner knots; the third
    derivative is continuous at the second and the last but one (not-a-knot), as in FITPACK, which BEiT used. Three
    knots, which allow no such condition, take the parabola through them.
    """
    n = len(knots)
    identity = torch.eye(n, dtype=knots.dtype)
    width = knots.diff()
    slope = identity.diff(dim=0) / width[:, None]
    system, right = torch.zeros_like(identity), torch.zeros_like(identity)
    for i in range(1, n - 1):
        system[i, i - 1:i + 2] = torch.stack([width[i - 1], 2 * (width[i - 1] + width[i]), width[i]])
        right[i] = 6 * (slope[i] - slope[i - 1])
    if n == 3:
        system[0, :2] = system[2, 1:] = knots.new_tensor([1, -1])
    else:
        system[0, :3] = torch.stack([-width[1], width[0] + width[1], -width[0]])
        system[-1, -3:] = torch.stack([-width[-1], width[-2] + width[-1], -width[-2]])
    moments = torch.linalg.solve(system, right)

    piece = (torch.searchsorted(knots, targets, right=True) - 1).clamp(0, n - 2)
    h, before, after = width[piece], (targets - knots[piece])[:, None], (knots[piece + 1] - targets)[:, None]
    h = h[:, None]
    weights = (moments[piece] * after**3 + moments[piece + 1] * before**3) / (6 * h)
    weights += (identity[piece] / h - moments[piece] * h / 6) * after
    weights += (identity[piece + 1] / h - moments[piece + 1] * h / 6) * before
    return weights.T


def _reach(mode: str, side: int) -> int:
    if side % 2 == 0:
        raise InputError(f'{mode} needs as many negative as positive offsets, got {side} along an axis')
    return side // 2


def _sides_of_index(index: Tensor, rows: int) -> List[Tuple[int, int]]:
    slots, fitting = math.isqrt(len(index)), []
    for width in (w for w in range(1, slots + 1) if slots % w == 0):
        height = slots // width
        # from a slot to the one below, the index falls by one row of offsets
        below = int(index[0] - index[width]) if height > 1 else 2 * width - 1
        if (2 * height - 1) * (2 * width - 1) == rows and below == 2 * width - 1:
            fitting.append((2 * height - 1, 2 * width - 1))
    return fitting


MODES: Dict[str, Callable[[Tensor, int], Tensor]] = {
    'bicubic': _bicubic,
    'linear': _linear,
    'geometric': _geometric,
    'crop': _crop
}


def source_sides(rows: int, index: Optional[Tensor], likely: Tuple[int, ...], name: str) -> Tuple[int, ...]:
    """The sides of the grid of offsets that a table was made for.

    Args:
        rows (int): Rows of the table.
        index (Tensor, optional): The ``relative_position_index`` beside it, ``(wh * ww, wh * ww)`` or flat, which
            tells the sides apart.
        likely (tuple[int, ...]): The sides to assume if they fit and there is no index.
        name (str): The table's name, for the message.

    Returns:
        tuple[int, ...]: One side per axis. Without an index, sides other than ``likely`` must be equal.

    Raises:
        InputError: If the sides can't be told.
    """
    axes = len(likely)
    if index is not None and axes == 2:
        fitting = _sides_of_index(index.flatten(), rows)
        if fitting:  # the index of a window (1, n) is that of (n, 1)
            return likely if likely in fitting else fitting[0]
    if math.prod(likely) == rows:
        return tuple(likely)
    side = round(rows**(1 / axes))
    if side**axes == rows and side % 2:
        return (side, ) * axes
    raise InputError(f'{name} has {rows} rows, which is no square window; its window cannot be told without the '
                     'relative_position_index beside it')
