"""Draw the pictures of docs/encodings.md from the encodings themselves, or print its table of costs."""
from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.rpe import TableRPE, build_rpe, coordinates, offsets
from swin_rpe_mm.rpe.buckets import piecewise, sign_log, t5
from swin_rpe_mm.rpe.interpolate import MODES, resize_table
from swin_rpe_mm.visualization.bias_maps import draw_around_query
from swin_rpe_mm.windows import WindowGeometry
from tools.lib.cli import run_tool

_HEADS, _CHANNELS = 4, 32
_WINDOW, _WIDER = 7, 12
_INK, _GREY = '#222222', '#8a8a8a'
_COLOURS = dict(query='#d62728', key='#4c9be8', pooled='#f0a830', empty='#f2f2f2')
_RANGE = dict(vmin=-1.5, vmax=3, cmap='viridis')


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('--out', default='docs/encodings', help='folder of the pictures (default: %(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of the random weights, queries and keys')
    parser.add_argument('--only', nargs='+', metavar='PICTURE', help=f'some of {", ".join(PICTURES)}')
    parser.add_argument('--table', action='store_true', help='print the table of costs instead')
    args = parser.parse_args(argv)
    for name in args.only or ():
        if name not in PICTURES:
            raise InputError(f'--only must name pictures out of {", ".join(PICTURES)}, got {name}')
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    if args.table:
        print(costs())
        return
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in args.only or PICTURES:
        torch.manual_seed(args.seed)
        save(PICTURES[name](), out / f'{name}.png')
        print(out / f'{name}.png')


def save(figure: Figure, path: Path) -> None:
    """Write a picture with a palette, which takes a third of the bytes."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=110)
    Image.open(buffer).convert('RGB').quantize(256).save(path, optimize=True)


# ---- what is drawn


def around(reach: int) -> WindowGeometry:
    """One query and the keys up to ``reach`` tokens away on all sides."""
    return WindowGeometry((1, 1), (2 * reach + 1, ) * 2, (-reach, -reach))


def patterns(geometry: WindowGeometry) -> dict[str, Tensor]:
    """What four heads could want: a bias ``(Nq, Nk)`` each."""
    dy, dx = offsets(geometry).double()
    wishes = {
        'what is near': -(dy**2 + dx**2) / 8,
        'its row': -dy**2 / 2 - dx**2 / 72,
        'what is to its left': -((dx - 3)**2 + dy**2) / 6,
        'its diagonal': -(dy - dx)**2 / 3 - (dy + dx)**2 / 120
    }
    return {name: (4.5 * wish.exp()).float() for name, wish in wishes.items()}


def build(rpe: dict | list, window: int = _WINDOW, heads: int = _HEADS) -> nn.Module:
    """An encoding for square windows."""
    return build_rpe(rpe, num_heads=heads, window_size=(window, window), head_dim=_CHANNELS)


def fitted(rpe: dict | list, q: Tensor | None = None) -> nn.Module:
    """An encoding whose biases come as near to :func:`patterns` in a window of 7 as it can, up to a constant."""
    module = build(rpe)
    target = torch.stack(list(patterns(around(_WINDOW - 1)).values()))
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=300, line_search_fn='strong_wolfe')

    def loss() -> Tensor:
        optimizer.zero_grad()
        bias = bias_of(module, around(_WINDOW - 1), q)
        error = centred(bias - target)[0].square().mean()
        error.backward()
        return error

    optimizer.step(loss)
    return module.requires_grad_(False)


def bias_of(rpe: nn.Module, geometry: WindowGeometry, q: Tensor | None = None) -> Tensor:
    """Bias of one window, ``(heads, Nq, Nk)``, whose queries are ``q`` ``(heads, d)`` at every place."""
    queries, keys = (torch.Size(size).numel() for size in geometry[:2])
    q = torch.zeros(_HEADS, _CHANNELS) if q is None else q
    bias = rpe(q[None, :, None].expand(-1, -1, queries, -1), q.new_zeros(1, len(q), keys, _CHANNELS), geometry)[2]
    return bias if bias.ndim == 3 else bias[0]


def seen(rpe: nn.Module, reach: int, q: Tensor | None = None) -> Tensor:
    """Bias of one query for the keys around it, ``(heads, 2 reach + 1, 2 reach + 1)``."""
    return bias_of(rpe, around(reach), q)[:, 0].detach().unflatten(-1, (2 * reach + 1, ) * 2)


def centred(*maps: Tensor) -> list[Tensor]:
    """Maps less the mean of each head in the first of them: softmax does not see a constant."""
    return [values - maps[0].mean((1, 2), keepdim=True) for values in maps]


def wider(rpe: nn.Module, mode: str = 'bicubic') -> nn.Module:
    """The same encoding after its window was changed."""
    rpe.resample((_WIDER, _WIDER), mode)
    return rpe


WISHES = list(patterns(around(1)))
QUERIES = [f'query {i + 1}' for i in range(_HEADS)]

# ---- how it is drawn


def grid(rows: int, columns: int, cell: float = 1.75) -> tuple[Figure, list]:
    """A figure and its axes, ``rows`` lists of ``columns``."""
    # a figure of its own rather than pyplot's: needs no screen and leaves no state behind
    figure = Figure(figsize=(cell * columns + .9, cell * rows + .6), layout='constrained')
    return figure, figure.subplots(rows, columns, squeeze=False)


def draw_seen(axis, values: Tensor, title: str = '', label: str = '', box: bool = False, **colours):
    """The keys around a query in the middle, one cell each; ``box`` draws the window of 7 in a wider one."""
    image = draw_around_query(axis, values.numpy(), title, label, **{**_RANGE, **colours})
    if box:
        side = 2 * _WINDOW - 1
        axis.add_patch(Rectangle((-side / 2, -side / 2), side, side, fill=False, color='white', linewidth=1, ls='--'))
    return image


def draw_rows(rows: dict[str, Tensor], titles: Sequence[str], legend: str = 'bias', **colours) -> Figure:
    """A row of maps ``(columns, side, side)`` for each label; a dashed box is the window of 7 in a wider one."""
    figure, axes = grid(len(rows), len(titles))
    for index, (label, maps) in enumerate(rows.items()):
        for column, title in enumerate(titles):
            image = draw_seen(axes[index][column], maps[column], title if index == 0 else '', label * (column == 0),
                              maps.shape[-1] > 2 * _WINDOW - 1, **colours)
    bar = figure.colorbar(image, ax=axes, shrink=.8, aspect=30, pad=.02)
    bar.ax.tick_params(labelsize=7)
    bar.set_label(legend, fontsize=8)
    return figure


def window_7_and_12(rpe: dict | list, q: Tensor | None = None) -> dict[str, Tensor]:
    """Rows of :func:`draw_rows`: fitted in a window of 7, and the same read in one of 12."""
    module = fitted(rpe, q)
    near = seen(module, _WINDOW - 1, q)
    return dict(zip(('window 7', 'window 12'), centred(near, seen(wider(module), _WIDER - 1, q))))


# ---- the pictures


def window() -> Figure:
    """Offsets in a small window, the table over them, and the bias that is read from it."""
    side = 4
    geometry = WindowGeometry.square((side, side))
    rpe = TableRPE(num_heads=1, window_size=(side, side))
    table = rpe.relative_position_bias_table
    rows = torch.arange(len(table), dtype=torch.float32)
    table.data = rows[:, None]
    bias = rpe.bias(geometry)[0].detach()
    figure = Figure(figsize=(9.4, 3.4), layout='constrained')
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.25, 1.5])
    query = 1 * side + 2
    colours = dict(vmin=0, vmax=len(table) - 1, cmap='viridis')

    left.imshow(bias[query].view(side, side).numpy(), **colours)
    for key, (dy, dx) in enumerate(offsets(geometry)[:, query].T.tolist()):
        y, x = divmod(key, side)
        left.text(x, y, f'{dy},{dx}', ha='center', va='center', fontsize=9, color=_on(bias[query, key] / len(table)),
                  fontweight='bold' if key == query else None)
    left.add_patch(Rectangle((query % side - .5, query // side - .5), 1, 1, fill=False, color=_COLOURS['query'], lw=2))
    left.set_title('a window of 4 x 4: offsets of the\nkeys of one query (red)', fontsize=9)

    middle.imshow(rows.view(2 * side - 1, -1).numpy(), extent=(-side + .5, side - .5, side - .5, -side + .5), **colours)
    for row, value in enumerate(rows.tolist()):
        y, x = divmod(row, 2 * side - 1)
        middle.text(x - side + 1, y - side + 1, row, ha='center', va='center', fontsize=7, color=_on(value / len(rows)))
    y, x = divmod(query, side)
    middle.add_patch(Rectangle((x - side + .5, y - side + .5), side, side, fill=False, color=_COLOURS['query'], lw=2))
    middle.set_title('the table: a row for each of 7 x 7 offsets;\nred: those that this query reads', fontsize=9)
    middle.set_xlabel('offset of columns', fontsize=8)
    middle.set_ylabel('offset of rows', fontsize=8)

    right.imshow(bias.numpy(), **colours)
    right.add_patch(Rectangle((-.5, query - .5), side * side, 1, fill=False, color=_COLOURS['query'], lw=2))
    right.set_title('the bias of all 16 x 16 pairs, read from it', fontsize=9)
    right.set_xlabel('key', fontsize=8)
    right.set_ylabel('query', fontsize=8)
    left.set_xticks([])
    left.set_yticks([])
    for axis in (middle, right):
        axis.tick_params(labelsize=7, length=2)
    return figure


def _on(value: float) -> str:
    """The colour of letters on a colour of viridis."""
    return 'white' if value < .55 else _INK


def table() -> Figure:
    """Swin's table, which can hold any pattern."""
    return draw_rows(window_7_and_12(dict(type='TableRPE')), WISHES)


def clipped() -> Figure:
    """Offsets beyond 4 share the bias of 4."""
    return draw_rows(window_7_and_12(dict(type='ClippedRPE', max_distance=4)), WISHES)


def buckets() -> Figure:
    """The bucket of each offset along one axis."""
    figure = Figure(figsize=(8, 2.9), layout='constrained')
    axes = figure.subplots(1, 2, width_ratios=[1, 1.6])
    for axis, reach in zip(axes, (8, 40)):
        offset = torch.arange(-reach, reach + 1)
        axis.step(offset, offset.clamp(-8, 8), where='mid', label='clipped, max_distance=8', color=_GREY)
        axis.step(offset, sign_log(offset, 6, 32) - 6, where='mid', label='sign_log, 6 per sign, up to 32')
        far = t5(offset, 32, 128)
        axis.step(offset, torch.where(far < 16, far, 16 - far), where='mid', label='t5, 32 in all, up to 128')
        axis.step(offset, piecewise(offset, 1.9) - 3, where='mid', label='piecewise, ratio 1.9')
        axis.set_xlabel('offset', fontsize=8)
        axis.set_xlim(-reach, reach)
        axis.grid(alpha=.3)
        axis.tick_params(labelsize=7, length=2)
    axes[0].set_ylabel('bucket, counted from that of 0', fontsize=8)
    axes[1].legend(fontsize=8)
    return figure


def log_bucket() -> Figure:
    """The areas that share a bias, for each form and join."""
    joins, forms, reach = ('product', 'cross', 'euclidean'), ('sign_log', 't5', 'piecewise'), 20
    figure, axes = grid(len(joins), len(forms), cell=2.3)
    for row, join in enumerate(joins):
        for column, form in enumerate(forms):
            rpe = build(dict(type='LogBucketRPE', form=form, join=join), heads=1)
            for parameter in rpe.parameters():
                parameter.data.uniform_(-1, 1)
            draw_seen(axes[row][column], seen(rpe, reach, torch.zeros(1, _CHANNELS))[0], form * (row == 0),
                      join * (column == 0), vmin=None, vmax=None)
    return figure


def log_bucket_fitted() -> Figure:
    """What each join can hold of the patterns."""
    rows = {}
    for join in ('product', 'cross', 'euclidean'):
        rows[join] = window_7_and_12(dict(type='LogBucketRPE', join=join))['window 12']
    return draw_rows(rows, WISHES)


def log_cpb() -> Figure:
    """A smooth function of the offset, read beyond the offsets that it was fitted at."""
    rows = {}
    for log in (True, False):
        near, far = window_7_and_12(dict(type='LogCPB', log=log)).values()
        if log:
            rows['window 7, log'] = near
        rows[f'window 12, {"log" if log else "linear"}'] = far
    return draw_rows(rows, WISHES)


def contextual() -> Figure:
    """One set of vectors for the buckets, four queries."""
    return draw_rows(window_7_and_12(dict(type='ContextualRPE'), torch.randn(_HEADS, _CHANNELS)), QUERIES)


def decomposed() -> Figure:
    """One set of vectors for each axis, four queries."""
    return draw_rows(window_7_and_12(dict(type='DecomposedRPE'), torch.randn(_HEADS, _CHANNELS)), QUERIES)


def block() -> Figure:
    """What of a key's place counts: the block, the place inside of it, or both; seen by one query in the middle."""
    figure, axes = grid(1, 4, cell=2.5)
    few, many = torch.rand(3, 3, 1, 1), torch.rand(7, 7, 1, 1)
    distance = torch.linspace(-3, 3, 9)
    by_inner = (-distance[:, None]**2 - distance**2).exp()
    views = (('block offset, clipped to 1', 'clip', few + 0 * by_inner), ('inner offset', 'clip', 0 * few + by_inner),
             ('both', 'clip', few + by_inner), ("both, block_form='log'", 'log', many + by_inner))
    for axis, (title, form, rows) in zip(axes[0], views):
        size, blocks = (_WINDOW, 5) if form == 'clip' else (3, 11)
        rpe = build(dict(type='BlockRPE', max_blocks=len(rows) // 2, block_form=form), size, heads=1)
        rpe.relative_position_bias_table.data = rows.reshape(-1, 1)
        first = -(blocks // 2) * size
        geometry = WindowGeometry((size, size), (blocks * size, ) * 2, (first, first))
        bias = bias_of(rpe, geometry, torch.zeros(1, _CHANNELS))[0].detach()
        axis.imshow(bias[size * size // 2].view(blocks * size, -1).numpy(), cmap='viridis')
        middle = blocks * size // 2
        axis.plot(middle, middle, 'o', markersize=3, color='white', markeredgecolor=_COLOURS['query'])
        for edge in range(1, blocks):
            axis.axhline(edge * size - .5, color='white', linewidth=.6)
            axis.axvline(edge * size - .5, color='white', linewidth=.6)
        axis.set_title(title, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    return figure


def low_rank() -> Figure:
    """What one, two and four terms can hold of the patterns."""
    rows = {}
    for rank in (1, 2, 4):
        rows[f'rank {rank}'] = centred(seen(fitted(dict(type='LowRankRPE', rank=rank)), _WINDOW - 1))[0]
    return draw_rows(rows, WISHES)


def rotary() -> Figure:
    """The logit of a query and a key of equal content at every offset."""
    q = torch.full((1, _HEADS, 1, _CHANNELS), (3 / _CHANNELS)**.5)
    rows = {}
    for mode in ('axial', 'mixed'):
        geometry = around(_WIDER - 1)
        rpe = build(dict(type='RotaryRPE', mode=mode))
        turned, keys, _ = rpe(q, q.expand(-1, -1, (2 * _WIDER - 1)**2, -1), geometry)
        rows[mode] = (turned @ keys.transpose(-2, -1))[0, :, 0].detach().unflatten(-1, (2 * _WIDER - 1, ) * 2)
    return draw_rows(rows, [f'head {head + 1}' for head in range(_HEADS)], 'q . k', vmin=-1.5, vmax=3)


def dynamic() -> Figure:
    """The same bias in four windows."""
    rpe = build(dict(type='DynamicRPE', rpe=dict(type='TableRPE'))).requires_grad_(False)
    for parameter in rpe.scale_mlp.parameters():
        parameter.normal_(std=.15)
    rpe.inner.load_state_dict(fitted(dict(type='TableRPE')).state_dict())
    geometry, windows = around(_WINDOW - 1), 4
    q = torch.randn(windows, _HEADS, 1, _CHANNELS)
    bias = rpe(q, q.new_zeros(windows, _HEADS, (2 * _WINDOW - 1)**2, _CHANNELS), geometry)[2]
    bias = bias[:, :, 0].unflatten(-1, (2 * _WINDOW - 1, ) * 2)
    plain = seen(rpe.inner, _WINDOW - 1)
    figure, axes = grid(2, windows)
    for head, row in enumerate(axes):
        for index, axis in enumerate(row):
            scale = float((bias[index, head] / plain[head]).median())
            image = draw_seen(axis, bias[index, head], f'window {index + 1}: x {scale:.2f}',
                              f'head {head + 1}' * (index == 0), vmin=0, vmax=6)
    figure.colorbar(image, ax=axes, shrink=.8, aspect=30, pad=.02).set_label('bias', fontsize=8)
    return figure


def several() -> Figure:
    """A table of what is near plus rings of what is far."""
    rpe = fitted([dict(type='ClippedRPE', max_distance=2), dict(type='LogBucketRPE', join='euclidean')])
    near, far = (seen(part, _WINDOW - 1) for part in rpe.encodings)
    rows = dict(zip(('ClippedRPE', '+ LogBucketRPE', '= SumRPE'),
                    (centred(maps)[0] for maps in (near, far, near + far))))
    return draw_rows(rows, WISHES)


def resample() -> Figure:
    """Which old offsets each new one reads, in each mode."""
    figure, axes = grid(2, len(MODES), cell=2.2)
    for row, (old, new) in zip(axes, ((_WINDOW, _WIDER), (_WIDER, _WINDOW))):
        sides = ((2 * old - 1, ), (2 * new - 1, ))
        for axis, mode in zip(row, MODES):
            axis.set_xlim(-new + .5, new - .5)
            axis.set_ylim(-old + .5, old - .5)
            axis.set_title(f'{mode}, {old} to {new}', fontsize=9)
            axis.tick_params(labelsize=7, length=2)
            axis.set_aspect('equal')
            axis.set_xticks([1 - new, 0, new - 1])
            axis.set_yticks([1 - old, 0, old - 1])
            try:
                weights = resize_table(torch.eye(*sides[0]), *sides, mode).T
            except InputError:
                axis.text(0, 0, 'refused: it\nonly stretches', ha='center', va='center', fontsize=8, color=_GREY)
                continue
            image = axis.imshow(
                weights.numpy(), extent=(.5 - new, new - .5, .5 - old, old - .5), origin='lower', vmin=-1, vmax=1,
                cmap='RdBu_r')
        row[0].set_ylabel('old offset', fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel('new offset', fontsize=8)
    bar = figure.colorbar(image, ax=axes, shrink=.8, aspect=30, pad=.02)
    bar.set_label('weight', fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def resampled_bias() -> Figure:
    """One head's table, read for a wider window in each mode."""
    figure, axes = grid(1, 1 + len(MODES))
    module = fitted(dict(type='TableRPE'))
    near = seen(module, _WINDOW - 1)
    draw_seen(axes[0][0], centred(near)[0][2], 'window 7')
    for axis, mode in zip(axes[0][1:], MODES):
        copy = build(dict(type='TableRPE'))
        copy.load_state_dict(module.state_dict())
        draw_seen(axis, centred(near, seen(wider(copy, mode=mode), _WIDER - 1))[1][2], f'12, {mode}', box=True)
    return figure


@torch.no_grad()
def absolute() -> Figure:
    """The two parts of an absolute embedding, and their sum for a map of another size; one channel."""
    size, pretrained = (20, 27), 14
    backbone = SwinRPE(arch='nano', window_size=_WINDOW, pretrain_img_size=4 * pretrained, use_abs_pos_embed='window')
    y, x = torch.meshgrid(torch.arange(_WINDOW), torch.arange(_WINDOW), indexing='ij')
    tile = (-(y - 3)**2 / 5 - (x - 3)**2 / 5).exp()
    whole = torch.linspace(-1, 1, pretrained)[:, None] * torch.linspace(0, 1, pretrained)

    def embedding(of_tile: Tensor, of_whole: Tensor) -> Tensor:
        backbone.window_pos_embed.copy_(of_tile.reshape(1, -1, 1).expand_as(backbone.window_pos_embed))
        backbone.absolute_pos_embed.copy_(of_whole.reshape(1, -1, 1).expand_as(backbone.absolute_pos_embed))
        added = []
        # patch embedding makes zeros of a black image, so that what arrives here is the embedding
        hook = backbone.drop_after_pos.register_forward_pre_hook(lambda _, tokens: added.append(tokens[0]))
        backbone(torch.zeros(1, 3, *(4 * side for side in size)))
        hook.remove()
        return added[0][0, :, 0].view(size)

    parts = {
        'window_pos_embed,\na window': tile,
        'repeated': embedding(tile, 0 * whole),
        'absolute_pos_embed,\nas pre-trained': whole,
        'stretched': embedding(0 * tile, whole),
        'the sum': embedding(tile, whole)
    }
    figure, axes = grid(1, len(parts), cell=2)
    figure.set_figheight(2)
    for axis, (title, values) in zip(axes[0], parts.items()):
        axis.imshow(values.numpy(), vmin=-1, vmax=1.5, cmap='viridis')
        axis.set_xlim(-.5, size[1] - .5)
        axis.set_ylim(size[0] - .5, -.5)
        for edge in range(_WINDOW, max(size), _WINDOW) if values.shape == size else ():
            axis.axvline(edge - .5, color='white', linewidth=.6)
            axis.axhline(edge - .5, color='white', linewidth=.6)
        axis.set_title(title, fontsize=9, loc='left')
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
    return figure


def neighbours() -> Figure:
    """Which keys a query sees with each way to look beyond the window."""
    side, windows, query, shift = _WINDOW, 3, (_WINDOW + 3, _WINDOW + 2), _WINDOW // 2
    start = [(place - shift) // side * side + shift - side for place in query]  # of the shifted window
    own = WindowGeometry.square((side, side))
    views = {
        'its window': [own],
        'its shifted window, in\nevery other block': [own._replace(origin=tuple(start))],
        'halo=3': [WindowGeometry.centred((side, side), (side + 6, ) * 2)],
        "halo='window'": [WindowGeometry.centred((side, side), (3 * side, ) * 2)],
        'pooled_neighbours=1': [WindowGeometry.pooled((side, side), 1), own],
        "halo=3 at the\nimage's corner": [WindowGeometry.centred((side, side), (side + 6, ) * 2)]
    }
    figure, axes = grid(2, len(views) // 2, cell=2.4)
    for axis, (title, geometries) in zip((axis for row in axes for axis in row), views.items()):
        first = side if 'corner' in title else 0  # of the image's rows and columns
        keys = {}
        for geometry in geometries:
            kind = 'key' if geometry.key_stride is None else 'pooled'
            keys.update({tuple(key): kind for key in (coordinates(geometry)[1].T + side).tolist()})
        keys[query] = 'query'
        for y in range(first, side * windows):
            for x in range(first, side * windows):
                colour = _COLOURS[keys.get((y, x), 'empty')]
                axis.add_patch(Rectangle((x + .08, y + .08), .84, .84, color=colour, linewidth=0))
        for edge in range(first, side * windows + 1, side):
            axis.plot([first, side * windows], [edge, edge], color=_INK, linewidth=.8)
            axis.plot([edge, edge], [first, side * windows], color=_INK, linewidth=.8)
        axis.set_xlim(-.3, side * windows + .3)
        axis.set_ylim(side * windows + .3, -.3)
        axis.set_aspect('equal')
        axis.set_axis_off()
        axis.set_title(title, fontsize=9)
    return figure


# ---- the table of costs

_SWIN_T = dict(depths=(2, 2, 6, 2), heads=(3, 6, 12, 24))
COUNTED = {
    '[`TableRPE`](#tablerpe)': dict(type='TableRPE'),
    '[`ClippedRPE`](#clippedrpe)': dict(type='ClippedRPE'),
    '[`LogBucketRPE`](#logbucketrpe), `sign_log`': dict(type='LogBucketRPE'),
    '`LogBucketRPE`, `t5`': dict(type='LogBucketRPE', form='t5'),
    '`LogBucketRPE`, `piecewise`': dict(type='LogBucketRPE', form='piecewise'),
    "`LogBucketRPE`, `join='cross'`": dict(type='LogBucketRPE', join='cross'),
    "`LogBucketRPE`, `join='euclidean'`": dict(type='LogBucketRPE', join='euclidean'),
    '[`LogCPB`](#logcpb)': dict(type='LogCPB'),
    '[`ContextualRPE`](#contextualrpe)': dict(type='ContextualRPE'),
    "`ContextualRPE`, `on='qkv'`": dict(type='ContextualRPE', on='qkv'),
    '[`DecomposedRPE`](#decomposedrpe)': dict(type='DecomposedRPE'),
    '[`BlockRPE`](#blockrpe)': dict(type='BlockRPE'),
    '[`LowRankRPE`](#lowrankrpe)': dict(type='LowRankRPE'),
    '[`RotaryRPE`](#rotaryrpe), `mixed`': dict(type='RotaryRPE'),
    '`RotaryRPE`, `axial`': dict(type='RotaryRPE', mode='axial'),
    '[`DynamicRPE`](#dynamicrpe) of a table': dict(type='DynamicRPE'),
}


def costs() -> str:
    """A Markdown table of what encodings cost in Swin-T with windows of 7, and of what they can do."""
    lines = [
        '| | parameters, first block | parameters, Swin-T | multiply-adds, window | multiply-adds, once | any offset | '
        'content | resampled | fused attention |', '|---|' + '---:|' * 4 + '---|' * 4
    ]
    for name, config in COUNTED.items():
        rpe = build(config, heads=_SWIN_T['heads'][0])
        total = sum(depth * parameters_of(build(config, heads=heads)) for depth, heads in zip(*_SWIN_T.values()))
        one, two = (multiply_adds(rpe, windows) for windows in (1, 2))
        cells = [f'{parameters_of(rpe):,}', f'{total:,}', f'{two - one:,}', f'{2 * one - two:,}']
        cells += [_yes(takes_any_offset(rpe)), _yes(depends_on_content(rpe)), _yes(is_resampled(rpe)), fused(rpe)]
        lines.append(f'| {name} | {" | ".join(cells)} |')
    return '\n'.join(lines)


def _yes(answer: bool) -> str:
    return 'yes' if answer else 'no'


def parameters_of(rpe: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in rpe.parameters())


def content(rpe: nn.Module, windows: int, geometry: WindowGeometry) -> tuple[Tensor, Tensor]:
    """Random queries and keys."""
    return tuple(torch.randn(windows, rpe.num_heads, torch.Size(size).numel(), _CHANNELS) for size in geometry[:2])


def multiply_adds(rpe: nn.Module, windows: int) -> int:
    """Multiply-adds of the matrix products for so many windows."""
    q, k = content(rpe, windows, rpe.geometry)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        rpe(q, k, rpe.geometry)
        if rpe.gives('values'):
            rpe.values(torch.rand(windows, rpe.num_heads, q.shape[2], k.shape[2]), rpe.geometry)
    return counter.get_total_flops() // 2


def takes_any_offset(rpe: nn.Module) -> bool:
    """Whether keys further away than the window have a bias too."""
    far = WindowGeometry.centred((_WINDOW, _WINDOW), (_WINDOW + 8, _WINDOW + 8))
    try:
        rpe(*content(rpe, 1, far), far)
    except InputError:
        return False
    return True


def is_resampled(rpe: nn.Module) -> bool:
    """Whether a table must be read anew for another window."""
    return bool(rpe.resampled((_WIDER, _WIDER)))


def depends_on_content(rpe: nn.Module) -> bool:
    """Whether two windows of other content get another bias."""
    rpe.requires_grad_(False)
    for parameter in rpe.parameters():
        parameter.normal_()
    bias = rpe(*content(rpe, 2, rpe.geometry), rpe.geometry)[2]
    return bias is not None and bias.ndim == 4 and not torch.allclose(bias[0], bias[1])


def fused(rpe: nn.Module) -> str:
    """What fused attention must be able to do."""
    if rpe.gives('values'):
        return 'no, needs the weights'
    bias = rpe(*content(rpe, 2, rpe.geometry), rpe.geometry)[2]
    if bias is None:
        return 'any, no mask'
    return 'one mask' if bias.ndim == 3 else 'a mask per window'


PICTURES = {
    picture.__name__: picture
    for picture in (window, table, clipped, buckets, log_bucket, log_bucket_fitted, log_cpb, contextual, decomposed,
                    block, low_rank, rotary, dynamic, several, absolute, neighbours, resample, resampled_bias)
}

if __name__ == '__main__':
    run_tool(main)
