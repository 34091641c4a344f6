"""Blocks whose activations are computed again in the backward pass, whoever asks for it, give the same gradients."""
import pytest
import torch
from sharded import EXTENTS, build, images, loss, worst
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from swin_rpe_mm.models import SwinBlock

PATHS = ['stages.0.blocks.0', 'stages.2.blocks.1']


def by_mmengine(model: nn.Module) -> nn.Module:
    tools = pytest.importorskip('mmengine.runner.activation_checkpointing',
                                reason='needs an mmengine with turn_on_activation_checkpointing')
    tools.turn_on_activation_checkpointing(model, PATHS)
    return model


def by_wrapper(model: nn.Module) -> nn.Module:
    chosen = [model.get_submodule(path) for path in PATHS]
    apply_activation_checkpointing(model, check_fn=lambda module: any(module is block for block in chosen))
    return model


def by_argument(model: nn.Module) -> nn.Module:
    for stage in model.stages:
        stage.with_cp = True
    return model


@pytest.mark.parametrize('arch', ['nano', 'v2-nano'])
@pytest.mark.parametrize('recompute', [by_mmengine, by_wrapper, by_argument])
@pytest.mark.parametrize('extents', [None, EXTENTS[0]], ids=['', 'extents'])
def test_gradients_are_the_same(recompute, arch, extents):
    plain, other = build(arch), recompute(build(arch))
    for model in (plain, other):
        loss(model(images(0), extents)).backward()
    assert worst([parameter.grad for parameter in other.parameters()],
                 [parameter.grad for parameter in plain.parameters()]) < 1e-5
    assert other.state_dict().keys() == plain.state_dict().keys()
    with torch.no_grad():
        assert worst(other.eval()(images(1), extents), plain.eval()(images(1), extents)) < 1e-5


@pytest.mark.parametrize('recompute', [by_mmengine, by_wrapper, by_argument])
def test_it_does_happen(recompute):
    """The MLP of a block runs once in the forward pass and once in the backward pass."""
    model, calls = build(), []
    [block for block in model.modules() if isinstance(block, SwinBlock)][0].ffn.register_forward_pre_hook(
        lambda *_: calls.append(torch.is_grad_enabled()))
    loss(recompute(model)(images(0))).backward()
    assert len(calls) == 2
