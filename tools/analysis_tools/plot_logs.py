"""Draw what trainings logged: losses, learning rate, AP or mIoU, and what RPEMonitorHook measured, of one run or of
several runs side by side.

A run is given by its json log (scalars.json) or by the folder it was trained in, whose latest training is taken. Of one
run, figures of a kind share a frame, layers from dark to light. Of several runs, each figure has a frame with a curve
for each run; where a figure of the monitor is asked for in several layers, the curve is their mean and the band reaches
from the smallest to the largest."""
from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.visualization.curves import Curve, Panel, draw_curves, layer_of, look_of
from swin_rpe_mm.whole_files import WholeFileBackend
from tools.lib.cli import run_tool
from tools.lib.run_logs import RunLog, Series, read_log

_EXAMPLES = """examples:
  plot_logs.py work_dirs/mask-rcnn_swin-rpe-t
  plot_logs.py work_dirs/table work_dirs/rotary --legend Table Rotary --keys loss '*mAP' 'rpe/*/entropy'
  plot_logs.py work_dirs/table --keys 'rpe/stages.3.*/ratio' --out ratio.svg"""
_MONITOR = [f'rpe/*/{name}' for name in ('ratio', 'content_std', 'bias_std', 'entropy', 'bias_grad_norm', 'saturated',
                                         'clamped')]
_OF_ONE_RUN = ['loss', '*loss*', 'lr', '*mAP', 'mIoU', *_MONITOR]
_OF_SEVERAL_RUNS = ['loss', 'lr', '*mAP', 'mIoU', *_MONITOR]
_MOST_PANELS = 48


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, epilog=_EXAMPLES, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('runs', nargs='+', metavar='RUN', help='json log, or folder of a training')
    parser.add_argument('--keys', nargs='+', metavar='PATTERN',
                        help="names of figures, where * stands for anything, such as loss '*mAP' 'rpe/*/ratio'; "
                        'default: losses, learning rate, AP, mIoU and the figures of RPEMonitorHook that there are')
    parser.add_argument('--legend', nargs='+', metavar='NAME', help='a name for each run; default: its folder')
    parser.add_argument('--smooth', type=int, default=1, metavar='N',
                        help='draw means over N records, and the records themselves as thin lines (default: 1, none)')
    parser.add_argument('--title', help='what to write above the figure')
    parser.add_argument('--out', default='curves.png', help='picture to write, .png or .svg (default: %(default)s)')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[Panel]:
    """Draw the picture; return what is in it."""
    args = parse_args(argv)
    out = Path(args.out)
    if out.suffix not in ('.png', '.svg'):
        raise InputError(f'--out must end in .png or .svg, got {args.out}')
    if args.smooth < 1:
        raise InputError(f'--smooth must be a whole number from 1, got {args.smooth}')
    if args.legend and len(args.legend) != len(args.runs):
        raise InputError(f'--legend must have a name for each of {len(args.runs)} runs, got {len(args.legend)}')
    logs = [read_log(run) for run in args.runs]
    names = args.legend or names_of(args.runs)
    if len(set(names)) < len(names):
        raise InputError(f'--legend must have another name for each run, got {", ".join(names)}')
    runs = dict(zip(names, logs))
    keys = choose(runs, args.keys)
    panels = of_one_run(logs[0], keys) if len(runs) == 1 else of_several_runs(runs, keys)
    if len(panels) > _MOST_PANELS:
        raise InputError(f'--keys matches figures for {len(panels)} frames, and {_MOST_PANELS} are the most: give '
                         'patterns that match fewer')

    figure = draw_curves(panels, args.smooth, names if len(runs) > 1 else ())
    if args.title or len(runs) == 1:
        figure.suptitle(args.title or names[0], fontsize=11)
    buffer = BytesIO()
    figure.savefig(buffer, format=out.suffix[1:], dpi=130)
    WholeFileBackend().put(buffer.getvalue(), out)
    for name, log in runs.items():
        print(f'{name}: {log.path}')
    print(f'picture: {out}, {len(panels)} frames')
    return panels


def names_of(runs: Sequence[str]) -> list[str]:
    """The folders' names, or what was given where these do not differ."""
    names = []
    for run in runs:
        folder = Path(run).resolve()
        folder = folder.parent if folder.is_file() else folder
        names.append(folder.parent.name if folder.name == 'vis_data' else folder.name)
    return names if len(set(names)) == len(names) else list(runs)


def choose(runs: dict[str, RunLog], patterns: Sequence[str] | None) -> list[str]:
    """Names of figures that match, in the order of the patterns.

    Raises:
        InputError: If a pattern that was asked for matches nothing in any run.
    """
    present = list(dict.fromkeys(key for log in runs.values() for key in log.figures))
    asked = patterns or (_OF_ONE_RUN if len(runs) == 1 else _OF_SEVERAL_RUNS)
    chosen = {}
    for pattern in asked:
        found = [key for key in present if fnmatch(key, pattern)]
        if patterns and not found:
            raise InputError(f'--keys has {pattern!r}, which no run logged; there are {", ".join(folded(present))}')
        chosen.update(dict.fromkeys(found))
    if not chosen:
        raise InputError(f'the logs have none of the usual figures; name some by --keys: {", ".join(folded(present))}')
    return list(chosen)


def folded(keys: Sequence[str]) -> list[str]:
    """Names with one entry for all layers."""
    return sorted({f'rpe/*/{key.rpartition("/")[2]}' if layer_of(key) else key for key in keys})


def of_one_run(log: RunLog, keys: Sequence[str]) -> list[Panel]:
    """A panel for each kind of figure."""
    kinds = {}
    for key in keys:
        kinds.setdefault(look_of(key), []).append(key)
    panels = []
    for look, members in kinds.items():
        layers = layer_of(members[0]) is not None
        curves = [
            Curve(layer_of(key) or key, *known(key, log.figures[key]), place) for place, key in enumerate(members)
        ]
        title = members[0] if len(members) == 1 and not layers else look.title
        measured = all(key not in log.training for key in members)
        panels.append(Panel(title, look, [curve for curve in curves if curve.x], measured, layers))
    return panels


def of_several_runs(runs: dict[str, RunLog], keys: Sequence[str]) -> list[Panel]:
    """A panel for each figure, and for each kind of the monitor's figures."""
    groups = {}
    for key in keys:
        groups.setdefault(look_of(key).pattern if layer_of(key) else key, []).append(key)
    panels = []
    for members in groups.values():
        look = look_of(members[0])
        layers = {layer_of(key) for key in members}
        title = members[0]
        if len(members) > 1:
            title = f'{look.title}, {len(layers)} layers'
        elif None not in layers:
            title = f'{look.title}, {layer_of(members[0])}'
        curves = []
        for place, (name, log) in enumerate(runs.items()):
            there = [known(key, log.figures[key]) for key in members if key in log.figures]
            if there and there[0].values:
                band = over_layers(there) if len(members) > 1 else ()
                curves.append(Curve(name, *(band[:2] or there[0]), place, *band[2:]))
        measured = all(key not in log.training for log in runs.values() for key in members)
        panels.append(Panel(title, look, curves, measured))
    return panels


def known(key: str, series: Series) -> Series:
    """A series without the -1 that COCO's AP has where no object is of that size."""
    if 'AP' not in key:
        return series
    kept = [index for index, value in enumerate(series.values) if value != -1]
    return Series(*([column[index] for index in kept] for column in series))


def over_layers(layers: Sequence[Series]) -> tuple[list[float], ...]:
    """Iterations, and the mean, smallest and largest value of several layers at each."""
    at = {}
    for series in layers:
        for iteration, value in zip(*series):
            at.setdefault(iteration, []).append(value)
    values = list(at.values())
    return list(at), [sum(row) / len(row) for row in values], list(map(min, values)), list(map(max, values))


if __name__ == '__main__':
    run_tool(main)
