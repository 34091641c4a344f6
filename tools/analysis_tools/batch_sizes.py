"""Evaluate a checkpoint at several test batch sizes, with and without what makes a model ignore batch padding.

Images of different sizes are filled up with zeros to the size of their batch, so a model's results depend on the test
batch size unless it ignores them: see docs/padding.md. Example:

  python tools/analysis_tools/batch_sizes.py CONFIG CHECKPOINT --batch-sizes 1 2 8 --out table.md
"""
from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config, DictAction
from mmengine.device import get_device
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from rich.console import Console
from rich.table import Table
from torch import nn
from tqdm import tqdm

from swin_rpe_mm import make_padding_invariant
from swin_rpe_mm.checkpoints.files import TRUST_HELP
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import load_config, require
from swin_rpe_mm.whole_files import WholeFileBackend
from tools.lib.batch_sizes import evaluate, take_mixed_sizes
from tools.lib.cli import run_tool
from tools.lib.runs import prepare_run

SECONDS = 'seconds per image'


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file of a detector or segmentor')
    parser.add_argument('checkpoint', help='its checkpoint')
    parser.add_argument('--batch-sizes', nargs='+', type=int, default=[1, 2, 8], metavar='N',
                        help='images per batch (default: 1 2 8)')
    parser.add_argument('--limit', type=int, metavar='N', help='test on the first N images only')
    parser.add_argument('--out', nargs='+', type=Path, default=[], metavar='FILE',
                        help='files to write the table to, .json or .md')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE',
                        help="settings that override the config's")
    parser.add_argument('--trust-checkpoint', action='store_true', help=TRUST_HELP)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[dict]:
    """Print and write the table; return its rows."""
    args = parse_args(argv)
    for size in args.batch_sizes:
        if size < 1:
            raise InputError(f'--batch-sizes must be 1 or more, got {size}')
    if args.limit is not None and args.limit < 1:
        raise InputError(f'--limit must be 1 or more, got {args.limit}')
    for path in args.out:
        if path.suffix not in ('.json', '.md'):
            raise InputError(f'--out must end in .json or .md, got {path}')
    cfg = load_config(args.config, args.cfg_options)
    require(cfg, 'model', 'test_dataloader', 'test_evaluator')
    if args.limit is not None:
        cfg.test_dataloader.dataset.indices = args.limit
    cfg.launcher, cfg.load_from = 'none', args.checkpoint
    notes = prepare_run(cfg, ['test'], args.trust_checkpoint) + take_mixed_sizes(cfg)
    for note in notes:
        print(note)
    init_default_scope(cfg.get('default_scope', 'mmdet'))
    rows = measure(build(cfg, args), cfg, args.batch_sizes)
    show(rows, args)
    for path in args.out:
        text = json.dumps(rows, indent=1) if path.suffix == '.json' else markdown(rows)
        WholeFileBackend().put(f'{text}\n'.encode(), path)
        print(f'written: {path}')
    return rows


def build(cfg: Config, args: Namespace) -> nn.Module:
    """The model with its weights; all of them, or the table would be about another one."""
    model = MODELS.build(cfg.model)
    try:
        load_checkpoint(model, args.checkpoint, map_location='cpu', strict=True)
    except RuntimeError as error:
        raise InputError(f'checkpoint {args.checkpoint} does not fit the model of {args.config}: '
                         f'{" ".join(str(error).split())[:300]}') from error
    return model.to(get_device())


def measure(model: nn.Module, cfg: Config, batch_sizes: Sequence[int]) -> list[dict]:
    """A row for each batch size, first of the model as it is, then with padding ignored."""
    rows = []
    images = len(DATASETS.build(cfg.test_dataloader.dataset))
    with tqdm(total=2 * len(batch_sizes) * images, unit='image', leave=False, disable=None) as progress:
        for ignored in (False, True):
            if ignored:
                make_padding_invariant(model)
            for size in batch_sizes:
                progress.set_description(f'batches of {size}{", padding ignored" if ignored else ""}')
                found = evaluate(model, cfg, size, progress.update)
                rows.append({'padding ignored': ignored, 'batch size': size, **found})
    return rows


def cells(row: dict) -> list[str]:
    """A row as text: metrics to four decimals, the time in milliseconds."""
    shown = {**row, 'padding ignored': 'yes' if row['padding ignored'] else 'no', 'batch size': str(row['batch size']),
             SECONDS: f'{1000 * row[SECONDS]:.0f}'}
    return [value if isinstance(value, str) else f'{value:.4f}' for value in shown.values()]


def columns(row: dict) -> list[str]:
    return ['ms per image' if name == SECONDS else name for name in row]


def show(rows: list[dict], args: Namespace) -> None:
    table = Table(title=f'{Path(args.config).name}, {Path(args.checkpoint).name}', title_justify='left')
    for name in columns(rows[0]):
        table.add_column(name, justify='right')
    for row in rows:
        table.add_row(*cells(row), end_section=row is rows[len(rows) // 2 - 1])
    Console(width=120).print(table)


def markdown(rows: list[dict]) -> str:
    names = columns(rows[0])
    lines = [names, ['---:'] * len(names), *map(cells, rows)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


if __name__ == '__main__':
    run_tool(main)
