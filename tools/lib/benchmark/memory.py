"""The most memory that one step takes above weights and images, each contestant in processes of its own.

A process first does the same step on a small image with another model, so that the code of the libraries, the stacks of
their threads and their own buffers are there; builds model and images; gives what is free back to the system; and does
the step once. The difference between the peak during the step and what was taken before it holds outputs, everything
saved for the backward pass, gradients, masks and indices that are made at the first sight of a size, and what the
allocator keeps in between. Masks that timm makes together with its weights are not in it.

On the CPU the peak is that of the resident pages, which Linux counts (VmHWM in /proc/self/status) and sets back on
demand. What the C library's allocator keeps in between differs by a fifth from one process to the next, so this is the
median of several. On a GPU it is what PyTorch's allocator has handed out.
"""
from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from swin_rpe_mm.errors import InputError
from tools.lib.benchmark.cases import Case, Numbers
from tools.lib.benchmark.contestants import SMALL, Contestant

PROCESSES = 5
T = TypeVar('T')
_STATUS, _RESET = Path('/proc/self/status'), Path('/proc/self/clear_refs')


def check_memory(numbers: Numbers) -> None:
    """Raise :class:`InputError` where the peak cannot be read."""
    if numbers.device == 'cuda':
        return
    try:
        _reset_peak()
    except OSError:
        raise InputError('measuring memory on the CPU needs Linux, where writing to /proc/self/clear_refs sets the '
                         'peak of a process back; that is not possible here') from None


def in_own_process(function: Callable[..., T], *args) -> T | None:
    """What a function gives in a new process; None if the system ended that, as it does for want of memory."""
    with ProcessPoolExecutor(1, mp_context=get_context('spawn'), initializer=_end_with_parent) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            return None


def _end_with_parent() -> None:
    """End this process together with the one that started it, also where that is killed."""

    def wait() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def median_peak(contestant: Contestant, case: Case, numbers: Numbers, mode: str) -> int | None:
    """Bytes of one step above weights and images; None if a process was ended for want of memory."""
    processes = PROCESSES if numbers.device == 'cpu' else 1
    peaks = [in_own_process(peak_bytes, contestant, case, numbers, mode) for _ in range(processes)]
    return None if None in peaks else int(median(peaks))


def peak_bytes(contestant: Contestant, case: Case, numbers: Numbers, mode: str) -> int:
    """Bytes of one step above weights and images. For a process of its own."""
    torch.set_num_threads(numbers.threads)
    contestant.step(contestant.build(SMALL, numbers), SMALL, numbers, mode)()
    return peak_of(contestant.step(contestant.build(case, numbers), case, numbers, mode), numbers)


def peak_of(step: Callable[[], object], numbers: Numbers) -> int:
    """Bytes that are taken in the course of a step beyond those before it."""
    before = taken_bytes(numbers)
    if numbers.device == 'cuda':
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    _reset_peak()
    step()
    return _read('VmHWM') - before


def taken_bytes(numbers: Numbers) -> int:
    """What this process takes after it has given back what is free: resident pages, or memory of the GPU."""
    gc.collect()
    if numbers.device == 'cuda':
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    with suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL('libc.so.6').malloc_trim(0)
    return _read('VmRSS')


def _reset_peak() -> None:
    _RESET.write_text('5')


def _read(name: str) -> int:
    """A line of /proc/self/status, which is in kB."""
    lines = dict(line.split(':', 1) for line in _STATUS.read_text().splitlines())
    return 1024 * int(lines[name].split()[0])
