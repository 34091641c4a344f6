"""Logits worked out again against those that attention used."""
import pytest
import torch

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.models import WindowAttention
from swin_rpe_mm.models.block import attend
from swin_rpe_mm.visualization.window_logits import spread_windows, window_logits
from swin_rpe_mm.windows import GlobalWindows, PaddedWindows, ShiftedWindows, WindowLayout

CASES = {
    'table': {},
    'none': dict(rpe=None),
    'log cpb': dict(rpe=dict(type='LogCPB')),
    'rotary': dict(rpe=dict(type='RotaryRPE')),
    'contextual': dict(rpe=dict(type='ContextualRPE', on='qkv')),
    'decomposed': dict(rpe=dict(type='DecomposedRPE')),
    'dynamic after rotary': dict(rpe=[dict(type='RotaryRPE'), dict(type='DynamicRPE', rpe=dict(type='LogCPB'))]),
    'halo': dict(halo=2),
    'halo, padding seen': dict(halo=2, mask_padding=False),
    'pooled neighbours': dict(pooled_neighbours=1),
    'pooled neighbours, halo, no encoding': dict(pooled_neighbours=1, halo=1, rpe=None),
    'padding seen': dict(mask_padding=False),
    'v2': dict(arch='v2-tiny', embed_dims=16, depths=(2, 2), num_heads=(2, 2), strides=(4, 2), out_indices=(0, 1)),
}


def tiny(**arguments) -> SwinRPE:
    """A backbone of two stages whose weights are large enough to tell logits apart."""
    sizes = dict(arch='nano', depths=(2, 2), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1), window_size=4)
    backbone = SwinRPE(**{**sizes, **arguments})
    backbone.init_weights()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return backbone.eval()


@pytest.mark.parametrize('arguments', CASES.values(), ids=CASES)
def test_against_attention(arguments):
    backbone = tiny(**arguments)
    calls, used = [], []

    def record(q, k, v, bias, *others):
        used.append((q @ k.transpose(-2, -1), bias))
        return attend(q, k, v, bias, *others)

    for module in backbone.modules():
        if isinstance(module, WindowAttention):
            module.attend = record
            module.register_forward_pre_hook(lambda module, args: calls.append((module, *args)))
    backbone(torch.randn(2, 3, 76, 100), [(76, 100), (60, 75)])

    assert len(calls) == 4
    for (module, x, layout), (content, bias) in zip(calls, used):
        assert not layout.visible.flatten(1).all(1).all() or not backbone.config.mask_padding
        total = content if bias is None else content + bias
        windows = spread_windows(layout, 9)
        found = window_logits(module, windows, x, layout)
        total_found = found.content if found.bias is None else found.content + found.bias
        assert torch.equal(found.visible, layout.visible[windows])
        held = (layout.rows < len(layout.rows_back)).view_as(layout.region) & (layout.region >= 0)
        assert torch.equal(found.queries, held[windows])
        seen = (found.visible & found.queries[..., None])[:, None].expand_as(found.content)
        for one, two in ((found.content, content), (total_found, total)):
            torch.testing.assert_close(one[seen], two[windows][seen], rtol=1e-5, atol=1e-4)
        weights = total[windows].masked_fill(~found.visible[:, None], float('-inf')).softmax(-1)
        torch.testing.assert_close(found.weights[seen], weights[seen], rtol=1e-4, atol=1e-5)
        assert (found.bias is None) == (bias is None)


def test_sigmoids():
    attention = WindowAttention(8, 2, (4, 4), [dict(type='LogCPB'), dict(type='DynamicRPE')])
    x, layout = torch.randn(1, 6 * 7, 8), WindowLayout.build(ShiftedWindows((4, 4)), 1, (6, 7))
    windows = spread_windows(layout, 3)
    with torch.no_grad():
        attention.rpe.encodings[1].scale_mlp[2].bias.copy_(torch.tensor([0., 9.]))
    found = window_logits(attention, windows, x, layout)
    cpb, dynamic = found.sigmoids
    torch.testing.assert_close(16 * cpb, attention.rpe.encodings[0].bias(attention.geometry))
    assert dynamic.shape == (int(found.queries.sum()), 2)
    torch.testing.assert_close(dynamic, torch.tensor([0., 9.]).sigmoid().expand_as(dynamic))
    assert not any(module._forward_hooks for module in attention.rpe.modules())


@pytest.mark.parametrize('kind', [ShiftedWindows, PaddedWindows, GlobalWindows])
def test_same_windows_spread_over_the_layout(kind):
    extents = torch.tensor([(30, 40), (17, 23)])
    layout = WindowLayout.build(kind((4, 4), shift=(2, 2)), 2, (30, 40), extents)
    real = (layout.region >= 0).any(1).nonzero().flatten().tolist()
    windows = spread_windows(layout, 8).tolist()
    assert windows == sorted(set(windows)) and len(windows) == min(8, len(real))
    assert windows[0] == real[0] and windows[-1] == real[-1]
    steps = torch.tensor([real.index(window) for window in windows]).diff()
    assert max(steps) - min(steps) <= 1
    assert spread_windows(layout, len(real) + 5).tolist() == real


def test_no_random_numbers_and_no_graph():
    attention = WindowAttention(8, 2, (4, 4), dict(type='TableRPE'), attn_drop_rate=0.5, proj_drop_rate=0.5).train()
    x, layout = torch.randn(1, 64, 8, requires_grad=True), WindowLayout.build(ShiftedWindows((4, 4)), 1, (8, 8))
    state = torch.get_rng_state()
    found = window_logits(attention, spread_windows(layout, 4), x, layout)
    assert torch.equal(torch.get_rng_state(), state)
    assert not found.content.requires_grad and not found.bias.requires_grad


def test_half_precision_products_in_float32():
    attention = WindowAttention(8, 2, (4, 4), dict(type='TableRPE'))
    x, layout = torch.randn(1, 64, 8), WindowLayout.build(ShiftedWindows((4, 4)), 1, (8, 8))
    windows = spread_windows(layout, 4)
    exact = window_logits(attention, windows, x, layout)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        found = window_logits(attention, windows, x, layout)
    assert found.content.dtype == torch.float32
    torch.testing.assert_close(found.content, exact.content, rtol=2e-2, atol=2e-2)
