"""The windows of a layer as they lie on the image: regular, shifted, masked, padded."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from ..models import Swin
from ..windows import WindowLayout, Windows
from .layers import Layer, Size, extents_of, layers_of
from .style import BATCH_PADDING, COLOURS, WINDOW_PADDING, outline, pixel_axes, show_picture
from .window_logits import held_tokens, real_windows

Box = tuple[int, int, int, int]

_NUMBERED = 36  # pieces up to which each bears the number of its window
_KINDS = {
    (False, False): (None, 'whole window'),
    (True, False): (COLOURS['orange'], 'pieces of windows that the shift joins: masked from each other'),
    (False, True): (COLOURS['sky'], 'window with padding'),
    (True, True): (COLOURS['purple'], 'both')
}


class Piece(NamedTuple):
    """Tokens that lie side by side and see each other.

    Attributes:
        box (tuple[int, int, int, int]): First row and column, and those behind the last, in tokens.
        window (int): The window in the layout that computes them. At the seam of a shift it has several pieces.
        joined (bool): Whether its window has other pieces.
        padded (bool): Whether its window has padding slots.
    """
    box: Box
    window: int
    joined: bool
    padded: bool


def pieces(layout: WindowLayout, map_size: Size, image: int = 0) -> list[Piece]:
    """The pieces that one image of a batch is cut into, row by row.

    Args:
        layout (WindowLayout): The windows.
        map_size (tuple[int, int]): Height and width of the maps in tokens.
        image (int): Which image.
    """
    first, region = image * map_size[0] * map_size[1], layout.region.flatten()
    slots = layout.rows_back[first:first + map_size[0] * map_size[1]]
    places = (region[slots] >= 0).nonzero().flatten()
    slots = slots[places]
    windows = slots // layout.region.shape[1]
    # padding that takes part has the region of its place, so sides of the seam are told by real slots alone
    ids, member = torch.unique(windows * 8 + region[slots], return_inverse=True)
    rows, columns = places // map_size[1], places % map_size[1]

    def bound(values: Tensor, reduce: str) -> list[int]:
        return values.new_zeros(len(ids)).scatter_reduce(0, member, values, reduce, include_self=False).tolist()

    boxes = zip(bound(rows, 'amin'), bound(columns, 'amin'), bound(rows + 1, 'amax'), bound(columns + 1, 'amax'))
    owner = (ids // 8).tolist()
    parts = Counter(owner)
    padded = (~held_tokens(layout)).any(1).tolist()
    found = [Piece(box, window, parts[window] > 1, padded[window]) for box, window in zip(boxes, owner)]
    return sorted(found)


def covered(windows: Windows, extent: Size) -> Box:
    """What windows cover of an image with that extent: first row and column, and those behind the last, in tokens.

    Where windows wrap around, window padding lies behind the end. Others may start before the first token.
    """
    first, end = [], []
    for axis, side in enumerate(extent):
        sizes = windows.count(axis, side), windows.geometry(extent).query_size[axis]
        window, place = torch.meshgrid(*map(torch.arange, sizes), indexing='ij')
        coordinate, _ = windows.token(axis, window, place, side, side)
        held = coordinate[((coordinate >= 0) & (coordinate < side)).any(1)]
        first.append(int(held.min()))
        end.append(int(held.max()) + 1)
    return (*first, *end)


def in_pixels(box: Box, stride: Size) -> tuple[float, float, float, float]:
    """Left, top, width and height of a box of tokens, in pixels."""
    top, left, bottom, right = (entry * stride[i % 2] for i, entry in enumerate(box))
    return left, top, right - left, bottom - top


def draw_grid(axis: Axes, found: Sequence[Piece], stride: Size, fill: bool = False) -> None:
    """The pieces' outlines, and with ``fill`` a colour for each kind."""
    for piece in found:
        left, top, width, height = in_pixels(piece.box, stride)
        colour = _KINDS[piece.joined, piece.padded][0] if fill else None
        if colour:
            axis.add_patch(Rectangle((left, top), width, height, facecolor=colour, alpha=.45, linewidth=0))
        outline(axis, left, top, width, height)


def draw_padding(axis: Axes, layer: Layer, box: Box, extent: Size, batch_size: Size) -> None:
    """Window padding and batch padding, hatched; sizes of the image and the batch in pixels."""
    # the batch's padding first: where windows cover it, it is window padding to them
    for bounds, style in (((0, 0, *batch_size), BATCH_PADDING), (_scaled(box, layer.stride), WINDOW_PADDING)):
        for part in around(bounds, extent):
            left, top, width, height = in_pixels(part, (1, 1))
            axis.add_patch(Rectangle((left, top), width, height, linewidth=0, **style))


def around(box: Box, extent: Size) -> list[Box]:
    """Up to four boxes that make up ``box`` without the one from ``(0, 0)`` to ``extent``."""
    top, left, bottom, right = box
    height, width = extent
    parts = [(top, left, 0, right), (height, left, bottom, right), (0, left, height, 0), (0, width, height, right)]
    return [part for part in parts if part[0] < part[2] and part[1] < part[3]]


def _scaled(box: Box, stride: Size) -> Box:
    return tuple(entry * stride[i % 2] for i, entry in enumerate(box))


def draw_windows(backbone: Swin, images: Tensor, picture: np.ndarray,
                 extents: Sequence[Size] | None = None) -> Figure:
    """A column for each stage, a row for regular and one for shifted windows.

    Args:
        backbone (Swin): The backbone.
        images (Tensor): ``(1, C, H, W)``.
        picture (np.ndarray): The image's content in RGB, ``(h, w, 3)`` uint8.
        extents (Sequence[tuple[int, int]], optional): Height and width of the image's content in pixels; None for all.
    """
    batch_size, extent = tuple(images.shape[-2:]), extents_of(backbone, images, extents)[0]
    layers = layers_of(backbone)
    chosen = [layer for layer in layers if layer.index < 2 and (layer.index == 0 or layer.shifted)]
    rows = 2 if any(layer.shifted for layer in chosen) else 1
    stages = len(backbone.stages)
    across = 3.3
    tall = across * batch_size[0] / batch_size[1] + .85
    figure = Figure(figsize=(across * stages, tall * rows + .7), layout='constrained')
    axes = figure.subplots(rows, stages, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    kinds = set()
    for layer in chosen:
        axis = axes[layer.index, layer.stage]
        axis.set_axis_on()
        map_size = layer.map_size(extent)
        # an image's windows are those that it has alone, whatever its batch
        layout = backbone.stages[layer.stage].layouts(1, map_size, None, images.device)[layer.index]
        cut = pieces(layout, map_size)
        kinds |= {(piece.joined, piece.padded) for piece in cut}
        box = covered(layer.windows, map_size)
        show_picture(axis, picture)
        draw_padding(axis, layer, box, extent, batch_size)
        draw_grid(axis, cut, layer.stride, fill=True)
        if len(cut) <= _NUMBERED:
            number_pieces(axis, cut, layer.stride)
        if layer.looks_beyond:
            outline(axis, *in_pixels(keys_of_middle(layer, cut, map_size), layer.stride), colour=COLOURS['yellow'],
                    linewidth=1.5, linestyle='--')
        left, top, width, height = in_pixels(box, layer.stride)
        pixel_axes(axis, (min(left, 0), max(left + width, batch_size[1])),
                   (max(top + height, batch_size[0]), min(top, 0)), layer.index == rows - 1, layer.stage == 0)
        axis.set_title(describe(layer, layout), fontsize=9)
    handles = [Patch(facecolor=_KINDS[kind][0] or 'white', edgecolor='0.3', label=_KINDS[kind][1], alpha=.6)
               for kind in _KINDS if kind in kinds]
    taking_part = '' if backbone.config.mask_padding else ', which takes part in attention'
    handles.append(Patch(label='window padding' + taking_part, **WINDOW_PADDING))
    if extent != batch_size:
        handles.append(Patch(label='batch padding', **BATCH_PADDING))
    if any(layer.looks_beyond for layer in chosen):
        handles.append(Line2D([], [], color=COLOURS['yellow'], linewidth=1.5, linestyle='--',
                              label='what one window sees, its halo or neighbours included'))
    figure.legend(handles=handles, loc='outside lower center', ncols=min(len(handles), 3), fontsize=8, frameon=False)
    return figure


def keys_of_middle(layer: Layer, found: Sequence[Piece], extent: Size) -> Box:
    """The piece in the middle of an image with all that its queries see, inside the image's extent in tokens."""
    middle, geometry = [side // 2 for side in extent], layer.windows.geometry(extent)
    box, = (piece.box for piece in found
            if all(piece.box[i] <= at < piece.box[2 + i] for i, at in enumerate(middle)))
    reach = [max(-first, layer.attention.pooled_neighbours * side)
             for first, side in zip(geometry.origin, geometry.query_size)]
    return (*(max(box[i] - reach[i], 0) for i in (0, 1)), *(min(box[2 + i] + reach[i], extent[i]) for i in (0, 1)))


def number_pieces(axis: Axes, found: Sequence[Piece], stride: Size) -> None:
    """The number of its window in each piece."""
    order = {window: i for i, window in enumerate(dict.fromkeys(piece.window for piece in found))}
    for piece in found:
        left, top, width, height = in_pixels(piece.box, stride)
        axis.text(left + width / 2, top + height / 2, order[piece.window] + 1, ha='center', va='center', fontsize=7,
                  bbox=dict(boxstyle='round,pad=.15', facecolor='white', alpha=.8, linewidth=0), clip_on=True)


def describe(layer: Layer, layout: WindowLayout) -> str:
    """How many windows there are, how many need a mask, and how many of their slots are padding."""
    windows = real_windows(layout)
    total, masked = len(windows), int((~layout.visible[windows]).flatten(1).any(1).sum())
    share = 100 * float((~held_tokens(layout)[windows]).double().mean())
    height, width = layout.geometry.query_size
    step = f'{layer.stride[0]}' if layer.stride[0] == layer.stride[1] else '×'.join(map(str, layer.stride))
    return (f'stage {layer.stage}: {layer.kind}, {height}×{width} tokens of {step} px\n'
            f'{total} window{"s" * (total > 1)}, {masked} masked, {share:.3g} % of slots padding')
