"""How time grows with the image, and what sizes cost that were never seen before."""
from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from tools.lib.benchmark.cases import PATCH, Case, Numbers, Size
from tools.lib.benchmark.contestants import SMALL, Contestant
from tools.lib.benchmark.memory import in_own_process, taken_bytes
from tools.lib.benchmark.timing import median_ratio, race, time_of

MEGAPIXELS = (0.25, 0.5, 1, 2, 4)
_SIDE = 32


def square(megapixels: float) -> Size:
    """A square of about so many pixels, with sides in multiples of 32."""
    return (max(1, round((1e6 * megapixels)**0.5 / _SIDE)) * _SIDE, ) * 2


def scaling(contestants: Sequence[Contestant], sizes: Sequence[Size], rounds: int, numbers: Numbers) -> dict:
    """Seconds of inference at each size, and the power of the pixels that fits them best, by least squares of the
    logarithms: 1 is linear."""
    seconds = {contestant.name: [] for contestant in contestants}
    for size in sizes:
        case = Case.of_size(size)
        steps = {c.name: c.step(c.build(case, numbers), case, numbers, 'inference') for c in contestants}
        for name, times in race(steps, rounds, numbers, str(case)).items():
            seconds[name].append(median(times))
    pixels = [h * w for h, w in sizes]
    powers = {name: float(np.polyfit(np.log(pixels), np.log(times), 1)[0]) for name, times in seconds.items()}
    return dict(sizes=[list(size) for size in sizes], seconds=seconds, power=powers)


def fresh_cases(number: int, largest: Size) -> list[Case]:
    """Images of different sizes in tokens, from half of ``largest`` to all of it, each padded as a batch of its own."""
    sides = [range(-(-side // 2 // PATCH), side // PATCH + 1) for side in largest]
    extents = [(PATCH * h, PATCH * w) for h in sides[0] for w in sides[1]]
    extents = [extent for extent in extents if extent != SMALL.size]  # which the process begins with
    return [Case.of_images([extent]) for extent in random.Random(0).sample(extents, min(number, len(extents)))]


def fresh_sizes(contestants: Sequence[Contestant], cases: Sequence[Case], numbers: Numbers) -> dict[str, dict]:
    """Inference at sizes that are new to a process, each followed by the same size again. Before each new one comes the
    last one a third time, so that memory which was given back to be counted is there again.

    Returns:
        dict[str, dict]: For each contestant that takes any size the seconds ``fresh`` and ``seen``, the median
            ``ratio`` of the two, the bytes ``taken`` by the process after each size, and those ``kept`` in tensors
            beside the weights.
    """
    flexible = [contestant for contestant in contestants if contestant.takes_any_size]
    found = {c.name: in_own_process(run_fresh, c, cases, numbers)
             for c in tqdm(flexible, desc='fresh sizes', leave=False, disable=None)}
    return {name: result for name, result in found.items() if result is not None}


def run_fresh(contestant: Contestant, cases: Sequence[Case], numbers: Numbers) -> dict:
    """What :func:`fresh_sizes` gives for one contestant. For a process of its own."""
    torch.set_num_threads(numbers.threads)
    model = contestant.build(cases[0], numbers)
    contestant.step(model, SMALL, numbers, 'inference')()
    result = dict(fresh=[], seen=[], taken=[], kept=[])
    weights = _bytes_in_tensors()
    for last, case in zip([SMALL, *cases], cases):
        contestant.step(model, last, numbers, 'inference')()
        step = contestant.step(model, case, numbers, 'inference')
        for kind in ('fresh', 'seen'):
            result[kind].append(time_of(step, numbers))
        del step
        result['taken'].append(taken_bytes(numbers))
        result['kept'].append(_bytes_in_tensors() - weights)
    return dict(result, ratio=median_ratio(result['fresh'], result['seen']))


def _bytes_in_tensors() -> int:
    """Of all that Python holds; views of the same memory count once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (Tensor, nn.Parameter):  # others, as the compiler's, hold no memory
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
