"""Logits worked out again against those that attention used."""
import pytest
import torch

from swin_rpe_mm import SwinRPE, attach_extents
from swin_rpe_mm.models import WindowAttention, attention
from swin_rpe_mm.executors.backends import attention_weights, eager
from swin_rpe_mm.visualization.window_logits import spread_windows, window_logits
from swin_rpe_mm.windows import WindowLayout, all_keys

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
def test_against_attention(arguments, monkeypatch):
    backbone = tiny(**arguments)
    calls, used = [], []

    def record(q, k, bias, visible):
        used.append((q @ k.transpose(-2, -1), bias, visible))

    def attend(q, k, v, bias, visible, dropout, scale):
        record(q * scale, k, bias, visible)
        return eager(q, k, v, bias, visible, dropout, scale)

    def weigh(q, k, bias, visible, dropout):  # where something is added to the values
        record(q, k, bias, visible)
        return attention_weights(q, k, bias, visible, dropout)

    monkeypatch.setattr(attention, 'attention_weights', weigh)
    monkeypatch.setattr(WindowAttention, 'key_groups', lambda module, layout: (all_keys(layout), ))
    for module in backbone.modules():
        if isinstance(module, WindowAttention):
            module.attend = attend
            module.register_forward_pre_hook(lambda module, args: calls.append((module, args, len(used))))
    images = torch.randn(2, 3, 76, 100)
    backbone(attach_extents(images, [(76, 100), (60, 75)]))  # with gradients, so that blocks are not cut into parts

    assert len(calls) == 4
    assert any(0 < args[1].plain < len(args[1].slots) for _, args, _ in calls)  # masked and unmasked windows
    for (module, args, first), last in zip(calls, [call[2] for call in calls[1:]] + [len(used)]):
        parts, layout = used[first:last], args[1]
        content = torch.cat([part[0] for part in parts])
        total = torch.cat([part[0] if part[1] is None else part[0] + part[1] for part in parts])
        visible = torch.ones(len(content), *content.shape[2:], dtype=torch.bool)
        visible[layout.plain:] = layout.visible
        windows = spread_windows(layout, 9)
        found = window_logits(module, windows, *args[:4])
        total_found = found.content if found.bias is None else found.content + found.bias
        assert torch.equal(found.visible, visible[windows])
        assert torch.equal(found.queries, layout.valid[windows])
        seen = (found.visible & found.queries[..., None])[:, None].expand_as(found.content)
        for one, two in ((found.content, content), (total_found, total)):
            torch.testing.assert_close(one[seen], two[windows][seen], rtol=1e-5, atol=1e-4)
        weights = total[windows].masked_fill(~found.visible[:, None], float('-inf')).softmax(-1)
        torch.testing.assert_close(found.weights[seen], weights[seen], rtol=1e-4, atol=1e-5)
        assert (found.bias is None) == all(part[1] is None for part in parts)


def test_sigmoids():
    attention = WindowAttention(8, 2, (4, 4), [dict(type='LogCPB'), dict(type='DynamicRPE')])
    x, layout = torch.randn(6 * 7, 8), WindowLayout.build((6, 7), (4, 4))
    windows = spread_windows(layout, 3)
    with torch.no_grad():
        attention.rpe.encodings[1].scale_mlp[2].bias.copy_(torch.tensor([0., 9.]))
    cpb, dynamic = window_logits(attention, windows, x, layout, True).sigmoids
    *_, bias = attention.rpe.encodings[0](None, None, attention.geometry)
    torch.testing.assert_close(16 * cpb, bias)
    assert dynamic.shape == (int(layout.valid[windows].sum()), 2)
    torch.testing.assert_close(dynamic, torch.tensor([0., 9.]).sigmoid().expand_as(dynamic))
    assert not any(module._forward_hooks for module in attention.rpe.modules())


def test_same_windows_spread_over_the_layout():
    layout = WindowLayout.build((30, 40), (4, 4), (2, 2), [(30, 40), (17, 23)])
    total = len(layout.slots)
    windows = spread_windows(layout, 8)
    assert windows.tolist() == sorted(set(windows.tolist())) and len(windows) == 8
    assert windows[0] == 0 and windows[-1] == total - 1 >= layout.plain
    assert max(windows.diff()) - min(windows.diff()) <= 1
    assert spread_windows(layout, total + 5).tolist() == list(range(total))


def test_no_random_numbers_and_no_graph():
    attention = WindowAttention(8, 2, (4, 4), dict(type='TableRPE'), attn_drop_rate=0.5, proj_drop_rate=0.5).train()
    x, layout = torch.randn(64, 8, requires_grad=True), WindowLayout.build((8, 8), (4, 4))
    state = torch.get_rng_state()
    found = window_logits(attention, spread_windows(layout, 4), x, layout, True)
    assert torch.equal(torch.get_rng_state(), state)
    assert not found.content.requires_grad and not found.bias.requires_grad


def test_half_precision_products_in_float32():
    attention = WindowAttention(8, 2, (4, 4), dict(type='TableRPE'))
    x, layout = torch.randn(64, 8), WindowLayout.build((8, 8), (4, 4))
    windows = spread_windows(layout, 4)
    exact = window_logits(attention, windows, x, layout, True)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        found = window_logits(attention, windows, x, layout, True)
    assert found.content.dtype == torch.float32
    torch.testing.assert_close(found.content, exact.content, rtol=2e-2, atol=2e-2)
