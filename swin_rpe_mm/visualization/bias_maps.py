"""What a position encoding adds to the logits at every offset."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor, nn

from ..models import Swin
from ..rpe import RelativePositionEncoding, SumRPE, offsets
from ..rpe.offsets import joint_index, offset_range
from ..windows import WindowGeometry
from .layers import Layer, LayerInput, Size, watch
from .strips import name_axes, scale, strips
from .style import COLOURS
from .window_logits import key_tokens

EXACT, PLACES, PAIRS, NONE = 'bias', 'mean over places', 'mean over pairs', 'none'
KINDS = {
    EXACT: 'A map shows the bias itself.',
    PLACES: 'Where it says "mean over places", the bias depends on the query\'s place in the window too, and a map '
            'shows its mean over all places.',
    PAIRS: 'Where it says "mean over pairs", the encoding has no bias of its own, or one that depends on the content: '
           'a map shows by how much it changes the logit, as the mean over all queries and keys of this image at that '
           'offset.',
    NONE: 'A layer without a map has no encoding that changes its logits.'
}


class BiasMap(NamedTuple):
    """What is added to the logits at every offset.

    Attributes:
        values (Tensor, optional): ``(heads, rows, columns)`` float64; the query is in the middle, the key at the place
            of the entry. NaN where the image has no such pair. None if the encoding leaves the logits as they are.
        kind (str): A key of ``KINDS``.
    """
    values: Tensor | None
    kind: str


def bias_map(given: LayerInput) -> BiasMap:
    """The map of a layer.

    An encoding that changes queries and keys has no bias, one that looks at them has none of its own. What both do to
    a logit is the logit with the encoding less the product of query and key without it; its mean over the pairs of the
    image, window padding left out, is what they have instead.

    Args:
        given (LayerInput): What comes into the layer.
    """
    rpe, geometry = given.layer.attention.rpe, given.layout.geometry
    if rpe is None or not any(rpe.gives(method) for method in ('bias', 'rotate', 'scores')):
        return BiasMap(None, NONE)
    if rpe.gives_bias_alone:
        bias = rpe.bias(geometry).detach().double()
        values = mean_by_offset(bias, torch.ones(bias.shape[1:], dtype=bias.dtype), geometry)
        index = _places(geometry)
        spread = (bias.flatten(1) - values.flatten(1)[:, index.flatten()]).abs().max()
        return BiasMap(values, PLACES if spread > 1e-5 * (1 + bias.abs().max()) else EXACT)
    return BiasMap(mean_by_offset(*_changes(given, rpe), geometry, summed=True), PAIRS)


def _changes(given: LayerInput, rpe: RelativePositionEncoding) -> tuple[Tensor, Tensor]:
    """Sum of the changes of the logits over windows, ``(heads, Nq, Nk)``, and their number ``(Nq, Nk)``, float64."""
    came = []
    handle = rpe.register_forward_hook(lambda module, args, out: came.append(args[:2]))
    total = pairs = 0.
    try:
        for windows, logits in given.parts():
            q, k = (x.to(logits.content.dtype) for x in came.pop())
            keys = k.shape[2]  # those of pooled neighbours come behind
            change = logits.content[..., :keys] - q @ k.transpose(-2, -1)
            if logits.bias is not None:
                change = change + logits.bias[..., :keys]
            real = key_tokens(given.layout)[windows] < len(given.layout.rows_back)
            counted = logits.visible[..., :keys] & logits.queries[..., None] & real[:, None]
            total = total + torch.where(counted[:, None], change, 0).double().sum(0)
            pairs = pairs + counted.double().sum(0)
    finally:
        handle.remove()
    return total, pairs


def _places(geometry: WindowGeometry) -> Tensor:
    """The entry of each pair in a map around the query, ``(Nq, Nk)`` long."""
    lows, highs = zip(*offset_range(geometry))
    back = torch.tensor(highs)[:, None, None] - offsets(geometry)  # key minus query, from 0
    return joint_index(back, tuple(high - low + 1 for low, high in zip(lows, highs)))


def mean_by_offset(values: Tensor, weights: Tensor, geometry: WindowGeometry, summed: bool = False) -> Tensor:
    """Mean over all pairs of slots that have the same offset, as a map around the query.

    Args:
        values (Tensor): ``(heads, Nq, Nk)`` float64; sums already if ``summed``.
        weights (Tensor): How often each pair counts, ``(Nq, Nk)`` float64.
        geometry (WindowGeometry): Where queries and keys lie, along two axes.
        summed (bool): Whether ``values`` were multiplied with ``weights``.

    Returns:
        Tensor: ``(heads, rows, columns)``, NaN where no pair counts.
    """
    sides = tuple(high - low + 1 for low, high in offset_range(geometry))
    index = _places(geometry).flatten()
    total = values if summed else values * weights
    sums = total.new_zeros(len(values), sides[0] * sides[1]).index_add_(1, index, total.flatten(1))
    count = total.new_zeros(sides[0] * sides[1]).index_add_(0, index, weights.flatten())
    return (sums / count).unflatten(1, sides)


def draw_around_query(axis: Axes, values: np.ndarray, title: str = '', label: str = '', **colours) -> AxesImage:
    """One map ``(rows, columns)`` of the keys around a query in the middle, a cell each."""
    down, right = (side // 2 for side in values.shape)
    image = axis.imshow(values, extent=(-right - .5, right + .5, down + .5, -down - .5), **colours)
    axis.plot(0, 0, 'o', markersize=3, color='white', markeredgecolor=COLOURS['query'])
    axis.set_title(title, fontsize=9)
    axis.set_ylabel(label, fontsize=9)
    axis.set_xticks([-right, 0, right])
    axis.set_yticks([-down, 0, down])
    axis.tick_params(labelsize=7, length=2)
    return image


def encoding_name(rpe: nn.Module | None) -> str:
    """Its type, or the types of those that are added."""
    if isinstance(rpe, SumRPE):
        return ' + '.join(encoding_name(part) for part in rpe.encodings)
    return 'no encoding' if rpe is None else type(rpe).__name__


def draw_bias(backbone: Swin, images: Tensor, layers: Sequence[Layer], heads: dict[str, list[int]],
              extents: Sequence[Size] | None = None) -> tuple[Figure, list[str]]:
    """A strip of maps for each layer, and the sentences that belong to them.

    Args:
        backbone (Swin): The backbone.
        images (Tensor): ``(1, C, H, W)``, for encodings that look at queries and keys.
        layers (Sequence[Layer]): The layers.
        heads (dict[str, list[int]]): The heads to draw of each.
        extents (Sequence[tuple[int, int]], optional): Height and width of the image's content in pixels; None for all.
    """
    maps: dict[str, BiasMap] = {}

    def see(given: LayerInput) -> None:
        maps[given.layer.name] = bias_map(given)

    watch(backbone, images, layers, see, extents)
    notes = [f' ({maps[layer.name].kind})' * (maps[layer.name].kind in (PLACES, PAIRS)) for layer in layers]
    headings = [f'{layer.title}, {encoding_name(layer.attention.rpe)}{note}' for layer, note in zip(layers, notes)]
    figure, made = strips([len(heads[layer.name]) for layer in layers],
                          [_shape(maps[layer.name]) for layer in layers], headings, width=1.35)
    for layer, strip in zip(layers, made):
        values = maps[layer.name].values
        if values is None:
            for axis in (*strip.panels, strip.bar):
                axis.set_axis_off()
            strip.panels[0].text(0, .5, 'nothing is added to the logits', fontsize=8, va='center')
            continue
        # softmax does not see a constant; what is left of the heads is compared within the layer
        shown = values[heads[layer.name]]
        shown = shown - shown.nanmean((1, 2), keepdim=True)
        limit = float(shown.nan_to_num().abs().max()) or 1.
        for axis, head, values in zip(strip.panels, heads[layer.name], shown):
            axis.set_facecolor('0.85')
            image = draw_around_query(axis, values.numpy(), f'head {head}', cmap='RdBu_r', vmin=-limit, vmax=limit)
            axis.title.set_size(8)
        scale(strip, image, 'logit')
    name_axes(figure, "key's column − query's column (tokens)", "key's row − query's row (tokens)")
    return figure, [sentence for kind, sentence in KINDS.items() if any(m.kind == kind for m in maps.values())]


def _shape(found: BiasMap) -> float:
    if found.values is None:
        return 1.
    return found.values.shape[1] / found.values.shape[2]
