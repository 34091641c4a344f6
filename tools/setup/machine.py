"""What this machine has. Everything is looked up before anything is downloaded."""
from __future__ import annotations

import glob
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tools.setup.console import SetupError

LEAST_GB = 4
CUDA_TORCH_GB = 10


@dataclass(frozen=True)
class Machine:
    """The facts that decide how mmcv's ops are built.

    Attributes:
        compiler: the C++ compiler, or None.
        python_headers: whether Python.h is there.
        nvcc: release of the CUDA compiler such as ``13.0``, or None.
        gpu: whether an NVIDIA GPU is visible, or ``TORCH_CUDA_ARCH_LIST`` asks for one that is elsewhere.
    """
    compiler: str | None
    python_headers: bool
    nvcc: str | None
    gpu: bool


def find_nvcc() -> str | None:
    """Release of the CUDA compiler under ``CUDA_HOME`` or on PATH."""
    home = os.environ.get('CUDA_HOME') or os.environ.get('CUDA_PATH')
    path = shutil.which('nvcc', path=os.path.join(home, 'bin')) if home else shutil.which('nvcc')
    if path is None:
        return None
    text = subprocess.run([path, '--version'], capture_output=True, text=True, check=False).stdout
    found = re.search(r'release (\d+\.\d+)', text)
    return found.group(1) if found else None


def look() -> Machine:
    """The facts of this machine, in a few milliseconds."""
    named = shlex.split(os.environ.get('CXX', ''))[:1]
    compiler = next(filter(None, map(shutil.which, [*named, 'c++', 'g++', 'clang++'])), None)
    headers = Path(sysconfig.get_paths()['include'], 'Python.h').is_file()
    gpu = bool(glob.glob('/dev/nvidia[0-9]*') or os.path.exists('/dev/dxg') or os.environ.get('TORCH_CUDA_ARCH_LIST'))
    return Machine(compiler, headers, find_nvcc() if gpu else None, gpu)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def free_gb(folder: Path) -> float:
    """Free disk space where ``folder`` lies."""
    return shutil.disk_usage(folder).free / 1e9


def refuse(has_venv: bool, free: float) -> None:
    """Raise where set-up cannot succeed at all."""
    if not has_venv:
        raise SetupError('Python lacks its venv or ensurepip module: install it (Debian and Ubuntu: '
                         '`apt install python3.11-venv`) and run `make setup` again.')
    if free < LEAST_GB:
        raise SetupError(f'Set-up needs {LEAST_GB} GB of free disk here, but {free:.1f} GB are free.')


def check(folder: Path, machine: Machine, has_environment: bool) -> list[str]:
    """Raise what makes set-up impossible; return a sentence for each thing that limits it."""
    has_venv = all(importlib.util.find_spec(name) for name in ('venv', 'ensurepip'))
    free = free_gb(folder)
    if not has_environment:
        refuse(has_venv, free)
    notes = []
    if machine.gpu and not has_environment and free < CUDA_TORCH_GB:
        notes.append(f'a CUDA build of torch needs about {CUDA_TORCH_GB} GB of disk and {free:.1f} GB are free.')
    if shutil.which('git') is None:
        notes.append('git is not found, so the logs of training runs cannot name the commit they come from.')
    return notes
