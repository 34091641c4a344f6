"""Train a detector or a segmentor: ``python tools/train.py CONFIG``."""
from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from swin_rpe_mm.mm.configs import (
    add_tensorboard,
    check_optimizer,
    load_config,
    require,
    save_whole_checkpoints,
    scale_lr,
    set_resume,
    set_work_dir,
    use_amp,
)
from tools.lib.cli import add_common_arguments, export_local_rank, run_tool
from tools.lib.runs import build_runner, prepare_run


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description='Train a detector or a segmentor.')
    add_common_arguments(parser)
    parser.add_argument('--amp', action='store_true', help='train in mixed precision; needs a GPU')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate with the batch size, relative to auto_scale_lr.base_batch_size in the config')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from this checkpoint; without a value, from the last one in the work folder')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    export_local_rank(args.local_rank)
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    require(cfg, 'model', 'train_dataloader', 'train_cfg', 'optim_wrapper')
    set_work_dir(cfg, args.work_dir)
    check_optimizer(cfg)
    use_amp(cfg, args.amp)
    if args.auto_scale_lr:
        scale_lr(cfg)
    notes = set_resume(cfg, args.resume)
    notes += add_tensorboard(cfg)
    save_whole_checkpoints(cfg)
    notes += prepare_run(cfg, ['train', 'val'] if cfg.get('val_cfg') else ['train'], args.trust_checkpoint)
    build_runner(cfg, notes).train()


if __name__ == '__main__':
    run_tool(main)
