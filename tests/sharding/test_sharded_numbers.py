"""A sharded backbone computes what it computes in one piece: outputs, gradients, and what a step makes of it."""
import pytest
import torch
import torch.distributed as dist
from sharded import (
    EXTENTS,
    build,
    cases,
    images,
    joint_loss,
    loss,
    shard,
    skip_without,
    whole_gradients,
    worst,
)

FAST = [(way, 'block', 'nano', '') for way in ('FSDP2', 'FULL_SHARD')]
SLOW = [
    *((way, part, 'nano', '') for way in ('FSDP2', 'FULL_SHARD') for part in ('model', 'stage', 'ffn', 'linear')),
    *((way, 'block', 'v2-nano', '') for way in ('FSDP2', 'FULL_SHARD')),
    *((way, 'block', 'nano', again) for way in ('FSDP2', 'FULL_SHARD') for again in ('with_cp', 'wrapper')),
    *((way, 'block', 'nano', '') for way in ('SHARD_GRAD_OP', 'NO_SHARD', 'HYBRID_SHARD')),
]


def errors(way: str, part: str, arch: str, again: str) -> dict:
    """The worst errors of a training step and of an evaluation after it, on this rank."""
    rank = dist.get_rank()
    plain = build(arch, use_abs_pos_embed=True, with_cp=again == 'with_cp')
    sharded = shard(build(arch, use_abs_pos_embed=True, with_cp=again == 'with_cp'), way, part, again == 'wrapper')
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (plain, sharded)]
    found = {}

    maps, expected = (model(images(rank), EXTENTS[rank]) for model in (sharded, plain))
    found['outputs'] = worst(maps, expected)
    loss(maps).backward()
    joint_loss(plain).backward()
    found['gradients'] = worst(whole_gradients(sharded), [parameter.grad for parameter in plain.parameters()])

    for optimizer in optimizers:
        optimizer.step()
    with torch.no_grad():
        maps, expected = (model.eval()(images(rank, seed=1), EXTENTS[rank]) for model in (sharded, plain))
    found['after a step'] = worst(maps, expected)
    return found


@pytest.mark.parametrize(('way', 'part', 'arch', 'again'), cases(FAST, SLOW))
def test_it_computes_the_same(together, way, part, arch, again):
    """On images of several sizes, other ones in each process."""
    skip_without(way)
    for found in together(errors, way, part, arch, again):
        assert max(found.values()) < 1e-5, found
