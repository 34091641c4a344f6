"""Taking times of several contestants fairly: all take turns in every round, and ratios are those of one round.

A machine that slows down for a while thus slows all of them, and nobody always comes after the same neighbour, whose
memory it would find in the caches.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from tqdm import tqdm

from tools.lib.benchmark.cases import Numbers

WARM_UP = {'cpu': 1, 'cuda': 3}  # rounds


def race(steps: dict[str, Callable[[], object]], rounds: int, numbers: Numbers, title: str) -> dict[str, list[float]]:
    """Seconds of each step in each round, after rounds of warm-up. The first of a round is the second of the next.

    Args:
        steps (dict[str, Callable]): What is timed, by its name.
        title (str): Beside the progress bar.
    """
    names, seconds = list(steps), {name: [] for name in steps}
    warm_up = WARM_UP[numbers.device]
    with tqdm(total=(warm_up + rounds) * len(names), desc=title, leave=False, disable=None) as progress:
        for index in range(warm_up + rounds):
            start = index % len(names)
            for name in names[-start:] + names[:-start] if start else names:
                taken = time_of(steps[name], numbers)
                if index >= warm_up:
                    seconds[name].append(taken)
                progress.update()
    return seconds


def time_of(step: Callable[[], object], numbers: Numbers) -> float:
    """Seconds of one step; on a GPU those between two events around it."""
    if numbers.device == 'cuda':
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def median_ratio(seconds: list[float], others: list[float]) -> float:
    """The median of the quotients of each round."""
    return median(own / other for own, other in zip(seconds, others))
