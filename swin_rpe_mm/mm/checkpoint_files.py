"""Checkpoint files: checked before they are read, found again after a crash."""
from __future__ import annotations

import os
import zipfile
from pathlib import Path

from mmengine.runner import CheckpointLoader

from ..checkpoints import read_checkpoint
from ..checkpoints.files import is_safetensors
from ..errors import InputError

_ZIP, _PICKLE = b'PK\x03\x04', b'\x80'


def read_safely(trust: bool = False) -> None:
    """Have mmengine read checkpoints by :func:`~swin_rpe_mm.checkpoints.read_checkpoint`.

    Its own loaders call ``torch.load`` in ways that depend on its release: some refuse its own log history, some fall
    back to full unpickling, which runs code.
    """

    # mmengine's log takes what follows "load_from_" in the name
    def load_from_file(filename: str, map_location=None, **_) -> dict:
        return read_checkpoint(filename, map_location, trust)

    def load_from_http(filename: str, map_location=None, **_) -> dict:
        return read_checkpoint(filename, map_location, trust)

    CheckpointLoader.register_scheme(prefixes='', loader=load_from_file, force=True)
    CheckpointLoader.register_scheme(prefixes=('http://', 'https://'), loader=load_from_http, force=True)


def fault_of_checkpoint(path: str) -> str | None:
    """What keeps a file from being a checkpoint, read from its first and last bytes; None if nothing does."""
    if not os.path.isfile(path):
        return 'does not exist'
    with open(path, 'rb') as file:
        head = file.read(4)
    if not head:
        return 'is empty'
    if head == _ZIP:
        return None if zipfile.is_zipfile(path) else 'is cut short'
    if is_safetensors(path):
        return None
    return None if head[:1] == _PICKLE else 'is not a PyTorch checkpoint'


def check_checkpoint(path: str) -> None:
    """Raise :class:`InputError` if a local file is no checkpoint; URLs are left to the loader."""
    fault = None if '://' in path else fault_of_checkpoint(os.path.expanduser(path))
    if fault:
        raise InputError(f'checkpoint {path} {fault}')


def find_resumable(work_dir: str) -> str | None:
    """The checkpoint to resume from: the one that ``last_checkpoint`` names, or else the newest whole one."""
    note = Path(work_dir, 'last_checkpoint')
    named = [note.read_text().strip()] if note.is_file() else []
    found = [path for pattern in ('epoch_*.pth', 'iter_*.pth') for path in Path(work_dir).glob(pattern)]
    newest_first = sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return next((str(path) for path in [*named, *newest_first] if fault_of_checkpoint(str(path)) is None), None)
