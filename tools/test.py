"""Evaluate a detector or a segmentor: ``python tools/test.py CONFIG CHECKPOINT``."""
from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from swin_rpe_mm.mm.configs import load_config, require, set_work_dir
from tools.lib.cli import add_common_arguments, export_local_rank, run_tool
from tools.lib.evaluation import augment_at_test_time, draw_predictions, write_predictions
from tools.lib.runs import build_runner, prepare_run


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description='Evaluate a detector or a segmentor.')
    add_common_arguments(parser)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--out', help='keep the predictions: a .pkl file for detection, a folder of label PNGs for segmentation')
    parser.add_argument('--show', action='store_true', help='show predictions on the screen')
    parser.add_argument('--show-dir', help='draw predictions into this folder')
    parser.add_argument('--wait-time', type=float, default=2, help='seconds that --show waits after each image')
    parser.add_argument('--tta', action='store_true', help='test-time augmentation')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict:
    """Return the metrics by name."""
    args = parse_args(argv)
    export_local_rank(args.local_rank)
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    require(cfg, 'model', 'test_dataloader', 'test_cfg', 'test_evaluator')
    set_work_dir(cfg, args.work_dir)
    cfg.load_from, cfg.resume = args.checkpoint, False
    notes = write_predictions(cfg, args.out) if args.out else []
    if args.show or args.show_dir:
        notes += draw_predictions(cfg, args.show, args.show_dir, args.wait_time)
    if args.tta:
        notes += augment_at_test_time(cfg)
    notes += prepare_run(cfg, ['test'], args.trust_checkpoint)
    return build_runner(cfg, notes).test()


if __name__ == '__main__':
    run_tool(main)
