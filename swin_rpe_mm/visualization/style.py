"""What all pictures have in common: colours, outlines, axes in pixels, and how they are written."""
from __future__ import annotations

from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..whole_files import WholeFileBackend

# Okabe and Ito's, which differ for all kinds of colour vision
COLOURS = dict(blue='#0072B2', orange='#E69F00', green='#009E73', red='#D55E00', purple='#CC79A7', sky='#56B4E9',
               yellow='#F0E442', query='#d62728')
OF_STAGES = ('#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00')
WINDOW_PADDING = dict(facecolor='0.93', hatch='////', edgecolor='0.6')
BATCH_PADDING = dict(facecolor='0.8', hatch='....', edgecolor='0.55')


def outline(axis: Axes, left: float, top: float, width: float, height: float, colour: str = 'white',
            linewidth: float = .9, **line) -> None:
    """A rectangle whose line is seen on light and on dark ground."""
    edge = [patheffects.Stroke(linewidth=linewidth + 1, foreground='black'), patheffects.Normal()]
    axis.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=colour, linewidth=linewidth,
                             path_effects=edge, **line))


def show_picture(axis: Axes, picture: np.ndarray, **image) -> None:
    """A picture ``(h, w, 3)`` or ``(h, w)`` with its corner at (0, 0), one unit per pixel."""
    height, width = picture.shape[:2]
    axis.imshow(picture, extent=(0, width, height, 0), interpolation='nearest', **image)


def pixel_axes(axis: Axes, x: tuple[float, float], y: tuple[float, float], named_x: bool, named_y: bool) -> None:
    """Limits in pixels, few ticks, and their unit where it is asked for."""
    axis.set_xlim(*x)
    axis.set_ylim(*y)
    axis.tick_params(labelsize=7, length=2)
    axis.locator_params(nbins=5)
    if named_x:
        axis.set_xlabel('x (px)', fontsize=8)
    if named_y:
        axis.set_ylabel('y (px)', fontsize=8)


def write_figure(figure: Figure, folder: Path, name: str, title: str = '', dpi: int = 130) -> list[Path]:
    """Write a figure as PNG and as SVG, each whole or not at all, the same bytes for the same figure.

    Args:
        figure (Figure): The figure.
        folder (Path): Where to; it is made if need be.
        name (str): The files' name without their suffix.
        title (str): What stands above the figure.
        dpi (int): Pixels per inch of the PNG.

    Returns:
        list[Path]: The PNG and the SVG.
    """
    if title:
        figure.suptitle(title, fontsize=10)
    # text stays text in the SVG, and its ids do not change from run to run
    with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': name, 'hatch.linewidth': .6}):
        paths = []
        for kind, metadata in (('png', {}), ('svg', dict(Date=None))):
            path = folder / f'{name}.{kind}'
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
            WholeFileBackend().put(buffer.getvalue(), path)
            paths.append(path)
    return paths
