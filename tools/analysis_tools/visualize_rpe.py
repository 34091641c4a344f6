"""Draw what the position encoding and the attention of a model do: bias maps, attention of a point, windows, attention
distance, and effective receptive field, together on one page."""
from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

from matplotlib.figure import Figure
from mmengine.config import DictAction
from tqdm import tqdm

from swin_rpe_mm.checkpoints.files import TRUST_HELP
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import find_data, load_config
from swin_rpe_mm.visualization.attention_distance import draw_distance
from swin_rpe_mm.visualization.attention_maps import draw_attention
from swin_rpe_mm.visualization.bias_maps import draw_bias
from swin_rpe_mm.visualization.layers import layers_of, pick_heads, pick_layers
from swin_rpe_mm.visualization.page import Section, write_page
from swin_rpe_mm.visualization.receptive_field import draw_fields, receptive_fields
from swin_rpe_mm.visualization.style import write_figure
from swin_rpe_mm.visualization.window_grid import draw_windows
from tools.lib.cli import run_tool
from tools.lib.inputs import Sample, Subject, build_subject, sample_of_file, samples_of_data

Drawn = tuple[Figure, list[str]]


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file of a detector, a segmentor or a backbone alone, on SwinRPE')
    parser.add_argument('checkpoint', nargs='?', help='checkpoint of the model or of its backbone alone; without one, '
                        'the weights that training would start with are drawn')
    parser.add_argument('--image', help="image file to look at; default: the first of the config's val data set")
    parser.add_argument('--point', nargs=2, type=int, metavar=('Y', 'X'), help='whose attention to draw, in pixels of '
                        'the image file from its upper left corner; default: the middle')
    parser.add_argument('--layers', nargs='+', metavar='STAGE.BLOCK', help='layers whose bias and attention to draw, '
                        'from 0: 2.5 is block 5 of stage 2, 2 all of stage 2; all for all; default: the last two of '
                        'each stage')
    parser.add_argument('--heads', nargs='+', type=int, metavar='HEAD',
                        help='heads to draw of each layer, from 0; default: the first 8')
    parser.add_argument('--figures', nargs='+', choices=FIGURES, default=list(FIGURES), metavar='FIGURE',
                        help=f'some of {", ".join(FIGURES)}; default: all')
    parser.add_argument('--samples', type=int, default=8, help='how many gradients the receptive field is the mean of: '
                        'one for each of that many images of the val data set, or of one image (default: %(default)s)')
    parser.add_argument('--out', help='folder to write to; default: work_dirs/CONFIG_NAME/visualize_rpe')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE',
                        help="settings that override the config's")
    parser.add_argument('--trust-checkpoint', action='store_true', help=TRUST_HELP)
    args = parser.parse_args(argv)
    if args.samples < 1:
        raise InputError(f'--samples must be 1 or more, got {args.samples}')
    return args


class Task:
    """What the figures are drawn from."""

    def __init__(self, args: Namespace):
        self.args = args
        self.cfg = load_config(args.config, args.cfg_options)
        for note in find_data(self.cfg):
            print(note)
        self.subject: Subject = build_subject(self.cfg, args.checkpoint, args.trust_checkpoint)
        self.backbone = self.subject.backbone
        self.all_layers = layers_of(self.backbone)
        self.layers = pick_layers(self.all_layers, args.layers)
        self.heads = pick_heads(self.layers, args.heads)
        self.sample: Sample = (sample_of_file(self.cfg, self.subject.model, args.image) if args.image else
                               next(samples_of_data(self.cfg, self.subject.model, 1)))
        size = self.sample.picture.shape[:2]
        self.windows = [layer.windows.geometry(layer.map_size(size)).query_size
                        for layer in self.all_layers if layer.index == 0]
        height, width = self.sample.file_size
        self.point = args.point or (height // 2, width // 2)
        if not (0 <= self.point[0] < height and 0 <= self.point[1] < width):
            raise InputError(f'--point must lie inside the image, which is {height}x{width} px (height x width), got '
                             f'{self.point[0]} {self.point[1]}')

    def bias(self) -> Drawn:
        figure, sentences = draw_bias(self.backbone, self.sample.images, self.layers, self.heads, self.sample.extents)
        return figure, ['What the encoding adds to the logit of a query in the middle and a key at each offset, less '
                        "the head's mean, which softmax does not see.", *sentences]

    def attention(self) -> Drawn:
        figure = draw_attention(self.backbone, self.sample.images, self.sample.picture,
                                self.sample.place_of(self.point), self.layers, self.heads, self.sample.extents)
        return figure, [
            f'Where the point y={self.point[0]}, x={self.point[1]} (star) looks. Tokens without colour are none of its '
            'keys. White lines are the borders of windows, shifted ones cut at the seam; the yellow frame is the '
            "point's window, and on the image the part that the other maps show. Hatched: padding. A pooled "
            "neighbour's weight is spread evenly over its tokens."
        ]

    def windows(self) -> Drawn:
        return draw_windows(self.backbone, self.sample.images, self.sample.picture, self.sample.extents), [
            'The windows of each stage. Those at the seam of a shift are made of pieces from different sides of the '
            'image, which do not see each other: pieces with one number are one window. Windows that would hold batch '
            'padding alone are left out.'
        ]

    def distance(self) -> Drawn:
        return draw_distance(self.backbone, self.sample.images, self.all_layers, self.sample.extents), [
            'How far away the keys of a query lie, weighted by attention, as the mean over all queries of the image, '
            'for every head. A pooled neighbour counts with the centre of its window.'
        ]

    def receptive_field(self) -> Drawn:
        number = self.args.samples
        if self.args.image:
            samples, source = [self.sample], 'this image'
        else:
            samples = list(samples_of_data(self.cfg, self.subject.model, number))
            source = f'{len(samples)} image{"s" * (len(samples) > 1)} of the val data set'
        progress = tqdm(islice(cycle(samples), number), total=number, desc='gradients', unit='image')
        fields = receptive_fields(self.backbone, ((sample.images, sample.extents) for sample in progress))
        figure = draw_fields(fields, self.windows)
        return figure, [
            'How much one output token of each stage depends on each pixel: the root of the mean square of the '
            f'gradient, over {number} random sums of its channels and {source}. White: a window around the token; '
            'blue: squares that hold half (solid) and 95 % (dashed) of the gradient.'
        ]


FIGURES: dict[str, tuple[str, Callable[[Task], Drawn]]] = {
    'bias': ('Bias over offsets', Task.bias),
    'attention': ('Attention of a point', Task.attention),
    'windows': ('Windows', Task.windows),
    'distance': ('Attention distance', Task.distance),
    'receptive_field': ('Effective receptive field', Task.receptive_field)
}


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Draw the figures; return the files, the page first."""
    args = parse_args(argv)
    task = Task(args)
    name = Path(args.config).stem
    out = Path(args.out or Path('work_dirs', name, 'visualize_rpe'))
    print(task.subject.weights)
    print(f'image: {task.sample.name}')
    files, sections = [], []
    for figure in dict.fromkeys(args.figures):
        title, draw = FIGURES[figure]
        drawn, sentences = draw(task)
        png, svg = write_figure(drawn, out, figure, f'{title} — {name}, {task.subject.weights}')
        print(f'{title}: {png}, {svg}')
        files += [png, svg]
        sections.append(Section(figure, title, sentences, png.name, svg.name))
    images = tuple(task.sample.images.shape[-2:])
    facts = {
        'Config': args.config,
        'Weights': task.subject.weights if not args.checkpoint else args.checkpoint,
        'Image': f'{task.sample.name}, {"x".join(map(str, task.sample.picture.shape[:2]))} px as the model gets it, '
                 f'in a batch of {images[0]}x{images[1]} px',
        'Backbone': f'{len(task.all_layers)} layers in {len(task.backbone.stages)} stages, windows '
                    + ', '.join(f'{h}x{w}' for h, w in task.windows)
    }
    write_page(out / 'index.html', f'Attention and position encoding of {name}', facts, sections)
    print(f'page: {out / "index.html"}')
    return [out / 'index.html', *files]


if __name__ == '__main__':
    run_tool(main)
