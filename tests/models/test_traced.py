"""Tracers, compilers, exporters and transforms go through the model without a branch of their own."""
import pytest
import torch
from oracles.cases import SMALL, dice, gradients, loss_of, pixels, random_extents, randomise
from oracles.compare import assert_forward, assert_gradients
from torch._subclasses.fake_tensor import FakeTensorMode

from swin_rpe_mm import SwinRPE

VARIANTS = {
    'swin': {},
    'v2': dict(arch='v2-nano'),
    'without masks': dict(mask_padding=False),
    'halo': dict(halo=2),
    'pooled': dict(pooled_neighbours=1),
    'rotary': dict(rpe=dict(type='RotaryRPE')),
    'contextual': dict(rpe=dict(type='ContextualRPE', on='qkv', form='sign_log')),
    'decomposed': dict(rpe=dict(type='DecomposedRPE')),
    'dynamic': dict(rpe=dict(type='DynamicRPE', hidden_dims=5)),
    'position embedding': dict(use_abs_pos_embed='window', pretrain_img_size=32),
    'global': dict(rpe=dict(type='LogCPB', hidden_dims=5), windows=dict(type='GlobalWindows')),
}
SIZES = [(2, 199, 133), (1, 96, 96), (3, 57, 61), (1, 33, 200), (2, 1, 1)]
DYNAMIC = torch.export.Dim.DYNAMIC
# pixels of a side that an exported program takes at least: these have tensors with a side of the map as a dimension,
# and PyTorch takes a dimension of 1 for a case of its own
LEAST = {'position embedding': 5, 'global': 9}


def some(*variants: str) -> list:
    """All variants, those that are not named in the longest run only."""
    return [variant if variant in variants else pytest.param(variant, marks=pytest.mark.exhaustive)
            for variant in VARIANTS]


def build(variant: str = 'swin', **options) -> SwinRPE:
    two = dict(embed_dims=16, depths=(2, 2), num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1), window_size=3)
    return randomise(SwinRPE(**(SMALL | two | VARIANTS[variant] | options))).eval()


def extents_of(case: int, batch: int, size) -> torch.Tensor:
    return torch.tensor(random_extents(dice('traced', case), batch, size))


@pytest.mark.parametrize('variant', some('swin', 'v2', 'without masks'))
def test_exported_once_for_every_size(variant):
    """One graph, guarded by nothing but 2 images or more where it was traced, runs every batch of every size."""
    model = build(variant)
    images = pixels(2, 3, 131, 205)
    program = torch.export.export(model, (images, extents_of(0, 2, (131, 205))), strict=False,
                                  dynamic_shapes=dict(images={0: DYNAMIC, 2: DYNAMIC, 3: DYNAMIC},
                                                      extents={0: DYNAMIC})).module(check_guards=False)
    for case, (batch, *size) in enumerate(SIZES):
        size = [max(side, LEAST.get(variant, 1)) for side in size]
        images, extents = pixels(batch, 3, *size, seed=case), extents_of(case, batch, size)
        with torch.no_grad():
            for actual, expected in zip(program(images, extents), model(images, extents)):
                scale = max(1, expected.abs().max().item()) if variant == 'v2' else 1
                assert_forward(actual / scale, expected / scale, 'exported for every size')


def test_exported_for_one_size_and_without_extents():
    model, images = SwinRPE(arch='nano').eval(), pixels(2, 3, 70, 97)
    program = torch.export.export(model, (images, )).module()
    with torch.no_grad():
        for actual, expected in zip(program(images), model(images)):
            assert_forward(actual, expected)


@pytest.mark.parametrize('variant', ['swin', 'v2', 'halo'])
def test_traced_for_its_size(variant):
    model, images = build(variant), pixels(2, 3, 70, 97)
    with torch.no_grad():
        traced = torch.jit.trace(model, images, check_trace=False)
        for actual, expected in zip(traced(images + 1), model(images + 1)):
            assert_forward(actual, expected)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('variant', some('swin'))
def test_compiled_in_one_graph_for_changing_sizes(variant, training):
    """0, 1 and more images and windows make graphs of their own; a new size makes none."""
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    model = build(variant).train(training)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count, fullgraph=True, dynamic=True)
    for case, (batch, *size) in enumerate(SIZES):
        images = pixels(batch, 3, *size, seed=case)
        results = []
        for run in (compiled, model):
            model.zero_grad()
            with torch.set_grad_enabled(training):
                outs = run(images)
            if training:
                loss_of(outs).backward()
            results.append((outs, gradients(model)))
        for actual, expected in zip(results[0][0], results[1][0]):
            scale = max(1, expected.abs().max().item()) if variant == 'v2' else 1
            assert_forward(actual / scale, expected / scale, 'compiled')
        if training:
            assert_gradients(results[0][1], results[1][1], 'compiled')
    torch._dynamo.reset()
    assert len(graphs) <= 5


@pytest.mark.parametrize('variant', VARIANTS)
def test_shapes_without_numbers(variant):
    with FakeTensorMode(allow_non_fake_inputs=True):
        outs = build(variant)(torch.empty(2, 3, 70, 97))
    assert [tuple(out.shape) for out in outs] == [(2, 16, 18, 25), (2, 32, 9, 13)]
    with torch.device('meta'):
        model = SwinRPE(**(dict(arch='nano') | VARIANTS[variant]))
    assert {value.device.type for value in model.state_dict().values()} == {'meta'}


@pytest.mark.parametrize('variant', VARIANTS)
def test_transforms(variant):
    """``grad``, ``vmap`` and ``jvp`` of the features, over images and over weights."""
    model = build(variant)
    images, step = pixels(2, 3, 21, 34), pixels(2, 3, 21, 34, seed=1)

    def loss(images):
        return sum(out.sin().sum() for out in model(images))

    wanted = images.clone().requires_grad_()
    expected, = torch.autograd.grad(loss(wanted), wanted)
    scale = expected.abs().max()
    assert_forward(torch.func.grad(loss)(images) / scale, expected / scale, 'torch.func.grad')
    along = torch.func.jvp(loss, (images, ), (step, ))[1].detach()
    assert (along - (expected * step).sum()).abs() <= 1e-4 * (expected * step).abs().sum()

    each = torch.func.vmap(lambda image: model(image[None])[1][0])(images)
    alone = torch.cat([model(image[None])[1] for image in images])
    scale = alone.abs().max()
    assert_forward(each / scale, alone / scale, 'torch.func.vmap')

    weights = dict(model.named_parameters())
    of_weights = torch.func.grad(lambda weights: sum(
        out.sin().sum() for out in torch.func.functional_call(model, weights, images)))(weights)
    model.zero_grad()
    loss(images).backward()
    mine = {name: value.grad for name, value in weights.items() if value.grad is not None}
    assert_gradients({name: of_weights[name] for name in mine}, mine, 'torch.func.grad over weights')


@pytest.mark.parametrize('variant', ['swin', 'v2', 'halo', 'dynamic'])
def test_an_export_leaves_nothing_behind(variant):
    """Traced before it ever ran, the model gives the numbers of one that was not."""
    images = pixels(1, 3, 45, 58)
    model, other = build(variant), build(variant)
    with torch.no_grad():
        expected = other(images)
    from swin_rpe_mm.rpe.base import _keep
    _keep.cache_clear()
    torch.export.export(model, (images, ))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.empty(1, 3, 45, 58))
    torch.func.grad(lambda images: model(images)[0].sum())(images)
    with torch.no_grad():
        for actual, wanted in zip(model(images), expected):
            assert torch.equal(actual, wanted)
