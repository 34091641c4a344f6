"""Blocks that take a few windows at a time, and layers that keep little, give what plain blocks and layers give."""
import pytest
import torch
import torch.nn.functional as F
from oracles.cases import dice, loss_of, pixels, random_extents, random_size, random_window
from oracles.compare import assert_forward, assert_gradients
from torch import nn

from swin_rpe_mm import SwinRPE, attach_extents
from swin_rpe_mm.models import PatchEmbed, PatchMerging, attention, linear, patch
from swin_rpe_mm.rpe import build_rpe
from swin_rpe_mm.windows import WindowLayout, cut_into_parts, layout, parts

SMALL = dict(embed_dims=8, depths=(2, 2), num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1), drop_path_rate=0.)
ENCODINGS = {
    'table': dict(type='TableRPE'),
    'log cpb': dict(type='LogCPB', hidden_dims=5),
    'none': None,
    'contextual': dict(type='ContextualRPE', on='qkv', form='sign_log'),
    'dynamic': dict(type='DynamicRPE', hidden_dims=5),
    'sum': [dict(type='TableRPE'), dict(type='RotaryRPE')],
}


def build(**kwargs) -> SwinRPE:
    model = SwinRPE(**(SMALL | kwargs))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * (0.25 if value.ndim > 1 else 0.5))
    return model


@pytest.mark.parametrize('case', range(30))
def test_parts_hold_every_token_once(case):
    """Parts are the layout's own windows: the same tokens see each other, in windows of few different numbers."""
    rng = dice('parts', case)
    size, window = random_size(rng, 97, 3000), random_window(rng)
    extents = random_extents(rng, rng.randint(1, 3), size)
    halo = (rng.randint(0, 3), rng.randint(0, 3)) if case % 2 else (0, 0)
    whole = WindowLayout.build(size, window, tuple(w // 2 for w in window), extents, halo,
                               mask_padding=rng.random() < 0.7)
    at_once = rng.randint(1, 40)
    pieces, tokens = cut_into_parts(whole, at_once)
    held = torch.cat([part.tokens for part in pieces])
    assert torch.equal(held.sort().values, torch.arange(len(whole.inside)))
    first = 0
    for part in pieces:
        own = part.layout
        last = first + len(own.slots)
        assert part.windows == slice(first, last)
        assert len(own.slots) <= at_once
        assert torch.equal(part.tokens[own.slots][own.valid], whole.packed_slots[first:last][own.valid])
        assert torch.equal(own.region, whole.region[first:last])
        assert torch.equal(own.image_of_token, whole.image_of_token[part.tokens])
        seen = own.region[:, :, None] == whole.key_region[first:last, None]
        assert seen[:own.plain].all() and torch.equal(own.visible, seen[own.plain:])
        first = last
    assert first == len(whole.slots)
    assert tokens == 0 or any(len(part.tokens) == tokens for part in pieces)


def test_few_numbers_of_rows_whatever_the_size():
    """The rows that oneDNN makes kernels for: a handful over two hundred sizes of maps."""
    maps = [WindowLayout.build((20 + side, 150 - side // 2), (7, 7)) for side in range(200)]
    assert len({cut_into_parts(windows, 83).tokens for windows in maps}) <= 11


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('halo', [False, True])
@pytest.mark.parametrize('encoding', ENCODINGS)
@pytest.mark.parametrize('arch', ['nano', 'v2-nano'])
def test_equal_to_all_at_once(monkeypatch, arch, encoding, halo, mask_padding, training):
    """Features and gradients do not depend on what is taken at once, and equal the eager backend's."""
    rng = dice(f'in cache {arch} {encoding} {mask_padding}', 0)
    size = random_size(rng, 150)
    extents = random_extents(rng, 3, size)
    window = random_window(rng, 5)
    settings = [('eager', 10**9), ('sdpa', 10**9), ('sdpa', 300), ('sdpa', 1)]
    if halo:
        halo = rng.choice([(2, 1), (0, 3), 'window'])
        settings = settings if encoding == 'table' else settings[:3]
    results = []
    for backend, at_once in settings:
        monkeypatch.setattr(attention, 'TOKENS_AT_ONCE', at_once)
        monkeypatch.setattr(linear, '_ROWS_AT_ONCE', min(at_once, 10**6))
        model = build(arch=arch, rpe=ENCODINGS[encoding], mask_padding=mask_padding, window_size=window,
                      halo=halo or 0, attn_backend=backend)
        with torch.set_grad_enabled(training):
            outs = model(attach_extents(pixels(3, 3, *size), extents))
        if training:
            loss_of(outs).backward()
        results.append((outs, {name: value.grad for name, value in model.named_parameters()}))
    for outs, gradients in results[1:]:
        for actual, expected in zip(outs, results[0][0]):
            # SwinV2's norms after small branches amplify rounding: see the tolerance of its own tests
            scale = 1 if arch == 'nano' else max(1, expected.abs().max().item())
            assert_forward(actual / scale, expected / scale, 'a few windows at a time')
        if training:
            assert_gradients(gradients, results[0][1], 'a few windows at a time')


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
def test_prepared_layers(monkeypatch, before, bias, rows):
    monkeypatch.setattr(linear, '_ROWS_AT_ONCE', 8)
    layer, first = nn.Linear(12, 5, bias=bias), LAYERS[before]()
    modules = nn.ModuleList([layer] if first is None else [layer, first])
    for value in modules.parameters():
        nn.init.normal_(value)
    x = torch.randn(rows, 12, requires_grad=True)
    results = []
    for run in (lambda x: layer(x if first is None else first(x)), linear.prepared(layer, first)):
        modules.zero_grad(), x.grad.zero_() if x.grad is not None else None
        out = run(x)
        (out * torch.arange(5)).sin().sum().backward()
        results.append((out, {'x': x.grad.clone()} | {name: p.grad.clone() for name, p in modules.named_parameters()}))
    assert_forward(results[1][0], results[0][0], 'prepared layers')
    assert_gradients(results[1][1], results[0][1], 'prepared layers')
    with torch.no_grad():
        assert_forward(linear.prepared(layer, first, rows)(x), results[0][0], 'prepared layers without gradients')
        assert_forward(linear.prepared(layer, first, rows + 1)(x), results[0][0], 'prepared layers without gradients')


@pytest.mark.parametrize('norm', ['LN', 'fixed', 'hooked', 'none', 'after'])
@pytest.mark.parametrize('stride', [(2, 2), (1, 1), (1, 2), (3, 2)])
def test_patch_merging_is_that_of_unfold(monkeypatch, norm, stride):
    """In whatever order the joined tokens lie, weights are those of ``nn.Unfold``'s channels, as in mm."""
    config = dict(type='LN', elementwise_affine=norm != 'fixed') if norm != 'none' else None
    merging = PatchMerging(6, 8, stride, config, norm_after=norm == 'after')
    for value in merging.parameters():
        nn.init.normal_(value)
    if norm == 'hooked':
        merging.norm.register_forward_hook(lambda *_: None)
    tokens, size = torch.randn(2, 7 * 5, 6, requires_grad=True), (7, 5)
    maps = tokens.transpose(1, 2).unflatten(2, size)
    missing = [max((-(-side // s) - 1) * s + 2 - side, 0) for side, s in zip(size, stride)]
    unfolded = F.unfold(F.pad(maps, (0, missing[1], 0, missing[0])), (2, 2), stride=stride).transpose(1, 2)
    before, after = (merging.reduction, merging.norm) if norm == 'after' else (merging.norm, merging.reduction)
    expected = after(unfolded if before is None else before(unfolded))
    results = []
    for out in (merging(tokens, size)[0], expected):
        merging.zero_grad(), setattr(tokens, 'grad', None)
        out.sin().sum().backward()
        results.append({'tokens': tokens.grad} | {name: value.grad for name, value in merging.named_parameters()})
    assert_forward(merging(tokens, size)[0], expected, 'patch merging')
    for rows in (1, 9, 2048):
        monkeypatch.setattr(patch, '_ROWS_AT_ONCE', rows)
        with torch.no_grad():
            assert_forward(merging(tokens, size)[0], expected, 'patch merging')
    assert_gradients(*results, 'patch merging')


@pytest.mark.parametrize('rows', [1, 16, 2048])
@pytest.mark.parametrize('norm', ['LN', 'none'])
@pytest.mark.parametrize('size', [(3, 2), (4, 4)])
def test_patch_embedding_is_a_convolution(monkeypatch, size, norm, rows):
    """However many rows are taken at once, and where a hook wants to see the convolution itself."""
    monkeypatch.setattr(patch, '_ROWS_AT_ONCE', rows)
    embed, images = PatchEmbed(3, 6, size, dict(type='LN') if norm == 'LN' else None), torch.randn(2, 3, 21, 17)
    images.requires_grad_()
    height, width = (-(-side // step) * step for side, step in zip(images.shape[2:], size))
    padded = F.pad(images, (0, width - 17, 0, height - 21))
    expected = F.conv2d(padded, embed.projection.weight, embed.projection.bias, size).flatten(2).transpose(1, 2)
    expected = expected if embed.norm is None else embed.norm(expected)
    results = []
    for kind in ('expected', 'product', 'convolution'):
        embed.zero_grad(), setattr(images, 'grad', None)
        if kind == 'convolution':
            embed.projection.register_forward_hook(lambda *_: None)
        out = expected if kind == 'expected' else embed(images)[0]
        (out * torch.arange(6)).sin().sum().backward()
        results.append((out, {'images': images.grad} | {name: p.grad.clone() for name, p in embed.named_parameters()}))
        with torch.no_grad():
            tokens, grid = embed(images)
            assert_forward(tokens, expected, 'patch embedding')
            assert grid == (height // size[0], width // size[1])
    for out, gradients in results[1:]:
        assert_forward(out, expected, 'patch embedding')
        assert_gradients(gradients, results[0][1], 'patch embedding')


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


def test_layers_with_hooks_and_of_other_classes_are_called():
    """Counters, quantisers and adapters find their layers run as modules."""

    class Doubled(nn.Linear):

        def forward(self, x):
            return 2 * super().forward(x)

    x, other, layer, seen = torch.randn(9, 6), Doubled(6, 4), nn.Linear(6, 4), []
    assert_forward(linear.prepared(other)(x), other(x))
    layer.register_forward_hook(lambda *_: seen.append(1))
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            linear.prepared(layer, nn.LayerNorm(6), 9)(x)
            linear.prepared(other, None, 9)(x)
    assert len(seen) == 2


@pytest.mark.parametrize('options', [dict(type=name) for name in (
    'TableRPE', 'ClippedRPE', 'LogBucketRPE', 'LogCPB', 'ContextualRPE', 'DecomposedRPE', 'BlockRPE', 'LowRankRPE',
    'RotaryRPE', 'DynamicRPE')], ids=lambda options: options['type'])
def test_a_fixed_bias_needs_no_queries(options):
    rpe = build_rpe(options, num_heads=2, window_size=(3, 4), key_size=(3, 4), head_dim=8)
    for value in rpe.parameters():
        nn.init.normal_(value)
    one, other = (rpe(torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8), rpe.geometry) for _ in range(2))
    if rpe.fixed_bias:
        assert torch.equal(rpe(None, None, rpe.geometry)[2], one[2])
    else:
        assert any(not torch.equal(a, b) for a, b in zip(one, other) if a is not None)


def test_compiled_with_changing_sizes():
    """A model around the backbone may be compiled; sizes that change do not compile the backbone again."""
    compiled = []

    def count(graph, _):
        compiled.append(graph)
        return graph.forward

    class Whole(nn.Module):

        def __init__(self):
            super().__init__()
            self.backbone, self.head = build(), nn.Conv2d(8, 3, 1)

        def forward(self, images):
            return self.head(self.backbone(images)[0])

    whole = Whole()
    torch._dynamo.reset()
    fast = torch.compile(whole, backend=count)
    for side in range(8):
        images = pixels(1, 3, 40 + 9 * side, 90 - 7 * side)
        expected, actual = whole(images), fast(images)
        assert_forward(actual, expected, 'compiled')
        for value in whole.parameters():
            value.grad = None
        actual.sum().backward()
        assert all(value.grad is not None for value in whole.head.parameters())
    torch._dynamo.reset()
    assert 1 <= len(compiled) <= 3


def test_layouts_of_many_sizes_are_forgotten():
    model = build()
    for side in range(200):
        with torch.no_grad():
            model(pixels(1, 3, 20 + side, 30))
    for cache in (layout._build, parts.cut_into_parts):
        assert cache.cache_info().currsize <= cache.cache_info().maxsize <= 64
