"""Layers that keep little, and patches band by band, give what the plain layers give."""
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from oracles.cases import pixels
from oracles.compare import assert_forward, assert_gradients
from small import build
from torch import nn

from swin_rpe_mm.executors import tuning
from swin_rpe_mm.executors.cpu import linear, packed, parts, patch, products
from swin_rpe_mm.models import PatchEmbed, PatchMerging

LAYERS = {
    'nothing': lambda: None,
    'layer norm': lambda: nn.LayerNorm(12, eps=1e-3),
    'gelu': nn.GELU,
    'tanh gelu': lambda: nn.GELU(approximate='tanh'),
    'relu': nn.ReLU,
    'fixed norm': lambda: nn.LayerNorm(12, elementwise_affine=False),
    'norm without bias': lambda: nn.LayerNorm(12, bias=False),
}


@pytest.mark.parametrize('rows', [1, 7, 16, 33])
@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('before', LAYERS)
def test_prepared_layers(before, bias, rows):
    layer, first = nn.Linear(12, 5, bias=bias), LAYERS[before]()
    modules = nn.ModuleList([layer] if first is None else [layer, first])
    for value in modules.parameters():
        nn.init.normal_(value)
    x = torch.randn(rows, 12, requires_grad=True)
    with tuning(rows_at_once=8):
        results = []
        for run in (lambda x: layer(x if first is None else first(x)), linear.prepared(layer, first)):
            modules.zero_grad(), x.grad.zero_() if x.grad is not None else None
            out = run(x)
            (out * torch.arange(5)).sin().sum().backward()
            gradients = {name: p.grad.clone() for name, p in modules.named_parameters()}
            results.append((out, {'x': x.grad.clone()} | gradients))
        assert_forward(results[1][0], results[0][0], 'prepared layers')
        assert_gradients(results[1][1], results[0][1], 'prepared layers')
        with torch.no_grad():
            for most in (rows, rows + 1):
                actual = linear.prepared(layer, first, most)(x)
                assert_forward(actual, results[0][0], 'prepared layers without gradients')


@pytest.mark.parametrize('activation', [name for name in LAYERS if 'norm' not in name])
@pytest.mark.parametrize('gradients', [True, False])
def test_prepared_mlp(activation, gradients):
    """GELU inside of a product, in its place, or as a layer of its own."""
    first, between, second = nn.Linear(12, 7), LAYERS[activation]() or nn.Identity(), nn.Linear(7, 5)
    norm, x = nn.LayerNorm(12), torch.randn(9, 12)
    expected = second(between(first(norm(x))))
    with torch.set_grad_enabled(gradients):
        for rows in (0, 9, 10):
            actual = linear.prepared_mlp(first, between, second, norm, rows)(x)
            assert_forward(actual, expected, f'{rows} rows')
            assert actual.requires_grad == gradients


def test_a_build_without_onednn_does_without(monkeypatch):
    """PyTorch's products give the same."""
    layer, x = nn.Linear(12, 5), torch.randn(9, 12)
    with torch.no_grad():
        expected = layer(x)
        monkeypatch.setattr(products, '_ONEDNN', SimpleNamespace())
        products.has_onednn.cache_clear()
        try:
            assert not products.has_onednn()
            assert_forward(linear.prepared(layer, rows=9)(x), expected, 'without oneDNN')
        finally:
            monkeypatch.undo()
            products.has_onednn.cache_clear()


@pytest.mark.parametrize('norm', ['LN', 'none'])
@pytest.mark.parametrize('stride', [(2, 2), (1, 1), (1, 2), (3, 2)])
def test_patch_merging(norm, stride):
    """In whatever order the joined tokens lie, weights are those of the plain model's channels."""
    merging = PatchMerging(6, 8, stride, dict(type='LN') if norm == 'LN' else None)
    for value in merging.parameters():
        nn.init.normal_(value)
    tokens, size = torch.randn(2, 7 * 5, 6, requires_grad=True), (7, 5)
    assert patch.why_not_merge(merging) == ''
    expected, merged = merging(tokens, size)
    results = []
    for out in (patch.merge(merging, tokens, size)[0], expected):
        merging.zero_grad(), setattr(tokens, 'grad', None)
        out.sin().sum().backward()
        results.append({'tokens': tokens.grad} | {name: value.grad for name, value in merging.named_parameters()})
    for rows in (1, 9, 2048):
        with tuning(rows_at_once=rows), torch.no_grad():
            actual, size_of_it = patch.merge(merging, tokens, size)
        assert_forward(actual, expected, 'patch merging')
        assert size_of_it == merged
    assert_gradients(*results, 'patch merging')


@pytest.mark.parametrize('options', [dict(norm_after=True), dict(norm_cfg=dict(type='LN', elementwise_affine=False))])
def test_patch_merging_that_is_called(options):
    assert patch.why_not_merge(PatchMerging(6, 8, (2, 2), **(dict(norm_cfg=dict(type='LN')) | options)))


@pytest.mark.parametrize('rows', [1, 16, 2048])
@pytest.mark.parametrize('norm', ['LN', 'none'])
@pytest.mark.parametrize('size', [(3, 2), (4, 4)])
def test_patch_embedding(size, norm, rows):
    """However many rows are taken at once."""
    embed, images = PatchEmbed(3, 6, size, dict(type='LN') if norm == 'LN' else None), torch.randn(2, 3, 21, 17)
    images.requires_grad_()
    results = []
    for run in (embed, lambda images: patch.embed(embed, images)):
        embed.zero_grad(), setattr(images, 'grad', None)
        out, grid = run(images)
        assert grid == (-(-21 // size[0]), -(-17 // size[1]))
        (out * torch.arange(6)).sin().sum().backward()
        results.append((out, {'images': images.grad} | {name: p.grad.clone() for name, p in embed.named_parameters()}))
        with torch.no_grad(), tuning(rows_at_once=rows):
            assert_forward(run(images)[0], results[0][0], 'patch embedding')
    assert_forward(results[1][0], results[0][0], 'patch embedding')
    assert_gradients(results[1][1], results[0][1], 'patch embedding')


@pytest.mark.parametrize('frozen', ['x', 'layer', 'norm'])
def test_what_is_frozen_gets_no_gradient(frozen):
    layer, norm = nn.Linear(6, 4), nn.LayerNorm(6)
    x = torch.randn(5, 6, requires_grad=frozen != 'x')
    layer.requires_grad_(frozen != 'layer'), norm.requires_grad_(frozen != 'norm')
    linear.prepared(layer, norm)(x).sum().backward()
    for name, tensors in dict(x=[x], layer=list(layer.parameters()), norm=list(norm.parameters())).items():
        assert all((tensor.grad is None) == (name == frozen) for tensor in tensors), name


def test_autocast_computes_products_in_half_precision():
    """As PyTorch's own layers do, forward and backward."""
    layer, norm, x = nn.Linear(32, 16), nn.LayerNorm(32), torch.randn(40, 32)
    gradients = []
    for run in (lambda x: layer(norm(x)), linear.prepared(layer, norm)):
        layer.zero_grad()
        with torch.autocast('cpu', dtype=torch.bfloat16):
            out = run(x)
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
        gradients.append(layer.weight.grad.clone())
    assert F.cosine_similarity(*[gradient.flatten() for gradient in gradients], dim=0) > 0.9999


def test_layouts_of_many_sizes_are_forgotten():
    model = build()
    for side in range(200):
        with torch.no_grad():
            model(pixels(1, 3, 20 + side, 30))
    for cache in (packed._build, parts._cut):
        assert cache.cache_info().currsize <= cache.cache_info().maxsize <= 64
