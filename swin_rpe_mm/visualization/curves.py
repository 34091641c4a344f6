"""Curves of what trainings logged."""
from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from .style import COLOURS

_CYCLE = [COLOURS[name] for name in ('blue', 'orange', 'green', 'red', 'purple', 'sky')] + ['black']
_STYLES = ('-', '--', ':', '-.')
_COLUMNS = 3


class Curve(NamedTuple):
    """A figure in the course of a run.

    Attributes:
        name (str): For the legend.
        x, y (Sequence[float]): Iterations and values.
        place (int): Which colour it has; curves of one run have the same in every panel.
        low, high (Sequence[float], optional): A band around the values.
    """
    name: str
    x: Sequence[float]
    y: Sequence[float]
    place: int = 0
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


class Look(NamedTuple):
    """How figures whose names match a pattern are shown.

    Attributes:
        pattern (str): As of :mod:`fnmatch`.
        title (str): What they are.
        unit (str): Label of the y axis.
        log (bool): Whether the y axis is logarithmic, where all values are positive.
        exact (bool): Whether there is no noise in them to smooth.
        share (bool): Whether the y axis goes from 0 to 1.
    """
    pattern: str
    title: str
    unit: str
    log: bool = False
    exact: bool = False
    share: bool = False


class Panel(NamedTuple):
    """Curves in one frame.

    Attributes:
        title (str): What they are.
        look (Look): How they are shown.
        curves (list[Curve]): The curves.
        measured (bool): Whether every value is a measurement of its own, such as a validation, and gets a marker.
        layers (bool): Whether the curves are layers from the first to the last.
    """
    title: str
    look: Look
    curves: list[Curve]
    measured: bool = False
    layers: bool = False


# the first that matches counts
LOOKS = [
    Look('rpe/*/ratio', 'bias over content', 'ratio of standard deviations', log=True),
    Look('rpe/*/content_mean', 'mean of the logits without bias', 'logit'),
    Look('rpe/*/content_std', 'spread of the logits without bias', 'standard deviation (logit)', log=True),
    Look('rpe/*/content_max', 'largest logit without bias', 'magnitude (logit)', log=True),
    Look('rpe/*/bias_mean', 'mean of the bias', 'logit'),
    Look('rpe/*/bias_std', 'spread of the bias', 'standard deviation (logit)', log=True),
    Look('rpe/*/bias_max', 'largest bias', 'magnitude (logit)', log=True),
    Look('rpe/*/entropy', 'entropy of attention', 'share of the largest possible'),
    Look('rpe/*/saturated', 'saturated sigmoids', 'share', share=True),
    Look('rpe/*/clamped', 'temperatures at their limit', 'share of heads', share=True),
    Look('rpe/*/bias_grad_norm', 'gradient of the encoding', 'norm', log=True),
    Look('*loss*', 'losses', 'loss'),
    Look('*lr', 'learning rate', 'learning rate', exact=True),
    Look('grad_norm', 'gradient of all parameters', 'norm', log=True),
    Look('*AP*', 'average precision', 'AP (0 to 1)'),
    Look('*IoU*', 'intersection over union', 'IoU (%)'),
    Look('*[aA]cc*', 'accuracy', 'accuracy (%)'),
    Look('*time', 'time', 'seconds per iteration'),
    Look('memory', 'memory', 'MB'),
]


def look_of(key: str) -> Look:
    """How a figure of this name is shown."""
    return next((look for look in LOOKS if fnmatch(key, look.pattern)), Look(key, key, 'value'))


def layer_of(key: str) -> str | None:
    """The layer of a monitor's figure ``rpe/LAYER/NAME``, or None for other figures."""
    parts = key.split('/')
    return '/'.join(parts[1:-1]) if parts[0] == 'rpe' and len(parts) > 2 else None


def smoothed(values: Sequence[float], width: int) -> np.ndarray:
    """Mean of the ``width`` values around each, fewer at the ends: as many before it as behind it."""
    values = np.asarray(values, float)
    reach = [min(index, len(values) - 1 - index, (width - 1) // 2) for index in range(len(values))]
    return np.array([values[i - r:i + r + 1].mean() for i, r in enumerate(reach)])


def draw_curves(panels: Sequence[Panel], smooth: int = 1, runs: Sequence[str] = ()) -> Figure:
    """A figure with a frame for each panel.

    Args:
        panels (Sequence[Panel]): The panels, at least one.
        smooth (int): Curves are means over this many values, with the values themselves as a thin line. Measurements
            and what is exact are drawn as they are.
        runs (Sequence[str]): Names for one legend of all panels, whose curves have the places 0, 1, ...; without them,
            each panel has its own.
    """
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.4 * columns + 0.6, 2.9 * rows + 0.3), layout='constrained')
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for axis, panel in zip(axes, panels):
        _draw_panel(axis, panel, smooth)
        if len(panel.curves) > 1 and not panel.layers and not runs:
            outside = dict(loc='upper left', bbox_to_anchor=(1, 1)) if len(panel.curves) > 8 else dict(loc='best')
            axis.legend(fontsize=7, framealpha=.8, **outside)
    for axis in axes[len(panels):]:
        axis.set_axis_off()
    if runs:
        lines = [Line2D([], [], **_line(place), label=name) for place, name in enumerate(runs)]
        figure.legend(handles=lines, loc='outside upper center', ncols=min(len(runs), 2 * columns), fontsize=9,
                      frameon=False)
    of_layers = [(axis, panel) for axis, panel in zip(axes, panels) if panel.layers]
    if of_layers:
        longest = max((panel for _, panel in of_layers), key=lambda panel: len(panel.curves))
        _bar_of_layers(figure, [axis for axis, _ in of_layers], [curve.name for curve in longest.curves])
    return figure


def _line(place: int) -> dict:
    return dict(color=_CYCLE[place % len(_CYCLE)], linestyle=_STYLES[place // len(_CYCLE) % len(_STYLES)])


def _draw_panel(axis: Axes, panel: Panel, smooth: int) -> None:
    for index, curve in enumerate(panel.curves):
        line = dict(color=_of_depth(index, len(panel.curves))) if panel.layers else _line(curve.place)
        marker = dict(marker='o', markersize=3.5) if panel.measured or len(curve.x) == 1 else {}
        values = curve.y
        if smooth > 1 and not panel.measured and not panel.look.exact:
            axis.plot(curve.x, values, linewidth=.7, alpha=.3, **line)
            values = smoothed(values, smooth)
        axis.plot(curve.x, values, linewidth=1.4, label=curve.name, **line, **marker)
        if panel.measured:
            axis.annotate(f'{values[-1]:.3g}', (curve.x[-1], values[-1]), (0, 5), textcoords='offset points',
                          ha='center', fontsize=7, color=line['color'])
        if curve.low is not None:
            axis.fill_between(curve.x, curve.low, curve.high, color=line['color'], alpha=.15, linewidth=0)
    finite = [y for curve in panel.curves for y in curve.y if math.isfinite(y)]
    if panel.look.log and finite and min(finite) > 0:
        axis.set_yscale('log')
    else:
        axis.ticklabel_format(axis='y', scilimits=(-2, 4))
    axis.margins(y=.12 if panel.measured else .05)
    if panel.look.share:
        axis.set_ylim(-.04, 1.04)
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel('iteration', fontsize=8)
    axis.set_ylabel(panel.look.unit, fontsize=8)
    axis.xaxis.set_major_formatter(EngFormatter(sep=''))
    axis.tick_params(labelsize=8, labelbottom=True)
    axis.yaxis.get_offset_text().set_fontsize(8)
    axis.grid(alpha=.25, linewidth=.6)


def _of_depth(index: int, count: int):
    return colormaps['viridis'](0.95 * index / max(count - 1, 1))  # its last colours are too light for lines


def _bar_of_layers(figure: Figure, axes: Sequence[Axes], names: Sequence[str]) -> None:
    colours = ListedColormap([_of_depth(index, len(names)) for index in range(len(names))])
    scale = ScalarMappable(BoundaryNorm(np.arange(len(names) + 1) - .5, len(names)), colours)
    bar = figure.colorbar(scale, ax=list(axes), ticks=range(len(names)), aspect=40, pad=.01)
    bar.ax.set_yticklabels(names, fontsize=7)
    bar.ax.invert_yaxis()
    bar.ax.set_title('layer', fontsize=8)
    bar.ax.tick_params(length=0)
