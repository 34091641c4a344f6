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

from ..models import SwinRPE
from ..mm.extents import get_extents
from ..windows import WindowLayout
from .layers import Layer, LayerInput, layers_of, watch
from .style import BATCH_PADDING, COLOURS, WINDOW_PADDING, outline, pixel_axes, show_picture

Size = tuple[int, int]
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
    tokens = layout.inside[layout.image_of_token == image]
    slots = layout.home[tokens]
    windows = slots // layout.slots.shape[1]
    # padding that takes part has the region of its place, so sides of the seam are told by real slots alone
    ids, member = torch.unique(windows * 8 + layout.region.flatten()[slots], return_inverse=True)
    places = tokens - image * map_size[0] * map_size[1]
    rows, columns = places // map_size[1], places % map_size[1]

    def bound(values: Tensor, reduce: str) -> list[int]:
        return values.new_zeros(len(ids)).scatter_reduce(0, member, values, reduce, include_self=False).tolist()

    boxes = zip(bound(rows, 'amin'), bound(columns, 'amin'), bound(rows + 1, 'amax'), bound(columns + 1, 'amax'))
    owner = (ids // 8).tolist()
    parts = Counter(owner)
    padded = (~layout.valid).any(1).tolist()
    found = [Piece(box, window, parts[window] > 1, padded[window]) for box, window in zip(boxes, owner)]
    return sorted(found)


def covered(layer: Layer, extent: Size, shift_covered_axes: bool) -> Box:
    """What the windows of a layer cover of an image with that extent: first row and column, and those behind the last.

    Where the map is rolled, window padding lies behind its end. Pooled neighbours keep it from being rolled: then the
    first window may start before the first token.
    """
    first, end = [], []
    for side, window in zip(extent, layer.window):
        moves = layer.shifted and (shift_covered_axes or window < side)
        start = -(-(window // 2) % window) if moves and layer.attention.pooled_neighbours else 0
        first.append(start)
        end.append(start + -(-(side - start) // window) * window)
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


def draw_windows(backbone: SwinRPE, images: Tensor, picture: np.ndarray) -> Figure:
    """A column for each stage, a row for regular and one for shifted windows.

    Args:
        backbone (SwinRPE): The backbone.
        images (Tensor): ``(1, C, H, W)``, with or without extents.
        picture (np.ndarray): The image's content in RGB, ``(h, w, 3)`` uint8.
    """
    batch_size = tuple(images.shape[-2:])
    extent = (get_extents(images) or (batch_size, ))[0] if backbone.mask_padding else batch_size
    layers = layers_of(backbone)
    chosen = [layer for layer in layers if layer.index < 2 and (layer.index == 0 or layer.shifted)]
    found: dict[str, WindowLayout] = {}

    def see(given: LayerInput) -> None:
        found[given.layer.name] = given.layout

    watch(backbone, images, chosen, see)
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
        layout, map_size = found[layer.name], layer.map_size(batch_size)
        cut = pieces(layout, map_size)
        kinds |= {(piece.joined, piece.padded) for piece in cut}
        box = covered(layer, layer.map_size(extent), backbone.stages[layer.stage].shift_covered_axes)
        show_picture(axis, picture)
        draw_padding(axis, layer, box, extent, batch_size)
        draw_grid(axis, cut, layer.stride, fill=True)
        if len(cut) <= _NUMBERED:
            number_pieces(axis, cut, layer.stride)
        if layer.attention.looks_beyond:
            outline(axis, *in_pixels(keys_of_middle(layer, cut, layer.map_size(extent)), layer.stride),
                    colour=COLOURS['yellow'], linewidth=1.5, linestyle='--')
        left, top, width, height = in_pixels(box, layer.stride)
        pixel_axes(axis, (min(left, 0), max(left + width, batch_size[1])),
                   (max(top + height, batch_size[0]), min(top, 0)), layer.index == rows - 1, layer.stage == 0)
        axis.set_title(describe(layer, layout), fontsize=9)
    handles = [Patch(facecolor=_KINDS[kind][0] or 'white', edgecolor='0.3', label=_KINDS[kind][1], alpha=.6)
               for kind in _KINDS if kind in kinds]
    taking_part = '' if backbone.mask_padding else ', which takes part in attention'
    handles.append(Patch(label='window padding' + taking_part, **WINDOW_PADDING))
    if extent != batch_size:
        handles.append(Patch(label='batch padding', **BATCH_PADDING))
    if any(layer.attention.looks_beyond for layer in chosen):
        handles.append(Line2D([], [], color=COLOURS['yellow'], linewidth=1.5, linestyle='--',
                              label='what one window sees, its halo or neighbours included'))
    figure.legend(handles=handles, loc='outside lower center', ncols=min(len(handles), 3), fontsize=8, frameon=False)
    return figure


def keys_of_middle(layer: Layer, found: Sequence[Piece], extent: Size) -> Box:
    """The piece in the middle of an image with all that its queries see, inside the image's extent in tokens."""
    middle = [side // 2 for side in extent]
    box, = (piece.box for piece in found
            if all(piece.box[i] <= at < piece.box[2 + i] for i, at in enumerate(middle)))
    reach = [max(-first, layer.attention.pooled_neighbours * side)
             for first, side in zip(layer.attention.geometry.origin, layer.window)]
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
    total = len(layout.slots)
    share = 100 * float((~layout.valid).double().mean())
    kind = 'shifted' if layer.shifted else 'regular'
    height, width = layer.window
    step = f'{layer.stride[0]}' if layer.stride[0] == layer.stride[1] else '×'.join(map(str, layer.stride))
    return (f'stage {layer.stage}: {kind}, {height}×{width} tokens of {step} px\n'
            f'{total} window{"s" * (total > 1)}, {total - layout.plain} masked, {share:.3g} % of slots padding')
