"""The frame around every tool: arguments that all share, and one sentence for what a user can mend."""
from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable

from mmengine.config import DictAction

from swin_rpe_mm.checkpoints.files import TRUST_HELP
from swin_rpe_mm.errors import InputError
from tools.lib.processes import end_process

_UNKNOWN_TYPE = re.compile(r'([\w.]+) is not in the (\S+) registry')


def add_common_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that training and testing share."""
    parser.add_argument('config', help='config file')
    parser.add_argument('--work-dir', help='folder for logs and checkpoints; default: ./work_dirs/CONFIG_NAME')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='settings that override the config\'s, such as train_dataloader.batch_size=4 or key="[(a,b),(c,d)]"; '
        'quote lists and leave out blanks')
    parser.add_argument('--trust-checkpoint', action='store_true', help=TRUST_HELP)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by some launchers')


def export_local_rank(local_rank: int) -> None:
    """Put a rank that came as an argument where mmengine looks for it."""
    os.environ.setdefault('LOCAL_RANK', str(local_rank))


def run_tool(main: Callable[[], None]) -> None:
    """Run ``main``; print what a user can mend as ``error: SENTENCE`` and exit with status 2.

    Every other exception keeps its traceback.
    """
    try:
        main()
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(f'error: {sentence}', file=sys.stderr, flush=True)
        sys.exit(2)
    end_process()


def sentence_of(error: BaseException) -> str | None:
    """The sentence for people in an exception, or None if it is not of the kind that a user can mend.

    Registries and data loader workers raise an exception again, of the same type, with more text around it: the
    sentence is that of the first one.
    """
    if isinstance(error, InputError):
        while isinstance(error.__cause__ or error.__context__, InputError):
            error = error.__cause__ or error.__context__
        return str(error).rpartition(f'{InputError.__name__}: ')[2].strip()
    unknown = _UNKNOWN_TYPE.search(str(error)) if isinstance(error, KeyError) else None
    if unknown:
        return (f'the config names the type {unknown[1]!r}, which is not in the registry {unknown[2]}: check its '
                'spelling and that custom_imports names the module that defines it')
    return None
