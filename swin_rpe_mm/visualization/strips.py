"""A figure of strips: rows of equal panels with a heading and one scale of colours, packed side by side into lines."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

# inches
_LEFT, _RIGHT, _TOP, _BOTTOM = .6, .15, .55, .5
_GAP, _HEADING, _TICKS = .32, .55, .3
_BAR, _BAR_ROOM = .1, .8
_WIDEST = 19.
_LETTER = .088  # of a heading


class Strip(NamedTuple):
    """The axes of one strip: its panels, and that of its colours."""
    panels: list[Axes]
    bar: Axes


def strips(panels: Sequence[int], shapes: Sequence[float], headings: Sequence[str], width: float) -> tuple[Figure,
                                                                                                           list[Strip]]:
    """A figure with axes for each strip. Places are worked out here: they are many, and all alike.

    Args:
        panels (Sequence[int]): How many panels each strip has.
        shapes (Sequence[float]): Height of each strip's panels by their width.
        headings (Sequence[str]): What stands above each.
        width (float): Of a panel, in inches.
    """
    across = [max(count * (width + _GAP) + _BAR_ROOM, _LETTER * len(heading) + _GAP)
              for count, heading in zip(panels, headings)]
    lines: list[list[int]] = []
    for strip in range(len(panels)):
        room = _WIDEST - sum(across[i] for i in lines[-1]) if lines else 0
        if across[strip] <= room:
            lines[-1].append(strip)
        else:
            lines.append([strip])
    tall = [width * max(shapes[i] for i in line) + _HEADING + _TICKS for line in lines]
    total = (_LEFT + max(sum(across[i] for i in line) for line in lines) + _RIGHT, _TOP + sum(tall) + _BOTTOM)
    # a figure of its own rather than pyplot's: needs no screen and leaves no state behind
    figure = Figure(figsize=(max(total[0], 5.5), total[1]))
    size = figure.get_size_inches()

    def axes(left: float, top: float, across: float, down: float) -> Axes:
        return figure.add_axes((left / size[0], 1 - (top + down) / size[1], across / size[0], down / size[1]))

    made: dict[int, Strip] = {}
    top = _TOP
    for line, height in zip(lines, tall):
        left = _LEFT
        for strip in line:
            down = width * shapes[strip]
            row = [axes(left + i * (width + _GAP), top + _HEADING, width, down) for i in range(panels[strip])]
            bar = axes(left + panels[strip] * (width + _GAP) - _GAP + .08, top + _HEADING, _BAR, down)
            figure.text(left / size[0], 1 - (top + .16) / size[1], headings[strip], fontsize=9, fontweight='bold',
                        va='center')
            made[strip] = Strip(row, bar)
            left += across[strip]
        top += height
    return figure, [made[strip] for strip in range(len(panels))]


def scale(strip: Strip, image: AxesImage, label: str) -> None:
    """Draw a strip's scale of colours."""
    bar = strip.bar.figure.colorbar(image, cax=strip.bar)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.set_label(label, fontsize=8)


def name_axes(figure: Figure, x: str, y: str) -> None:
    """What the axes of all panels are, at the figure's lower and left side."""
    width, height = figure.get_size_inches()
    figure.text(_LEFT / width, .15 / height, x, fontsize=9, va='bottom')
    figure.text(.14 / width, .5, y, fontsize=9, rotation=90, va='center', ha='left')
