"""How far each head of each layer looks."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from ..models import Swin
from ..rpe import offsets
from .layers import Layer, LayerInput, Size, watch
from .statistics import mean_distance
from .style import OF_STAGES


class Distance(NamedTuple):
    """Mean distance of keys from their query.

    Attributes:
        tokens, pixels (Tensor): Weighted by attention, ``(heads,)``.
        even_tokens, even_pixels (float): With equal weights for all keys that a query sees.
    """
    tokens: Tensor
    pixels: Tensor
    even_tokens: float
    even_pixels: float


def attention_distance(given: LayerInput) -> Distance:
    """Mean attention distance (arXiv 2010.11929, section 4.5) of a layer over all queries of the images.

    A pooled neighbour lies at the centre of its window. Window padding that takes part lies where it stands.

    Args:
        given (LayerInput): What comes into the layer.
    """
    attention = given.layer.attention
    apart = offsets(given.layout.geometry)
    if attention.pooled_neighbours:
        others = offsets(attention.pooled_geometry)
        centre = others.shape[-1] // 2  # the window itself, whose keys are there one by one
        apart = torch.cat([apart, others[..., :centre], others[..., centre + 1:]], dim=-1)
    units = torch.ones(2, 1, 1), torch.tensor(given.layer.stride)[:, None, None]
    sums, queries = [0., 0., 0., 0.], 0
    for _, logits in given.parts():
        count = int(logits.queries.sum())
        even = logits.visible.double()
        even = even / even.sum(-1, keepdim=True)
        for i, weights in enumerate((logits.weights, even[:, None])):
            for j, unit in enumerate(units):
                sums[2 * i + j] += count * mean_distance(weights.double(), apart * unit, logits.queries)
        queries += count
    tokens, pixels, even_tokens, even_pixels = (total / queries for total in sums)
    return Distance(tokens, pixels, float(even_tokens), float(even_pixels))


def draw_distance(backbone: Swin, images: Tensor, layers: Sequence[Layer],
                  extents: Sequence[Size] | None = None) -> Figure:
    """A point for each head over the layers, in pixels and in tokens; all heads of the layers given.

    Args:
        backbone (Swin): The backbone.
        images (Tensor): ``(1, C, H, W)``.
        layers (Sequence[Layer]): The layers.
        extents (Sequence[tuple[int, int]], optional): Height and width of the image's content in pixels; None for all.
    """
    found: list[Distance] = []
    watch(backbone, images, layers, lambda given: found.append(attention_distance(given)), extents)
    figure = Figure(figsize=(max(8., .42 * len(layers) + 3) + 1.5, 3.8), layout='constrained')
    for axis, unit in zip(figure.subplots(1, 2), ('pixels', 'tokens')):
        for place, (layer, distance) in enumerate(zip(layers, found)):
            values = getattr(distance, unit)
            spread = torch.linspace(-.22, .22, len(values)) if len(values) > 1 else torch.zeros(1)
            axis.plot(place + spread, values, linestyle='none', marker='^' if layer.shifted else 'o', markersize=5,
                      color=OF_STAGES[layer.stage % len(OF_STAGES)], markeredgecolor='black', markeredgewidth=.4,
                      alpha=.85)
            even = getattr(distance, f'even_{unit}')
            axis.plot([place - .36, place + .36], [even, even], color='0.35', linewidth=1.4)
        axis.set_xticks(range(len(layers)), [layer.name for layer in layers], fontsize=8,
                        rotation=90 if len(layers) > 14 else 0)
        axis.set_xlim(-.6, len(layers) - .4)
        axis.set_ylim(bottom=0)
        axis.grid(axis='y', alpha=.3)
        axis.tick_params(labelsize=8, length=2)
        axis.set_xlabel('layer (stage.block)', fontsize=9)
        axis.set_ylabel(f'mean attention distance ({unit})', fontsize=9)
    handles = [Line2D([], [], linestyle='none', marker='o', color='0.6', markeredgecolor='black', markersize=5,
                      label='a head, regular windows')]
    if any(layer.shifted for layer in layers):
        handles.append(Line2D([], [], linestyle='none', marker='^', color='0.6', markeredgecolor='black', markersize=5,
                              label='a head, shifted windows'))
    handles.append(Line2D([], [], color='0.35', linewidth=1.4, label='equal weights for all keys that are seen'))
    for stage in sorted({layer.stage for layer in layers}):
        handles.append(Line2D([], [], linestyle='none', marker='s', color=OF_STAGES[stage % len(OF_STAGES)],
                              label=f'stage {stage}'))
    figure.legend(handles=handles, loc='outside lower center', ncols=4, fontsize=8, frameon=False)
    return figure
