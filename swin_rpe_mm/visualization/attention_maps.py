"""Where one point of an image looks: its attention over its window and the windows around it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..errors import InputError
from ..models import Swin
from .layers import Layer, LayerInput, Size, extents_of, watch
from .strips import name_axes, scale, strips
from .style import COLOURS, outline, pixel_axes, show_picture
from .window_grid import Box, Piece, covered, draw_grid, draw_padding, in_pixels, pieces
from .window_logits import held_tokens, key_tokens


class PointAttention(NamedTuple):
    """Attention of one token.

    Attributes:
        weights (Tensor): What each token of the map gets from each head, ``(heads, H, W)``. A pooled neighbour's weight
            is spread over the tokens it is the mean of, as it is over their values.
        padding (Tensor): What window padding gets from each head, ``(heads,)``; with ``weights`` it adds up to 1.
        seen (Tensor): ``(H, W)`` bool, which tokens are its keys, pooled ones too.
        token (tuple[int, int]): Its row and column.
    """
    weights: Tensor
    padding: Tensor
    seen: Tensor
    token: Size


def point_attention(given: LayerInput, map_size: Size, token: Size) -> PointAttention:
    """Attention of a token of the first image.

    Args:
        given (LayerInput): What comes into the layer.
        map_size (tuple[int, int]): Height and width of the maps in tokens.
        token (tuple[int, int]): Row and column; inside the image's extent.
    """
    layout, tokens = given.layout, map_size[0] * map_size[1]
    window, query = divmod(int(layout.rows_back[token[0] * map_size[1] + token[1]]), layout.region.shape[1])
    logits = given.logits(torch.tensor([window], device=layout.region.device))
    weights, visible = logits.weights[0, :, query], logits.visible[0, query]

    keys = key_tokens(layout)[window]
    own, real = len(keys), keys < len(layout.rows_back)
    spread = weights.new_zeros(len(weights), tokens)
    seen = torch.zeros(tokens, dtype=torch.bool, device=weights.device)
    spread.index_add_(1, keys[real], weights[:, :own][:, real])
    seen[keys[real & visible[:own]]] = True
    padding = weights[:, :own][:, ~real].sum(1)
    neighbours = [] if layout.neighbours is None else layout.neighbours[window].tolist()
    for place, neighbour in enumerate(neighbours, own):
        if not visible[place]:
            continue
        held = held_tokens(layout)[neighbour]
        pooled, count = layout.rows.view_as(layout.region)[neighbour][held], int((layout.region[neighbour] >= 0).sum())
        share = weights[:, place] / count
        spread.index_add_(1, pooled, share[:, None].expand(-1, len(pooled)))
        seen[pooled] = True
        padding = padding + share * (count - len(pooled))
    return PointAttention(spread.unflatten(1, map_size), padding, seen.view(map_size), token)


class Seen(NamedTuple):
    """What is drawn of a layer."""
    attention: PointAttention
    cut: list[Piece]
    covers: Box
    zoom: Box


def draw_attention(backbone: Swin, images: Tensor, picture: np.ndarray, point: Size, layers: Sequence[Layer],
                   heads: dict[str, list[int]], extents: Sequence[Size] | None = None) -> Figure:
    """A strip for each layer: the image, the mean of all heads, and some heads.

    Args:
        backbone (Swin): The backbone.
        images (Tensor): ``(1, C, H, W)``.
        picture (np.ndarray): The image's content in RGB, ``(h, w, 3)`` uint8.
        point (tuple[int, int]): Row and column in pixels of ``picture``.
        layers (Sequence[Layer]): The layers.
        heads (dict[str, list[int]]): The heads to draw of each.
        extents (Sequence[tuple[int, int]], optional): Height and width of the image's content in pixels; None for all.

    Raises:
        InputError: If the point lies outside the picture.
    """
    height, width = picture.shape[:2]
    if not (0 <= point[0] < height and 0 <= point[1] < width):
        raise InputError(f'--point must lie inside the image, which is {height}x{width} px (height x width) as the '
                         f'model gets it, got {point[0]} {point[1]} there')
    batch_size = tuple(images.shape[-2:])
    extent = extents_of(backbone, images, extents)[0]
    seen: dict[str, Seen] = {}

    def see(given: LayerInput) -> None:
        layer = given.layer
        map_size = layer.map_size(batch_size)
        token = tuple(at // step for at, step in zip(point, layer.stride))
        attention = point_attention(given, map_size, token)
        covers = covered(layer.windows, layer.map_size(extent))
        zoom = _zoom(attention, layer, covers, layer.map_size(extent))
        seen[layer.name] = Seen(attention, pieces(given.layout, map_size), covers, zoom)

    watch(backbone, images, layers, see, extents)
    # with grey of little contrast below, colours keep their order of lightness
    grey = 90 + (picture.astype(float) @ [.299, .587, .114]) * .6
    shape = min(max(batch_size[0] / batch_size[1], .5), 1.6)
    # the mean of one head is that head
    means = [layer.attention.num_heads > 1 for layer in layers]
    figure, made = strips([1 + mean + len(heads[layer.name]) for mean, layer in zip(means, layers)],
                          [shape] * len(layers), [f'{layer.title}, tokens of {_pixels(layer.stride)}'
                                                  for layer in layers], width=1.75)
    for layer, mean, strip in zip(layers, means, made):
        found = seen[layer.name]
        weights, padding = 100 * found.attention.weights, 100 * found.attention.padding
        maps = [('mean of heads', weights.mean(0), padding.mean())] if mean else []
        maps += [(f'head {head}', weights[head], padding[head]) for head in heads[layer.name]]
        highest = max(float(values.max()) for _, values, _ in maps)

        overview, *panels = strip.panels
        show_picture(overview, picture)
        draw_padding(overview, layer, found.covers, extent, batch_size)
        if not _covers(found.zoom, layer.map_size(extent)):
            _frame(overview, found.zoom, layer.stride, linewidth=1.6)
        _mark(overview, point)
        overview.set_title('the image', fontsize=8)
        pixel_axes(overview, (0, batch_size[1]), (batch_size[0], 0), False, False)
        for axis, (title, values, lost) in zip(panels, maps):
            drawn = _draw_heat(axis, grey, values, found, layer, extent, batch_size, highest)
            _mark(axis, point)
            axis.set_title(title + (f', {float(lost):.0f} % on padding' if lost >= .5 else ''), fontsize=8)
            left, top, across, down = in_pixels(found.zoom, layer.stride)
            pixel_axes(axis, (left, left + across), (top + down, top), False, False)
            axis.locator_params(nbins=4)
        scale(strip, drawn, 'attention per token (%)')
    name_axes(figure, 'x (px)', 'y (px)')
    return figure


def _draw_heat(axis: Axes, grey: np.ndarray, values: Tensor, found: Seen, layer: Layer, extent: Size,
               batch_size: Size, highest: float):
    show_picture(axis, grey, cmap='gray', vmin=0, vmax=255)
    rows, columns = values.shape
    drawn = axis.imshow(
        np.ma.array(values.numpy(), mask=~found.attention.seen.numpy()),
        extent=(0, columns * layer.stride[1], rows * layer.stride[0], 0), cmap='viridis', vmin=0, vmax=highest or 1.,
        alpha=.78, interpolation='nearest')
    draw_padding(axis, layer, found.covers, extent, batch_size)
    draw_grid(axis, found.cut, layer.stride)
    own, = (piece for piece in found.cut if _holds(piece.box, found.attention.token))
    _frame(axis, own.box, layer.stride, linewidth=1.6)
    return drawn


def _holds(box: Box, token: Size) -> bool:
    return box[0] <= token[0] < box[2] and box[1] <= token[1] < box[3]


def _zoom(attention: PointAttention, layer: Layer, covers: Box, extent: Size) -> Box:
    """The window of the token with one window more on each side, and whatever else it sees; of padding only a rim."""
    lows, highs, sides = [], [], layer.windows.geometry(extent).query_size
    for axis, places in enumerate(attention.seen.nonzero().T):
        window, rim = sides[axis], max(1, extent[axis] // 8)
        low = min(int(places.min()) - 1, attention.token[axis] - window)
        high = max(int(places.max()) + 2, attention.token[axis] + window + 1)
        lows.append(max(low, covers[axis], -rim))
        highs.append(min(high, covers[2 + axis], extent[axis] + rim))
    return (*lows, *highs)


def _covers(box: Box, size: Size) -> bool:
    return box[0] <= 0 and box[1] <= 0 and box[2] >= size[0] and box[3] >= size[1]


def _pixels(stride: Size) -> str:
    return f'{stride[0]} px' if stride[0] == stride[1] else f'{stride[0]}×{stride[1]} px'


def _frame(axis: Axes, box: Box, stride: Size, **line) -> None:
    outline(axis, *in_pixels(box, stride), colour=COLOURS['yellow'], **line)


def _mark(axis: Axes, point: Size) -> None:
    axis.plot(point[1] + .5, point[0] + .5, marker='*', markersize=7, color=COLOURS['red'], markeredgecolor='white',
              markeredgewidth=.7)
