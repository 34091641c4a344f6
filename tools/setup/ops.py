"""How mmcv's compiled ops are built: decided from facts alone, so that every case can be tested anywhere."""
from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from tools.setup.machine import Machine

LEVELS = ('none', 'cpu', 'cuda')
AGAIN = 'and run the same command again'


@dataclass(frozen=True)
class Torch:
    """What the installed torch says of itself; ``cuda`` is its CUDA release or None, ``arch`` such as ``9.0``."""
    version: str
    cuda: str | None
    arch: str | None


@dataclass(frozen=True)
class Choice:
    """Which ops to build, and in one sentence what is lost and how to get it (None when nothing is)."""
    level: str
    lost: str | None = None


def choose(machine: Machine, torch_cuda: str | None) -> Choice:
    """The best ops that this machine can build."""
    missing = [name for name, there in (('a C++ compiler (Debian and Ubuntu: g++)', machine.compiler),
                                        ("Python's headers (Debian and Ubuntu: python3-dev)", machine.python_headers))
               if not there]
    if missing:
        return Choice('none', f'mmcv is installed without compiled ops, so segmentation works and detection does not: '
                              f'install {" and ".join(missing)} {AGAIN}.')
    if torch_cuda is None or not machine.gpu:
        return Choice('cpu')
    if machine.nvcc is None:
        return Choice('cpu', f"mmcv's ops are built for the CPU only, so detectors run on the CPU and not on the GPU: "
                             f'install the CUDA toolkit {torch_cuda} (nvcc on PATH, or CUDA_HOME set) {AGAIN}.')
    if machine.nvcc.split('.')[0] != torch_cuda.split('.')[0]:
        return Choice('cpu', f"mmcv's ops are built for the CPU only, so detectors run on the CPU and not on the GPU: "
                             f'nvcc is of CUDA {machine.nvcc} and torch of CUDA {torch_cuda}, so install the toolkit '
                             f'{torch_cuda} {AGAIN}.')
    return Choice('cuda')


def cache_key(torch: Torch, mmcv_version: str, python: str, platform: str, level: str) -> str:
    """Folder name of a cached wheel: whatever its binary depends on."""
    target = f'cuda-sm{torch.arch}' if level == 'cuda' else level
    return f'mmcv-{mmcv_version}_torch-{torch.version}_{python}_{platform}_{target}'


def jobs(cores: int, free_memory_gb: float) -> int:
    """Compilers to run at once: one a core, as long as each has 1.5 GB."""
    return max(1, min(cores, int(free_memory_gb / 1.5)))


def build_environment(level: str, torch: Torch, jobs: int, header: Path | None) -> dict[str, str]:
    """Environment variables of the build.

    Args:
        level: One of ``LEVELS``.
        torch: The torch that the ops are built against.
        jobs: Compilers to run at once.
        header: The precompiled header without its ``.gch``, or None for a build without.
    """
    env = {'MMCV_WITH_OPS': str(int(level != 'none')), 'FORCE_CUDA': str(int(level == 'cuda')), 'MAX_JOBS': str(jobs),
           'CFLAGS': '-O1 -g0 -w'}
    if level == 'cuda':  # torch gives CFLAGS to the C++ compiler alone; nvcc keeps its own defaults
        env['TORCH_CUDA_ARCH_LIST'] = os.environ.get('TORCH_CUDA_ARCH_LIST') or torch.arch or ''
    else:  # with a GPU in sight mmcv asks for nvcc whatever FORCE_CUDA says
        env['CUDA_VISIBLE_DEVICES'] = ''
    if header is not None:
        env['CFLAGS'] += f' -I{shlex.quote(str(header.parent))} -include {shlex.quote(str(header))}'
    return env


def estimate_s(level: str, jobs: int, precompiled: bool) -> float | None:
    """Seconds the build takes, from a measured one on two cores; None where nothing was measured."""
    if level == 'cuda':
        return None
    return 20 if level == 'none' else 20 + 200 / jobs if precompiled else 2400 / jobs
