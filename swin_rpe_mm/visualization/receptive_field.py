"""What of an image one output depends on, and how much: the effective receptive field."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from ..models import Swin
from .layers import Size, layers_of, run
from .style import OF_STAGES, outline, pixel_axes

SHARES = (.5, .95)
_DECADES = 4  # that the colours span


class Field(NamedTuple):
    """An effective receptive field.

    Attributes:
        values (Tensor): ``(h, w)`` float64, not negative: how much the output depends on each pixel.
        centre (tuple[float, float]): The middle of the output's token, in pixels from the upper left corner.
        token (tuple[int, int]): Height and width of a token in pixels.
    """
    values: Tensor
    centre: tuple[float, float]
    token: Size


def squared_gradients(backbone: Swin, images: Tensor, probes: Sequence[Tensor],
                      extents: Sequence[Size] | None = None) -> list[Field]:
    """Squared gradients with respect to one image of one output of each stage, the one in the middle.

    Args:
        backbone (Swin): In evaluation mode.
        images (Tensor): ``(1, C, H, W)``.
        probes (Sequence[Tensor]): For each stage what the channels of the output are multiplied with, ``(C_i,)``.
        extents (Sequence[tuple[int, int]], optional): Height and width of the image's content in pixels; None for all.

    Returns:
        list[Field]: For each stage, over the image's extent: the squares, summed over the image's channels.
    """
    batch_size = tuple(images.shape[-2:])
    extent = batch_size if extents is None else extents[0]
    images = images.detach().clone().requires_grad_()
    outs: list[Tensor] = []
    # the norms of the outputs would take out what all channels have in common
    handles = [stage.register_forward_hook(lambda module, args, out: outs.append(out[0])) for stage in backbone.stages]
    try:
        with torch.enable_grad():
            run(backbone, images, [extent])
    finally:
        for handle in handles:
            handle.remove()
    fields = []
    last = [layer for layer in layers_of(backbone) if layer.index == 0]
    for layer, out, probe in zip(last, outs, probes):
        map_size, tokens = layer.map_size(batch_size), layer.map_size(extent)
        at = tuple(side // 2 for side in tokens)
        value = (out[0, at[0] * map_size[1] + at[1]] * probe).sum()
        gradient, = torch.autograd.grad(value, images, retain_graph=layer.stage < len(outs) - 1)
        squares = gradient[0, :, :extent[0], :extent[1]].double().square().sum(0)
        centre = tuple((place + .5) * step for place, step in zip(at, layer.stride))
        fields.append(Field(squares, centre, layer.stride))
    return fields


def receptive_fields(backbone: Swin, samples: Iterable[tuple[Tensor, Sequence[Size] | None]],
                     seed: int = 0) -> list[Field]:
    """The effective receptive field of each stage (arXiv 1701.04128), averaged over images.

    There the gradient of the sum of an output's channels is taken. In a model of layer norms that sum hardly depends on
    anything, so here channels get random signs: the mean of the squares is that of the Jacobian's entries, whatever the
    signs (Hutchinson's estimator). What is returned is its root.

    Args:
        backbone (Swin): In evaluation mode.
        samples (Iterable): Batches of one image with their extents as for :func:`squared_gradients`, of any sizes:
            fields are laid over each other at their centres and cut to what all have.
        seed (int): Of the signs.

    Returns:
        list[Field]: One for each stage.
    """
    generator = torch.Generator().manual_seed(seed)
    total: list[Field] = []
    count = 0
    for images, extents in samples:
        probes = [(torch.randint(0, 2, (channels, ), generator=generator) * 2 - 1).to(images.dtype)
                  for channels in backbone.config.num_features[:len(backbone.stages)]]
        fields = squared_gradients(backbone, images, probes, extents)
        total = [_added(*pair) for pair in zip(total, fields)] if total else fields
        count += 1
    return [field._replace(values=(field.values / count).sqrt()) for field in total]


def _added(one: Field, two: Field) -> Field:
    """The sum of two fields, laid over each other at their centres."""
    first = [min(a, b) for a, b in zip(one.centre, two.centre)]
    behind = [min(side_a - a, side_b - b) for a, b, side_a, side_b in
              zip(one.centre, two.centre, one.values.shape, two.values.shape)]
    values = 0.
    for field in (one, two):
        top, left = (int(a - b) for a, b in zip(field.centre, first))
        bottom, right = (int(a + b) for a, b in zip(field.centre, behind))
        values = values + field.values[top:bottom, left:right]
    return Field(values, tuple(first), one.token)


def shares_by_side(field: Field) -> tuple[Tensor, Tensor]:
    """How much of a field lies within squares around its centre.

    Returns:
        tuple[Tensor, Tensor]: Sides in pixels, and the share of the sum of all values in each, both float64.
    """
    away = [(torch.arange(side, dtype=torch.float64) + .5 - centre).abs()
            for side, centre in zip(field.values.shape, field.centre)]
    sides = 2 * torch.maximum(away[0][:, None], away[1][None]) + 1
    steps, place = sides.unique(return_inverse=True)
    sums = torch.zeros_like(steps).index_add_(0, place.flatten(), field.values.flatten())
    return steps, sums.cumsum(0) / sums.sum()


def side_of_share(field: Field, share: float) -> float:
    """The side in pixels of the smallest square around the centre that holds a share of a field."""
    sides, shares = shares_by_side(field)
    return float(sides[min(int((shares < share).sum()), len(sides) - 1)])


def draw_fields(fields: Sequence[Field], windows: Sequence[Size]) -> Figure:
    """A map for each stage, and the share of the field within squares of all sides.

    Args:
        fields (Sequence[Field]): What :func:`receptive_fields` gave.
        windows (Sequence[tuple[int, int]]): Each stage's window in tokens.
    """
    shape = fields[0].values.shape
    across = 2.5
    tall = across * max(.6, min(1.6, shape[0] / shape[1]))
    figure = Figure(figsize=(across * len(fields) + 4.2, tall + 1.5), layout='constrained')
    *maps, curve = figure.subplots(1, len(fields) + 1, width_ratios=[1] * len(fields) + [1.2])
    for stage, (axis, field, window) in enumerate(zip(maps, fields, windows)):
        height, width = field.values.shape
        y, x = field.centre
        values = (field.values / field.values.max()).clamp(min=10.**-_DECADES).numpy()
        drawn = axis.imshow(values, extent=(-x, width - x, height - y, -y), cmap='magma', interpolation='nearest',
                            norm=LogNorm(10.**-_DECADES, 1))
        down, right = (side * step for side, step in zip(window, field.token))
        outline(axis, -right / 2, -down / 2, right, down, linewidth=.9)
        sides = [side_of_share(field, share) for share in SHARES]
        for side, dashes in zip(sides, ('-', '--')):
            axis.add_patch(Rectangle((-side / 2, -side / 2), side, side, fill=False, edgecolor='#56B4E9',
                                     linewidth=1.3, linestyle=dashes))
        pixel_axes(axis, (-x, width - x), (height - y, -y), False, False)
        axis.set_xlabel('x − centre (px)', fontsize=8)
        if stage == 0:
            axis.set_ylabel('y − centre (px)', fontsize=8)
        axis.set_title(f'stage {stage}\n' + ', '.join(
            f'{100 * share:.0f} % in {side:.0f} px' for share, side in zip(SHARES, sides)), fontsize=8)
        curve.plot(*(part.numpy() for part in shares_by_side(field)), color=OF_STAGES[stage % len(OF_STAGES)],
                   linestyle=('-', '--', '-.', ':')[stage % 4], label=f'stage {stage}')
    bar = figure.colorbar(drawn, ax=maps, location='bottom', fraction=.06, pad=.03, aspect=50)
    bar.set_label('gradient, share of its maximum', fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    for share in SHARES:
        curve.axhline(share, color='0.7', linewidth=.8, zorder=0)
    curve.set_xscale('log', base=2)
    curve.xaxis.set_major_formatter(lambda value, _: f'{value:g}')
    curve.set_xlabel('side of a square around the centre (px)', fontsize=8)
    curve.set_ylabel('share of the gradient inside', fontsize=8)
    curve.set_ylim(0, 1.02)
    curve.tick_params(labelsize=7, length=2)
    curve.grid(alpha=.3)
    curve.legend(fontsize=8)
    return figure
