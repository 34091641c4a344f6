"""Compare relative position encodings: what each costs, and what is left of a trained model at another window.

The encodings are those of configs/rpe/_base_, by their file names.
"""
from __future__ import annotations

import json
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import mean, median

import torch
from mmengine.config import Config, DictAction
from mmengine.hooks import Hook
from mmengine.runner import Runner, load_checkpoint
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import load_config, require, task_of, type_name
from swin_rpe_mm.rpe import RelativePositionEncoding
from swin_rpe_mm.rpe.interpolate import MODES
from swin_rpe_mm.whole_files import WholeFileBackend
from tools.lib.cli import run_tool
from tools.lib.multiply_adds import count_multiply_adds
from tools.lib.runs import build_runner, prepare_run

ROOT = Path(__file__).resolve().parents[2]
ENCODINGS = ROOT / 'configs' / 'rpe' / '_base_'
REFERENCE = 'table'
ARCHS = ('nano', 'tiny')
AS_IT_IS = 'as it is'  # instead of a mode, where the encoding has no table over offsets
TRAINED, FINE_TUNED = 'trained', 'fine-tuned'
STEPS = (TRAINED, AS_IT_IS, *MODES, FINE_TUNED)
FINE_TUNE_MODE = 'bicubic'
FINE_TUNE_LR = 0.2  # of the training's


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest='command', required=True)

    def add_command(name: str, text: str) -> ArgumentParser:
        return commands.add_parser(name, help=text, description=text, formatter_class=ArgumentDefaultsHelpFormatter)

    cost = add_command('cost', 'parameters, multiply-accumulates and CPU time of each encoding in a backbone')
    cost.add_argument('--encodings', nargs='+', default=all_encodings(), help='names in configs/rpe/_base_')
    cost.add_argument('--arch', choices=ARCHS, default='nano', help='backbone whose time is taken')
    cost.add_argument('--image-size', nargs=2, type=int, default=[224, 224], metavar=('H', 'W'), help='pixels')
    cost.add_argument('--batch-size', type=int, default=1, help='images')
    cost.add_argument('--rounds', type=int, default=7, help='rounds over all encodings, whose median is taken')
    cost.add_argument('--out', type=Path, default='work_dirs/compare_encodings/cost.json', help='JSON file')

    windows = add_command('windows', 'train at one window, then evaluate at a larger one, with and without fine-tuning')
    windows.add_argument('--config', default=str(ROOT / 'configs/demo/upernet_swin-rpe-nano_shapes.py'),
                         help='config of a segmentor on SwinRPE that is trained by iterations')
    windows.add_argument('--encodings', nargs='+', default=plain_encodings(), help='names in configs/rpe/_base_')
    windows.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2], help='seeds')
    windows.add_argument('--iters', type=int, default=150, help='iterations of training')
    windows.add_argument('--finetune-iters', type=int, default=40, help='iterations at the new window')
    windows.add_argument('--window', type=int, default=7, help='window of the training, in tokens')
    windows.add_argument('--new-window', type=int, default=12, help='larger window')
    windows.add_argument('--val-images', type=int, default=50, help='images of the validation set, the first ones')
    windows.add_argument('--out', type=Path, default='work_dirs/compare_encodings/windows.json',
                         help='JSON file; what it holds already is not measured again')
    windows.add_argument('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE',
                         help="settings that override the config's")

    table = add_command('table', 'results of windows as Markdown: mean, and the least and the largest of all seeds')
    table.add_argument('results', nargs='+', type=Path, help='JSON files')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    {'cost': cost, 'windows': windows, 'table': table}[args.command](args)


def all_encodings() -> list[str]:
    """Names of all encodings, those that others are compared with first."""
    names = (path.stem for path in ENCODINGS.glob('*.py'))
    return sorted(names, key=lambda name: (name not in ('none', REFERENCE), name))


def plain_encodings() -> list[str]:
    """Those that change nothing of the backbone but its encoding."""
    return [name for name in all_encodings() if set(backbone_of(name)) == {'rpe'}]


def backbone_of(encoding: str) -> dict:
    """The backbone's arguments that make an encoding."""
    if encoding not in all_encodings():
        raise InputError(f'--encodings must be of {", ".join(all_encodings())}; got {encoding}')
    return Config.fromfile(ENCODINGS / f'{encoding}.py').backbone.to_dict()


def check_positive(args: Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) < 1:
            raise InputError(f'--{name.replace("_", "-")} must be at least 1, got {getattr(args, name)}')


def write_json(path: Path, content: dict) -> None:
    """Write a file that is there whole or not at all."""
    WholeFileBackend().put(json.dumps(content, indent=1).encode(), path)


# ---- cost


def cost(args: Namespace) -> None:
    """Print and write what each encoding costs."""
    check_positive(args, 'rounds', 'batch_size')
    if min(args.image_size) < 1:
        raise InputError(f'--image-size must be two sides of at least 1 pixel, got {args.image_size}')
    torch.set_num_threads(1)
    torch.manual_seed(0)
    names = [REFERENCE, *(name for name in args.encodings if name != REFERENCE)]
    found = {name: {f'parameters, {arch}': encoding_parameters(build_backbone(name, arch)) for arch in ARCHS}
             for name in names}
    images = torch.randn(args.batch_size, 3, *args.image_size)
    for name in names:
        found[name]['GMAC'] = gmac(build_backbone(name, args.arch), images)
    models = {name: build_backbone(name, args.arch) for name in names}
    for name, times in cpu_times(models, images, args.rounds).items():
        found[name].update(times)
    settings = {key: getattr(args, key) for key in ('arch', 'image_size', 'batch_size', 'rounds')}
    write_json(args.out, dict(settings=settings, cost=found))
    print_cost(found, f'Swin-RPE {args.arch}, {args.batch_size} x {args.image_size[0]}x{args.image_size[1]} px')
    print(f'written: {args.out}')


def build_backbone(encoding: str, arch: str, **options) -> SwinRPE:
    """A backbone of an arch with an encoding; SwinV2's configs name an arch of their own."""
    own = backbone_of(encoding)
    arch = own.pop('arch', 'nano').replace('nano', arch)
    backbone = SwinRPE(arch=arch, drop_path_rate=0., **own, **options)
    backbone.init_weights()
    return backbone


def encoding_parameters(backbone: nn.Module) -> int:
    """How many numbers the encodings of a backbone learn."""
    encodings = [module for module in backbone.modules() if isinstance(module, RelativePositionEncoding)]
    return sum(parameter.numel() for parameter in {p for encoding in encodings for p in encoding.parameters()})


@torch.no_grad()
def gmac(backbone: SwinRPE, images: Tensor) -> float:
    """Multiply-accumulates of convolutions and matrix products in a forward pass, in G."""
    return count_multiply_adds(backbone.eval(), images.clone()).multiply_adds[''] / 1e9


def cpu_times(models: dict[str, SwinRPE], images: Tensor, rounds: int) -> dict[str, dict[str, float]]:
    """CPU seconds of a forward pass, and of one with a backward pass, and both as ratios to the reference's.

    All models take turns in every round, so that a machine that slows down slows all of them.
    """
    kinds = {'forward': forward_once, 'forward + backward': train_once}
    times = {name: {kind: [] for kind in kinds} for name in models}
    for index in range(rounds + 1):
        for name, model in models.items():
            for kind, run in kinds.items():
                start = time.process_time()
                run(model, images)
                if index > 0:  # the first round fills the caches
                    times[name][kind].append(time.process_time() - start)
    results = {}
    for name in models:
        results[name] = {}
        for kind in kinds:
            seconds, reference = times[name][kind], times[REFERENCE][kind]
            results[name][f'{kind}, s'] = median(seconds)
            results[name][f'{kind}, ratio'] = median(own / other for own, other in zip(seconds, reference))
    return results


@torch.no_grad()
def forward_once(model: SwinRPE, images: Tensor) -> None:
    model.eval()(images)


def train_once(model: SwinRPE, images: Tensor) -> None:
    sum(features.mean() for features in model.train()(images)).backward()
    model.zero_grad()


def print_cost(found: dict[str, dict], title: str) -> None:
    shown = Table('encoding', title=title)
    for column in (*(f'parameters, {arch}' for arch in ARCHS), 'GMAC', 'forward', 'forward + backward'):
        shown.add_column(column, justify='right')
    for name, row in found.items():
        shown.add_row(name, *(f'{row[f"parameters, {arch}"]:,}' for arch in ARCHS), f'{row["GMAC"]:.3f}',
                      f'{row["forward, ratio"]:.2f}', f'{row["forward + backward, ratio"]:.2f}')
    Console(width=120).print(shown)
    print(f'Times are ratios to {REFERENCE!r}, of CPU time on one thread.')


# ---- windows


class Results:
    """The mIoU of every encoding, seed and step, in a JSON file that is written anew after each step."""

    def __init__(self, path: Path, settings: dict):
        self.path, self.content = path, dict(settings=settings, mIoU={}, seconds={})
        if not path.is_file():
            return
        found = read_results(path)
        other = [name for name, value in settings.items() if found['settings'].get(name) != value]
        if other:
            raise InputError(f'--out {path} holds results for other settings ({", ".join(other)}): name another file')
        self.content = found

    def missing(self, encoding: str, seed: int, steps: Iterable[str]) -> list[str]:
        have = self.content['mIoU'].get(encoding, {}).get(str(seed), {})
        return [step for step in steps if step not in have]

    def add(self, encoding: str, seed: int, step: str, value: float | None, seconds: float) -> None:
        for kind, number in (('mIoU', value), ('seconds', round(seconds, 2))):
            self.content[kind].setdefault(encoding, {}).setdefault(str(seed), {})[step] = number
        write_json(self.path, self.content)
        shown = 'not possible' if value is None else f'mIoU {value:5.2f}'
        print(f'seed {seed}  {encoding:14}  {step:10}  {shown}  ({seconds:.1f} s)', flush=True)


def read_results(path: Path) -> dict:
    """Read a file that ``windows`` has written."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f'results {path} do not exist') from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or not {'settings', 'mIoU'} <= set(content):
        raise InputError(f'{path} is no JSON file that "windows" has written')
    return content


class StartAtNewWindow(Hook):
    """Starts a training from weights, with another window than theirs."""

    def __init__(self, weights: Path, window: int):
        self.weights, self.window = weights, window

    def before_train(self, runner: Runner) -> None:
        load_weights(runner, self.weights)
        runner.model.backbone.set_window_size(self.window, FINE_TUNE_MODE)


def load_weights(runner: Runner, weights: Path) -> None:
    load_checkpoint(runner.model, str(weights), map_location='cpu', strict=True, logger=runner.logger)


def windows(args: Namespace) -> None:
    """Measure what the results file lacks; seeds come one after the other, so that no encoding is ahead of the rest."""
    check_positive(args, 'iters', 'finetune_iters', 'window', 'val_images')
    if args.new_window <= args.window:
        raise InputError(f'--new-window must be larger than --window {args.window}, got {args.new_window}')
    steps = {encoding: steps_of(encoding) for encoding in args.encodings}
    names = ('iters', 'finetune_iters', 'window', 'new_window', 'val_images')
    settings = dict(config=Path(args.config).name, **{name: getattr(args, name) for name in names})
    settings['cfg_options'] = json.loads(json.dumps(args.cfg_options or {}, default=str))
    results = Results(args.out, settings)
    cfg = base_config(args)
    for seed in args.seeds:
        for encoding in args.encodings:
            missing = results.missing(encoding, seed, steps[encoding])
            if missing:
                measure(cfg, args, encoding, seed, missing, results)
    print(f'written: {args.out}')
    print(markdown([results.content]))


def steps_of(encoding: str) -> list[str]:
    """What is measured of an encoding: modes differ only where there is a table over offsets."""
    modules = build_backbone(encoding, 'nano').modules()
    has_tables = any(m.offset_tables() for m in modules if isinstance(m, RelativePositionEncoding))
    return [TRAINED, *(MODES if has_tables else [AS_IT_IS]), FINE_TUNED]


def base_config(args: Namespace) -> Config:
    """The config, made quiet, and with its data found and checked."""
    cfg = load_config(args.config, args.cfg_options)
    require(cfg, 'model', 'train_dataloader', 'train_cfg', 'optim_wrapper', 'val_dataloader', 'val_evaluator')
    if task_of(cfg) != 'segmentation' or 'max_iters' not in cfg.train_cfg:
        raise InputError(f'{args.config} must be of a segmentor that is trained by iterations (train_cfg.max_iters)')
    if type_name(cfg.model.backbone) != 'SwinRPE':
        raise InputError(f'{args.config} has the backbone {type_name(cfg.model.backbone)}; this tool needs SwinRPE')
    cfg.launcher, cfg.log_level = 'none', 'ERROR'
    cfg.visualizer = dict(type='Visualizer', vis_backends=None)
    cfg.default_hooks.checkpoint = None
    cfg.default_hooks.pop('visualization', None)
    for split in ('train', 'val'):
        cfg[f'{split}_dataloader'].update(num_workers=0, persistent_workers=False)
    cfg.val_dataloader.dataset.indices = args.val_images
    for note in prepare_run(cfg, ['train', 'val']):
        print(note)
    return cfg


def run_config(cfg: Config, args: Namespace, encoding: str, seed: int, step: str) -> Config:
    """The config of a training or a fine-tuning, with its schedule squeezed into the iterations that it gets."""
    cfg = deepcopy(cfg)
    iters = args.iters if step == TRAINED else args.finetune_iters
    cfg.model.backbone.update(backbone_of(encoding), window_size=args.window)
    factor = iters / cfg.train_cfg.max_iters
    for scheduler in cfg.param_scheduler:
        scheduler.update({key: round(scheduler[key] * factor) for key in ('begin', 'end', 'T_max') if key in scheduler})
    cfg.param_scheduler = [scheduler for scheduler in cfg.param_scheduler if scheduler.begin < scheduler.end]
    if step == FINE_TUNED:
        cfg.optim_wrapper.optimizer.lr *= FINE_TUNE_LR
    cfg.train_cfg.update(max_iters=iters, val_begin=iters + 1)  # evaluated when and where measure() says
    cfg.randomness = dict(seed=seed)
    cfg.work_dir = str(work_dir(args, encoding, seed))
    cfg.experiment_name = f'{encoding}-seed{seed}-{step}'
    return cfg


def work_dir(args: Namespace, encoding: str, seed: int) -> Path:
    return args.out.with_suffix('') / f'{encoding}-seed{seed}'


def measure(cfg: Config, args: Namespace, encoding: str, seed: int, missing: list[str], results: Results) -> None:
    """Train where that is missing, then take the steps that are missing."""
    weights = work_dir(args, encoding, seed) / 'trained.pth'
    start = time.time()

    def add(step: str, value: float | None) -> None:
        nonlocal start
        results.add(encoding, seed, step, value, time.time() - start)
        start = time.time()

    runner = build_runner(run_config(cfg, args, encoding, seed, TRAINED), [])
    if TRAINED in missing or not weights.is_file():
        runner.train()
        runner.save_checkpoint(str(weights.parent), weights.name, save_optimizer=False, save_param_scheduler=False,
                               by_epoch=False, backend_args=dict(backend='swin_rpe_mm.whole_files'))
        add(TRAINED, evaluate(runner))
    for mode in [step for step in missing if step not in (TRAINED, FINE_TUNED)]:
        runner.model.backbone.set_window_size(args.window)
        load_weights(runner, weights)
        try:
            runner.model.backbone.set_window_size(args.new_window, FINE_TUNE_MODE if mode == AS_IT_IS else mode)
        except InputError:  # geometric has limits
            add(mode, None)
        else:
            add(mode, evaluate(runner))
    if FINE_TUNED in missing:
        runner = build_runner(run_config(cfg, args, encoding, seed, FINE_TUNED), [])
        runner.register_hook(StartAtNewWindow(weights, args.new_window))
        runner.train()
        add(FINE_TUNED, evaluate(runner))
    weights.unlink()


def evaluate(runner: Runner) -> float:
    """mIoU of the validation images, in percent."""
    return float(runner.val_loop.run()['mIoU'])


# ---- table


def table(args: Namespace) -> None:
    print(markdown([read_results(path) for path in args.results]))


def markdown(contents: Sequence[dict]) -> str:
    """One table for all results of the same settings."""
    groups: dict[str, dict] = {}
    for content in contents:
        merged = groups.setdefault(json.dumps(content['settings'], sort_keys=True), {})
        for encoding, seeds in content['mIoU'].items():
            for seed, steps in seeds.items():
                merged.setdefault(encoding, {}).setdefault(seed, {}).update(steps)
    return '\n\n'.join(markdown_of(json.loads(settings), values) for settings, values in groups.items())


def markdown_of(settings: dict, values: dict[str, dict]) -> str:
    old, new = settings['window'], settings['new_window']
    shown = [step for step in STEPS if any(step in steps for seeds in values.values() for steps in seeds.values())]
    titles = [f'{old}' if step == TRAINED else f'{new}, {step}' for step in shown]
    title = (f'mIoU on {settings["val_images"]} images: `{settings["config"]}`, {settings["iters"]} iterations at '
             f'window {old}, then at {new}; fine-tuned by {settings["finetune_iters"]} more, from {FINE_TUNE_MODE}.')
    rows = [title, '', '| encoding | seeds | ' + ' | '.join(titles) + ' |', '|---|' + '---:|' * (1 + len(shown))]
    for encoding, seeds in values.items():
        cells = [cell([steps[step] for steps in seeds.values() if step in steps]) for step in shown]
        rows.append(f'| {encoding} | {len(seeds)} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(rows)


def cell(values: list[float | None]) -> str:
    """Mean, and the least and the largest value if they differ."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return '-'
    text = f'{mean(numbers):.1f}'
    return text if len(numbers) == 1 else f'{text} ({min(numbers):.1f}..{max(numbers):.1f})'


if __name__ == '__main__':
    run_tool(main)
