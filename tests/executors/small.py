"""A small backbone, and which executor ran its blocks."""
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from swin_rpe_mm import SwinRPE, executors

SMALL = dict(embed_dims=8, depths=(2, 2), num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1), drop_path_rate=0.)


def build(**options) -> SwinRPE:
    """Random weights, the same for the same options but ``backend``."""
    model = SwinRPE(**(SMALL | options))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * (0.25 if value.ndim > 1 else 0.5))
    return model


@contextmanager
def counted():
    """While it is entered, counts the blocks that each executor runs; gives the counts by name."""
    counts, kept = dict.fromkeys(executors.EXECUTORS, 0), dict(executors.EXECUTORS)

    def counting(name, executor):
        def run(*arguments):
            counts[name] += 1
            return executor.run(*arguments)

        return SimpleNamespace(why_not=executor.why_not, run=run)

    executors.EXECUTORS.update({name: counting(name, executor) for name, executor in kept.items()})
    try:
        yield counts
    finally:
        executors.EXECUTORS.update(kept)
