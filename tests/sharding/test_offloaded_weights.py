"""Weights that come when a module is called and go afterwards: its ``forward`` is replaced on the instance."""
from importlib.util import find_spec

import pytest
import torch
from sharded import EXTENTS, build, images, worst
from torch import nn

MODES = {'inference': torch.inference_mode, 'no gradients': torch.no_grad, 'gradients': torch.enable_grad}
every_mode = pytest.mark.parametrize('mode', MODES)
# options of a model, and classes whose instances get the weights of all that is inside of them
MODELS = {
    'nano': (dict(arch='nano', use_abs_pos_embed='window'), []),
    'pooled': (dict(arch='nano', halo=2, pooled_neighbours=1), []),
    'nano, by attention': (dict(arch='nano'), ['WindowAttention']),
    'v2-nano, by attention': (dict(arch='v2-nano'), ['WindowAttention']),
    'contextual, by attention': (dict(arch='nano', rpe=dict(type='ContextualRPE')), ['WindowAttention']),
}
every_model = pytest.mark.parametrize(('options', 'whole'), MODELS.values(), ids=MODELS)


def offload(model: nn.Module, whole: list[str]) -> None:
    """Keep the weights of modules elsewhere but for the calls of these, as accelerate does."""
    if type(model).__name__ in whole:
        _fetch_in_calls(model, [(part, name) for part in model.modules() for name in part._parameters])
        return
    for child in model.children():
        offload(child, whole)
    _fetch_in_calls(model, [(model, name) for name in model._parameters])


def _fetch_in_calls(module: nn.Module, places: list[tuple[nn.Module, str]]) -> None:
    weights = [part._parameters[name] for part, name in places]
    nothing = [None if weight is None else nn.Parameter(weight.detach().to('meta')) for weight in weights]
    forward = module.forward

    def put(values: list) -> None:
        for (part, name), value in zip(places, values):
            part._parameters[name] = value

    def fetch_and_call(*args, **kwargs):
        put(weights)
        try:
            return forward(*args, **kwargs)
        finally:
            put(nothing)

    module.forward = fetch_and_call
    put(nothing)


@every_mode
@every_model
def test_weights_are_there_only_in_a_call(mode, options, whole):
    plain, offloaded = build(**options), build(**options)
    offload(offloaded, whole)
    assert {parameter.device.type for parameter in offloaded.parameters()} == {'meta'}
    assert_same(plain, offloaded, mode)


@every_mode
@every_model
def test_accelerate(mode, options, whole):
    if find_spec('accelerate') is None:
        pytest.skip('needs accelerate')
    from accelerate import cpu_offload
    plain, offloaded = build(**options), build(**options)
    cpu_offload(offloaded, execution_device=torch.device('cpu'), preload_module_classes=whole)
    assert_same(plain, offloaded, mode)


def assert_same(plain: nn.Module, other: nn.Module, mode: str) -> None:
    for model in (plain, other):
        model.train(mode == 'gradients')
    with MODES[mode]():
        maps, expected = (model(images(0), EXTENTS[0]) for model in (other, plain))
    assert worst(maps, expected) < 1e-5
