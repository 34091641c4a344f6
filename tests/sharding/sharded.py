"""Small backbones, sharded in every way that PyTorch has, and what the tests compare of them."""
from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.models import FFN, SwinBlock, SwinStage

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None

PARTS = {'model': SwinRPE, 'stage': SwinStage, 'block': SwinBlock, 'ffn': FFN, 'linear': nn.Linear}
SIZE = (44, 60)
EXTENTS = (((44, 60), (31, 38)), ((23, 60), (44, 50)))  # of the images of either rank


def cases(fast: list[tuple], slow: list[tuple]) -> list:
    """Arguments of tests, the latter marked as slow."""
    marked = [(case, ()) for case in fast] + [(case, pytest.mark.slow) for case in slow]
    return [pytest.param(*case, marks=marks, id='-'.join(filter(None, case))) for case, marks in marked]


def skip_without(way: str) -> None:
    """Skip the test where this PyTorch does not know the way."""
    if way == 'FSDP2' and fully_shard is None:
        pytest.skip('needs torch.distributed.fsdp.fully_shard, which PyTorch has from 2.6 on')


def build(arch: str = 'nano', seed: int = 0, **options) -> SwinRPE:
    """A backbone none of whose parameters is zero: these would hide what is behind them."""
    torch.manual_seed(seed)
    model = SwinRPE(arch=arch, drop_path_rate=0., **options)
    model.init_weights()
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return model


def images(rank: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a rank trains on in a step."""
    generator = torch.Generator().manual_seed(10 * seed + rank)
    return torch.randn(2, 3, *SIZE, generator=generator, dtype=dtype)


def loss(maps: tuple[Tensor, ...]) -> Tensor:
    """A number that depends on every map, large enough for gradients to be about 1."""
    return 100 * sum(x.square().mean() for x in maps)


def joint_loss(model: nn.Module, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """What two ranks that average their gradients minimise, in one process."""
    return sum(loss(model(images(rank, seed, dtype), EXTENTS[rank])) for rank in range(2)) / 2


def shard(model: nn.Module, way: str, part: str, wrap_activations: bool = False) -> nn.Module:
    """The model with its weights spread over two processes.

    Args:
        model (nn.Module): The model.
        way (str): ``FSDP2``, or the name of one of FSDP1's strategies.
        part (str): What is gathered at a time, see :data:`PARTS`.
        wrap_activations (bool): Whether blocks are computed again in the backward pass, by PyTorch's wrapper.
    """
    if way == 'FSDP2':
        mesh = init_device_mesh('cpu', (2, ))
        for module in reversed(list(model.modules())):
            if isinstance(module, PARTS[part]) and module is not model:
                fully_shard(module, mesh=mesh)
        sharded = fully_shard(model, mesh=mesh)
    else:
        strategy = ShardingStrategy[way]
        # two machines with one process each are one process per group that is sharded over: the other way round
        mesh = init_device_mesh('cpu', (1, 2), mesh_dim_names=('copies', 'shards')) if 'HYBRID' in way else None
        sharded = FullyShardedDataParallel(
            model, sharding_strategy=strategy, auto_wrap_policy=ModuleWrapPolicy([PARTS[part]]), device_mesh=mesh,
            device_id=torch.device('cpu'), use_orig_params=True)
    if wrap_activations:
        apply_activation_checkpointing(sharded, check_fn=lambda module: isinstance(module, SwinBlock))
    return sharded


def whole_gradients(model: nn.Module) -> list[Tensor]:
    """The gradients of a sharded model's parameters, put together."""
    if not isinstance(model, FullyShardedDataParallel):
        return [parameter.grad.full_tensor() for parameter in model.parameters()]
    with warnings.catch_warnings(), FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        return [parameter.grad.clone() for parameter in model.parameters()]


def worst(ours, theirs) -> float:
    """The largest difference between tensors, of which there must be as many on either side."""
    return max((one - other).abs().max().item() for one, other in zip(ours, theirs, strict=True))
