"""Checkpoint files: read without running code, downloaded whole."""
import hashlib
import os
import re
from contextlib import nullcontext
from http.client import HTTPException
from pathlib import Path
from pickle import UnpicklingError
from typing import Callable, Optional, Union
from urllib.parse import urlparse
from urllib.request import urlopen

import numpy as np
import torch
from mmengine.dist import barrier, get_dist_info
from mmengine.logging import HistoryBuffer, print_log
from rich.progress import wrap_file
from torch import nn

from ..errors import InputError

TRUST_HELP = ('read the checkpoint by full unpickling, which runs whatever code its author put into it: needed by '
              'files that hold more than tensors and plain values, and safe only for those you trust')


def read_checkpoint(source: Union[str, Path], map_location='cpu', trust: bool = False) -> dict:
    """Read a PyTorch or safetensors file, local or behind an ``http(s)`` address.

    Only tensors, plain values and what mmengine saves beside weights are read. A file with anything else could run
    code, and is refused.

    Args:
        source (str | Path): A path or an address.
        map_location: As of ``torch.load``.
        trust (bool): Read such a file all the same, running what it holds.

    Raises:
        InputError: If it is not there, cannot be downloaded, is no checkpoint or only part of one, or needs ``trust``.
    """
    source = str(source)
    path = download(source) if urlparse(source).scheme in ('http', 'https') else Path(source).expanduser()
    if not path.is_file():
        raise InputError(f'the checkpoint {source} does not exist')
    content = _read(source, path, map_location, trust)
    if isinstance(content, nn.Module):
        content = content.state_dict()
    if not isinstance(content, dict):
        raise InputError(f'the checkpoint {source} holds a {type(content).__name__}, no state dict')
    return content


def _read(source: str, path: Path, map_location, trust: bool):
    try:
        if is_safetensors(path):
            return _read_safetensors(path, map_location)
        if trust:
            return torch.load(path, map_location=map_location, weights_only=False)
        # torch before 2.5 reads no more than tensors without trust
        allow = getattr(torch.serialization, 'safe_globals', lambda _: nullcontext())
        with allow(mmengine_globals()):
            return torch.load(path, map_location=map_location, weights_only=True)
    except UnpicklingError as error:
        needed = re.search(r'(?:GLOBAL|global) `?([\w.]+)', str(error))
        if not needed:
            raise InputError(_broken(source)) from error
        raise InputError(f'the checkpoint {source} holds {needed[1]}, which only full unpickling can read, and that '
                         'runs any code in the file: if you trust its author, say so with trust=True in init_cfg, or '
                         '--trust-checkpoint') from error
    except InputError:
        raise
    except Exception as error:  # a reader of garbage fails in any way
        if 'CUDA' in str(error):
            raise
        raise InputError(_broken(source)) from error


def mmengine_globals() -> list:
    """What mmengine's own checkpoints hold besides tensors: its log history, and NumPy's scalars and arrays."""
    core = np._core if hasattr(np, '_core') else np.core
    dtypes = {type(np.dtype(kind)) for kind in (*np.typecodes['AllInteger'], *np.typecodes['Float'], '?')}
    numbers = [np.ndarray, np.dtype, core.multiarray._reconstruct, core.multiarray.scalar, *dtypes]
    return [HistoryBuffer, _statistic, *numbers]


def _statistic(owner: type, name: str) -> Callable:
    """A log history names its own methods by ``getattr``, with which a file could reach anything else."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise UnpicklingError(f'Unsupported global: GLOBAL builtins.getattr of {name}')
    return getattr(owner, name)


_statistic.__module__, _statistic.__name__, _statistic.__qualname__ = 'builtins', 'getattr', 'getattr'


def download(url: str) -> Path:
    """Download a file once, into torch's cache; in a distributed run, one process per machine does.

    It appears under its name only when it is complete. Where the name holds the start of its SHA-256, as in
    ``model-0123abcd.pth``, it is checked, and one that was there before and does not match is downloaded anew.

    Raises:
        InputError: If the address gives nothing, or what it gives does not match its name.
    """
    folder = Path(torch.hub.get_dir(), 'checkpoints')
    path = folder / os.path.basename(urlparse(url).path)
    named = re.search(r'-([0-9a-f]{8,64})\.', path.name)
    expected = named[1] if named else None
    if int(os.environ.get('LOCAL_RANK', 0)) == 0 and not _is_whole(path, expected):
        folder.mkdir(parents=True, exist_ok=True)
        print_log(f'downloading {url} to {path}', 'current')
        try:
            _fetch(url, path, expected)
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, 'reason', None) or error
            raise InputError(f'{url} cannot be downloaded ({reason}); give the path of a copy instead, or put one at '
                             f'{path}') from error
    if get_dist_info()[1] > 1:
        barrier()
    return path


def _fetch(url: str, path: Path, expected: Optional[str]) -> None:
    """Stream to a temporary file beside ``path``, which takes its place when it is complete."""
    partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
    digest = hashlib.sha256()
    try:
        with urlopen(url, timeout=60) as response, open(partial, 'wb') as file:
            length = int(response.headers.get('Content-Length') or 0)
            with wrap_file(response, length, description=path.name, disable=not os.isatty(1)) as reader:
                for block in iter(lambda: reader.read(1 << 20), b''):
                    digest.update(block)
                    file.write(block)
        if length and partial.stat().st_size != length:
            raise OSError('the connection ended early')
        if expected and not digest.hexdigest().startswith(expected):
            raise OSError('what came does not match the hash in its name')
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _is_whole(path: Path, expected: Optional[str]) -> bool:
    if not path.is_file():
        return False
    if expected is None:
        return True
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        for block in iter(lambda: file.read(1 << 20), b''):
            digest.update(block)
    return digest.hexdigest().startswith(expected)


def is_safetensors(path: Path) -> bool:
    """Eight bytes of length, then a header in JSON."""
    with open(path, 'rb') as file:
        return file.read(9)[8:] == b'{'


def _read_safetensors(path: Path, map_location) -> dict:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise InputError(f'the checkpoint {path} is a safetensors file: install the package safetensors to read it') \
            from None
    try:
        return load_file(path, device=str(map_location))
    except SafetensorError as error:
        raise InputError(_broken(path)) from error


def _broken(source: Union[str, Path]) -> str:
    return f'the checkpoint {source} cannot be read: it is no PyTorch checkpoint, or only part of one'
