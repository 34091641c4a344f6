"""Put the model of any MMDetection or MMSegmentation config on SwinRPE: ``python tools/swap_backbone.py CONFIG OUT``.

The new config inherits from the old one and holds the differences only. It trains with tools/train.py here and with
upstream's. Every change is printed.
"""
from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config, DictAction

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import check_ops, load_config
from swin_rpe_mm.mm.swap import Swap, swap_backbone, write_config
from swin_rpe_mm.mm.swap.write import configs_of
from swin_rpe_mm.models.config import ARCHS
from tools.lib.cli import run_tool


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('config', metavar='CONFIG', help='config file, or mmdet::NAME or mmseg::NAME of a shipped one')
    parser.add_argument('out', metavar='OUT', help='config file to write, .py')
    parser.add_argument(
        '--arch',
        choices=ARCHS,
        help='size of the backbone (default: tiny; a model that has Swin already keeps its sizes)')
    parser.add_argument(
        '--rpe',
        nargs='+',
        metavar='TYPE',
        help="relative position encodings, whose biases are summed; none for none (default: the arch's own)")
    parser.add_argument('--window-size', type=int, metavar='N', help='window in tokens (default: 7, 8 for SwinV2)')
    parser.add_argument(
        '--pretrained',
        default='default',
        metavar='URL|PATH',
        help='weights of the backbone; none for random ones (default: the published ones of the arch)')
    parser.add_argument('--drop-path', type=float, metavar='P', help='(default: that of the published recipes)')
    parser.add_argument(
        '--keep-optimizer', action='store_true', help='leave optimizer, learning rate and schedule as they are')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='settings of CONFIG to override first')
    parser.add_argument('--flat', action='store_true', help='write a whole config that inherits from nothing')
    parser.add_argument(
        '--check',
        action='store_true',
        help='build the model, and run one training step and one test step on random images')
    parser.add_argument('--force', action='store_true', help='overwrite OUT if it exists')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    if Path(args.out).suffix != '.py':
        raise InputError(f'OUT must be the name of a config, which ends in .py, got {args.out}')
    if Path(args.out).exists() and not args.force:
        raise InputError(f'{args.out} exists already; --force overwrites it')
    source = _read(args.config, args.cfg_options)
    check_ops(source)
    swap = swap_backbone(
        source,
        arch=args.arch,
        rpe=_encoding(args.rpe),
        window_size=args.window_size,
        pretrained=None if args.pretrained == 'none' else args.pretrained,
        drop_path_rate=args.drop_path,
        keep_optimizer=args.keep_optimizer)
    for note in swap.notes:
        print(note)
    flat = args.flat or bool(args.cfg_options)  # what was overridden is no difference to the source
    for note in write_config(swap, args.out, flat):
        print(note)
    print(f'written to {args.out}')
    if args.check:
        print(_check(swap))


def _read(name: str, options: dict | None) -> Config:
    """A file, or ``PACKAGE::NAME`` of one that an installed package ships. mmengine reads such names too, but installs
    a package that it does not find, and does not find the forks."""
    if '::' not in name:
        return load_config(name, options)
    package, _, path = name.partition('::')
    folder = configs_of(package)
    if folder is None:
        raise InputError(f'{name} cannot be read: no package {package} is installed that ships configs')
    return load_config(str(folder / path), options)


def _encoding(names: list[str] | None) -> list[dict] | dict | str | None:
    if names is None:
        return 'default'
    if names == ['none']:
        return None
    encodings = [dict(type=name) for name in names]
    return encodings[0] if len(encodings) == 1 else encodings


def _check(swap: Swap) -> str:
    from swin_rpe_mm.mm.swap.check import CheckFailed, build, check, of_package, prepare
    try:
        result = check(swap.cfg)
    except CheckFailed as error:
        raise InputError(f'the config is written, but {" ".join(str(error).split())}') from error
    with of_package(swap.source):
        before = sum(parameter.numel() for parameter in build(prepare(swap.source)).parameters())
    losses = ', '.join(f'{name} {value:.4g}' for name, value in result.losses.items()) or 'none'
    return (f'parameters: {before:,} before, {result.parameters:,} now, {result.backbone_parameters:,} of them in the '
            f'backbone\ntraining step: losses {losses}\ntest step: {result.predictions}')


if __name__ == '__main__':
    run_tool(main)
