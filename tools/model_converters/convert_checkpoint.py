"""Convert the weights of a Swin or SwinV2 backbone, whichever project they are from, to our layout or to another's.

Our models and tools load any of these files as they are; converting is for reading one with other tools, and for taking
our weights elsewhere. What is written is the state dict of the backbone alone, as for init_cfg. Necks and heads of a
detector or segmentor are left out: they have the same names in mmdet and mmseg as here.
"""
from __future__ import annotations

import io
from argparse import ArgumentParser, Namespace
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch

from swin_rpe_mm.checkpoints import read_checkpoint, to_mm_layout, unwrap
from swin_rpe_mm.checkpoints.export import TARGETS, note_windows, to_layout
from swin_rpe_mm.checkpoints.files import TRUST_HELP
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.whole_files import WholeFileBackend
from tools.lib.cli import run_tool


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        'source', metavar='IN', help='file or address: a backbone, or a whole model, of which the backbone is taken')
    parser.add_argument('out', metavar='OUT', help='file to write, .pth')
    parser.add_argument(
        '--to',
        choices=['ours', *TARGETS],
        default='ours',
        help="layout to write; mmdet's is mmseg's too, and timm's is that of 0.9 and later with num_classes=0 "
        '(default: %(default)s)')
    parser.add_argument('--prefix', help='what stands before the names of the backbone, where that is not plain')
    parser.add_argument('--force', action='store_true', help='overwrite OUT if it exists')
    parser.add_argument('--trust-checkpoint', action='store_true', help=TRUST_HELP)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    if Path(args.out).exists() and not args.force:
        raise InputError(f'{args.out} exists already; --force overwrites it')
    given = unwrap(read_checkpoint(args.source, trust=args.trust_checkpoint), args.prefix)
    weights, family = in_our_layout(given, args.source)
    notes = []
    if args.to != 'ours':
        try:
            weights, notes = to_layout(weights, args.to)
        except InputError as error:
            raise InputError(f'{args.source} cannot be converted: {error}') from error
    converted = sum(given.get(key) is not value for key, value in weights.items())
    write(weights, args.out)
    print(f'{args.source} (layout of {family}): {len(weights)} tensors, {converted} of them renamed, reordered or '
          f'added, written to {args.out} in the layout of {args.to}')
    for note in notes:
        print(f'note: {note}')


def in_our_layout(given: dict, source: str) -> tuple[dict, str]:
    """The weights as our models save them, with what is known of their windows in the metadata, and their family."""
    weights, family = to_mm_layout(given)
    if family == 'unknown':
        raise InputError(f'{source} holds no Swin that is known, or one under a name that --prefix must give')
    # other projects' notes are about modules of other names
    metadata = dict(given._metadata) if family == 'mm' else {}
    weights = OrderedDict(note_windows(weights, metadata))
    weights._metadata = OrderedDict(metadata)
    return weights, family


def write(weights: dict, out: str) -> None:
    """Write a state dict, each tensor with no more than its own values, to a file that appears when it is complete."""
    own = OrderedDict((key, value.detach().clone()) for key, value in weights.items())
    own._metadata = getattr(weights, '_metadata', OrderedDict())
    content = io.BytesIO()
    torch.save(own, content)
    try:
        WholeFileBackend().put(content.getvalue(), out)
    except OSError as error:
        raise InputError(f'{out} cannot be written: {error.strerror}') from error


if __name__ == '__main__':
    run_tool(main)
