"""Train SwinRPE and the peer's SwinTransformer with the same recipe, budget and seed, and compare what they reach.

    python tests/real_data/compare_backbones.py nuclei WORK_DIR --epochs 12
    python tests/real_data/compare_backbones.py camvid WORK_DIR --iters 1000

The data are looked for in the folder SWIN_RPE_DATA, by default ../shared/data beside the repository.
"""
from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from mmengine.config import Config
from mmengine.runner import Runner

from swin_rpe_mm.models.config import ARCHS
from tools.lib.cli import run_tool

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get('SWIN_RPE_DATA', ROOT.parent / 'shared' / 'data'))
PREPROCESSORS = {'mmdet': 'DetDataPreprocessor', 'mmseg': 'SegDataPreProcessor'}


def parse_args() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('data', choices=['nuclei', 'camvid'])
    parser.add_argument('work_dir')
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument('--epochs', type=int, help='for nuclei')
    budget.add_argument('--iters', type=int, help='for camvid')
    parser.add_argument('--backbones', nargs='+', default=['SwinRPE', 'SwinTransformer'])
    parser.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


def config_for(args: Namespace, backbone: str) -> Config:
    """The data set's config, cut to the budget, on one of the two backbones."""
    cfg = Config.fromfile(next((ROOT / 'configs' / args.data).glob('*.py')))
    old_root = cfg.train_dataloader.dataset.data_root
    cfg = Config.fromstring(cfg.pretty_text.replace(old_root, f'{DATA / args.data}/'), '.py')
    if backbone == 'SwinTransformer':
        embed_dims, depths, num_heads = ARCHS['nano']
        cfg.model.backbone = dict(
            type=f'{cfg.default_scope}.SwinTransformer', embed_dims=embed_dims, depths=depths, num_heads=num_heads,
            drop_path_rate=cfg.model.backbone.drop_path_rate)
        cfg.model.data_preprocessor.type = f'{cfg.default_scope}.{PREPROCESSORS[cfg.default_scope]}'
    unit, budget = ('epochs', args.epochs) if args.epochs else ('iters', args.iters)
    full = cfg.train_cfg[f'max_{unit}']
    cfg.train_cfg.update({f'max_{unit}': budget, 'val_interval': budget})
    for scheduler in cfg.param_scheduler:
        for key in ('end', 'T_max'):
            if scheduler.get(key) == full:
                scheduler[key] = budget
    cfg.default_hooks.checkpoint = dict(type='CheckpointHook', by_epoch=unit == 'epochs', interval=budget)
    cfg.randomness = dict(seed=args.seed)
    cfg.work_dir = str(Path(args.work_dir, args.data, f'{backbone}-seed{args.seed}'))
    return cfg


def main() -> None:
    args = parse_args()
    for backbone in args.backbones:
        runner = Runner.from_cfg(config_for(args, backbone))
        runner.train()
        metrics = runner.test()
        shown = {key: round(float(value), 4) for key, value in metrics.items() if key.endswith('mAP') or key == 'mIoU'}
        print(f'{args.data}, {backbone}, seed {args.seed}: {shown}', flush=True)


if __name__ == '__main__':
    run_tool(main)
