"""A table with one row per offset, read for another window."""
import math
from typing import Optional, Tuple

import torch.nn.functional as F
from torch import Tensor

from ...errors import InputError

MODES = ('bicubic', 'crop')


def resize_table(table: Tensor, old_sides: Tuple[int, int], new_sides: Tuple[int, int], mode: str) -> Tensor:
    """Read a table over a grid of offsets for a window of another size.

    Args:
        table (Tensor): ``(old rows * old columns, heads)``, the offsets of the last axis fastest.
        old_sides, new_sides (tuple[int, int]): How many offsets there are along each axis, ``2 * window - 1``.
        mode (str): ``bicubic`` stretches the table over the new window, as Swin does for another resolution
            (``align_corners=False``, no antialiasing). ``crop`` keeps the value of every offset that exists in both
            and repeats the edge where the new window reaches further.

    Returns:
        Tensor: ``(new rows * new columns, heads)``; ``table`` itself if the sides are equal.

    Raises:
        InputError: If the mode is unknown.
    """
    if mode not in MODES:
        raise InputError(f'mode must be one of {", ".join(MODES)}, got {mode!r}')
    if old_sides == new_sides:
        return table
    grid = table.T.reshape(1, -1, *old_sides)
    if mode == 'bicubic':
        grid = F.interpolate(grid.float(), size=new_sides, mode='bicubic', align_corners=False).to(table.dtype)
    else:
        # offsets are centred and sides odd, so growth is the same at both ends; negative growth crops
        (top, left) = ((new - old) // 2 for new, old in zip(new_sides, old_sides))
        crop = F.pad(grid, (min(left, 0), ) * 2 + (min(top, 0), ) * 2)
        grid = F.pad(crop, (max(left, 0), ) * 2 + (max(top, 0), ) * 2, mode='replicate')
    return grid.flatten(2)[0].T.contiguous()


def source_window(rows: int, index: Optional[Tensor], likely: Tuple[int, int], name: str) -> Tuple[int, int]:
    """The window that a table was made for.

    Args:
        rows (int): Rows of the table, ``(2 * wh - 1) * (2 * ww - 1)``.
        index (Tensor, optional): The ``relative_position_index`` beside it, ``(wh * ww, wh * ww)`` or flat, which
            tells the sides apart.
        likely (tuple[int, int]): The window to assume if it fits and there is no index.
        name (str): The table's name, for the message.

    Returns:
        tuple[int, int]: Height and width. Without an index, a window other than ``likely`` must be square.

    Raises:
        InputError: If the window can't be told.
    """
    if index is not None:
        index = index.flatten()
        slots = math.isqrt(len(index))
        for width in (w for w in range(1, slots + 1) if slots % w == 0):
            height = slots // width
            # from a slot to the one below, the index falls by one row of offsets
            below = int(index[0] - index[width]) if height > 1 else 2 * width - 1
            if (2 * height - 1) * (2 * width - 1) == rows and below == 2 * width - 1:
                return height, width
    if (2 * likely[0] - 1) * (2 * likely[1] - 1) == rows:
        return likely
    side = math.isqrt(rows)
    if side * side == rows and side % 2:
        return (side + 1) // 2, (side + 1) // 2
    raise InputError(f'{name} has {rows} rows, which is no square window; its window cannot be told without the '
                     'relative_position_index beside it')
