"""When set-up counts as done: a file in .venv, written last, that names what it was made from."""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.setup.machine import Machine
from tools.setup.ops import LEVELS, choose

NAME = 'swin_rpe_mm-setup.json'


@dataclass(frozen=True)
class Stamp:
    """A finished set-up: its inputs (``key``), and which ops it built on which machine."""
    key: str
    level: str
    torch_cuda: str | None
    machine: Machine


def key_of(root: Path, files: Iterable[Path]) -> str:
    """Hash of the place and of the name and content of every file that set-up depends on."""
    digest = hashlib.sha256(str(root).encode())
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f'\n{file.relative_to(root)} {len(content)}\n'.encode() + content)
    return digest.hexdigest()


def inputs(root: Path) -> list[Path]:
    """The files that set-up depends on."""
    return [*root.glob('requirements/*.txt'), *root.glob('tools/setup/*.py')]


def write(venv: Path, stamp: Stamp) -> None:
    """Write the stamp in one piece, so that a half-written one never counts."""
    new = venv / (NAME + '.new')
    new.write_text(json.dumps(asdict(stamp)))
    os.replace(new, venv / NAME)


def read(venv: Path) -> Stamp | None:
    """The stamp of the last set-up that finished, or None."""
    try:
        fields = json.loads((venv / NAME).read_text())
        return Stamp(**{**fields, 'machine': Machine(**fields['machine'])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_done(stamp: Stamp | None, key: str, machine: Machine) -> bool:
    """Whether nothing is left to do: same inputs, and no better ops than those have become possible.

    A machine that lost something since (a login node without the GPU) keeps what was built.
    """
    if stamp is None or stamp.key != key:
        return False
    best = choose(machine, stamp.torch_cuda).level
    return machine == stamp.machine or LEVELS.index(best) <= LEVELS.index(stamp.level)
