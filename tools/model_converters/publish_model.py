"""Make the file of a model to be given away from a checkpoint of its training.

Keeps the weights and plain values about them, such as the config and the classes; leaves out the optimizer, schedulers,
log history and all else that only training needs. The weights of a training with an averaged model are the averaged
ones. The file can be read without running code (torch.load with weights_only=True), and its name tells the start of its
SHA-256, by which downloads are checked.
"""
from __future__ import annotations

import hashlib
import io
import os
from argparse import ArgumentParser, Namespace
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from swin_rpe_mm.checkpoints import read_checkpoint
from swin_rpe_mm.checkpoints.files import TRUST_HELP
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.whole_files import WholeFileBackend
from tools.lib.cli import run_tool


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('source', metavar='IN', help='checkpoint of a training, or a state dict')
    parser.add_argument('out', metavar='OUT', help='OUT.pth or OUT: OUT-HASH.pth is written')
    parser.add_argument('--trust-checkpoint', action='store_true', help=TRUST_HELP)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> str:
    """Return the name of the file."""
    args = parse_args(argv)
    checkpoint = read_checkpoint(args.source, trust=args.trust_checkpoint)
    left_out = sorted(set(checkpoint) - {'state_dict', 'meta'}) if 'state_dict' in checkpoint else []
    published = dict(meta=plain(checkpoint.get('meta', {})), state_dict=state_dict_of(checkpoint, args.source))
    stream = io.BytesIO()  # a file would hold its own name, and so the hash of the same weights would depend on it
    torch.save(published, stream)
    content = stream.getvalue()
    path = f'{args.out.removesuffix(".pth")}-{hashlib.sha256(content).hexdigest()[:8]}.pth'
    try:
        WholeFileBackend().put(content, path)
    except OSError as error:
        raise InputError(f'{path} cannot be written: {error.strerror}') from error
    without = f', without {", ".join(left_out)}' if left_out else ''
    print(f'{path}: {len(published["state_dict"])} tensors, {len(content) / 2**20:.1f} MiB{without}')
    return path


def state_dict_of(checkpoint: Mapping, source: str) -> OrderedDict:
    """The weights, on the CPU, each with no more than its own values, and the notes of their modules.

    Raises:
        InputError: If there are none, or they hold something else than tensors.
    """
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, Mapping) or not weights:
        raise InputError(f'{source} holds no weights')
    for key, value in weights.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(f'{source} has no state_dict of tensors, since {key} is of the type '
                             f'{type(value).__name__}; convert_checkpoint.py reads the files of other projects')
    own = OrderedDict((key, value.detach().cpu().clone()) for key, value in weights.items())
    own._metadata = OrderedDict((key, plain(note)) for key, note in getattr(weights, '_metadata', {}).items())
    return own


_NOTHING = object()


def plain(value: Any) -> Any:
    """Values that weights-only loading can read: what has an equal of Python's own is replaced, the rest left out."""
    if isinstance(value, Mapping):
        parts = {str(key): plain(part) for key, part in value.items() if key != 'hook_msgs'}  # paths of the training
        return {key: part for key, part in parts.items() if part is not _NOTHING}
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [part for part in map(plain, value) if part is not _NOTHING]
        return tuple(parts) if isinstance(value, tuple) else parts
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, bytes, torch.Tensor)) else _NOTHING


if __name__ == '__main__':
    run_tool(main)
