"""What a measurement depends on beside the code: the machine, PyTorch and the releases of the peers."""
from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from tools.lib.benchmark.cases import Numbers
from tools.lib.peers import version_of


def describe(numbers: Numbers, packages: Sequence[str]) -> dict[str, str]:
    """Names and values, for a table."""
    build = torch.__config__.show()
    found = {
        'CPU': _cpu(),
        'threads': f'{numbers.threads} of {_cores()} cores',
        'memory': _memory(),
        'GPU': torch.cuda.get_device_name() if numbers.device == 'cuda' else 'not used',
        'system': f'{platform.system()} {platform.machine()}, Python {platform.python_version()}',
        'PyTorch': torch.__version__,
    }
    for name, pattern in (('MKL', r'(?:Math Kernel|MKL)\D* Version ([\d.]+(?:-Product)?)'),
                          ('oneDNN', r'(?:MKL-DNN|oneDNN) v([\d.]+)'), ('CUDA', r'CUDA Runtime ([\d.]+)')):
        version = re.search(pattern, build)
        if version:
            found[name] = version[1]
    found.update({package: version_of(package) or 'of unknown release' for package in packages})
    return found


def _cpu() -> str:
    info = Path('/proc/cpuinfo')
    if info.is_file():
        model = re.search(r'model name\s*:\s*(.+)', info.read_text())
        if model:
            return model[1]
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()


def _memory() -> str:
    if 'SC_PHYS_PAGES' not in getattr(os, 'sysconf_names', {}):
        return 'unknown'
    return f'{os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30:.0f} GiB'
