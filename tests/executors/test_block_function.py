"""A block trained part by part gives what the block of modules gives, forward and backward."""
import pytest
import torch
from oracles.cases import dice, random_extents, random_size, random_window
from oracles.compare import assert_forward, assert_gradients

from swin_rpe_mm.models import SwinBlock, attention
from swin_rpe_mm.windows import WindowLayout


def build(window=(3, 4), **options) -> SwinBlock:
    block = SwinBlock(8, 20, norm_cfg=dict(type='LN', eps=1e-3), act_cfg=dict(type='GELU'), num_heads=2,
                      window_size=window, **({'rpe': dict(type='TableRPE')} | options))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in block.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
    return block


def draw(name: str, window=None, mask_padding=True):
    rng = dice(f'block by parts {name}', 0)
    window, size = window or random_window(rng, 5), random_size(rng, 40)
    shift = tuple(side // 2 for side in window)
    layout = WindowLayout.build(size, window, shift, random_extents(rng, 3, size), mask_padding=mask_padding)
    return layout, torch.randn(len(layout.inside), 8, requires_grad=True)


def layout_window(layout: WindowLayout):
    """A window of as many slots, which is all that a block and a table ask of it."""
    return 1, layout.slots.shape[1]


def gradients(run, x, module):
    module.zero_grad()
    out = run(x)
    to_x, = torch.autograd.grad((out * torch.arange(8)).sin().sum(), x, retain_graph=True)
    (out * torch.arange(8)).sin().sum().backward()
    return out, {'x': to_x} | {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize('at_once', [1, 60, 10**6])
@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('options', [
    {}, dict(rpe=None), dict(qkv_bias=False), dict(qk_scale=0.7), dict(drop_path_rate=0.5), dict(with_cp=True),
    dict(rpe=dict(type='LogCPB', hidden_dims=5)),
], ids=str)
def test_equal_to_the_modules(monkeypatch, options, mask_padding, at_once):
    layout, x = draw(f'{options} {mask_padding}', mask_padding=mask_padding)
    block = build(layout_window(layout), **options)
    monkeypatch.setattr(attention, 'TOKENS_AT_ONCE', at_once)
    kept = [torch.tensor([2., 0., 1.5]), torch.tensor([0., 1.2, 2.])] if 'drop_path_rate' in options else [None, None]
    assert block._trains_by_parts(x)
    fast = gradients(lambda x: block._train(x, layout, mask_padding, kept), x, block)
    plain = gradients(lambda x: block._run(x, layout, mask_padding, kept), x, block)
    assert_forward(fast[0], plain[0], 'block by parts')
    assert fast[1].keys() == plain[1].keys()
    assert_gradients(fast[1], plain[1], 'block by parts')


@pytest.mark.parametrize('frozen', ['x', 'norm1', 'attn', 'ffn', 'norm2', 'all but x'])
def test_what_is_frozen_gets_no_gradient(frozen):
    layout, x = draw('frozen')
    block = build(layout_window(layout))
    for name, parameter in block.named_parameters():
        parameter.requires_grad_(frozen != 'all but x' and not name.startswith(frozen))
    x.requires_grad_(frozen != 'x')
    assert block._trains_by_parts(x)
    block(x, layout, True).sum().backward()
    assert (x.grad is not None) == (frozen != 'x')
    for parameter in block.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad


def test_a_frozen_block_before_what_is_trained_keeps_nothing():
    layout, x = draw('wholly frozen')
    block = build(layout_window(layout)).requires_grad_(False)
    expected = block._run(x, layout, True, [None, None]).detach()
    out = block(x.detach(), layout, True)
    assert not out.requires_grad
    assert_forward(out, expected, 'frozen block')


@pytest.mark.parametrize('place', ['attn', 'attn.w_msa', 'attn.w_msa.qkv', 'norm2', 'ffn.layers.0.0'])
def test_hooks_are_called(place):
    layout, x = draw('hooks')
    block, seen = build(layout_window(layout)), []
    expected = block(x, layout, True)
    block.get_submodule(place).register_forward_hook(lambda *_: seen.append(place))
    assert_forward(block(x, layout, True), expected, 'hooked block')
    assert seen == [place]


@pytest.mark.parametrize('options', [
    dict(attn_backend='eager'), dict(attn_drop_rate=0.1), dict(drop_rate=0.1), dict(halo=(0, 1)), dict(cosine=True),
    dict(norm_after=True), dict(act_cfg=dict(type='ReLU')), dict(rpe=dict(type='RotaryRPE', mode='axial')),
], ids=str)
def test_other_blocks_run_as_modules(options):
    layout, x = draw('others')
    settings = dict(norm_cfg=dict(type='LN'), act_cfg=dict(type='GELU'), num_heads=2) | options
    block = SwinBlock(8, 20, window_size=layout_window(layout), **settings)
    assert not block._trains_by_parts(x)
    if 'drop_rate' in options or 'attn_drop_rate' in options:
        assert block.eval()._trains_by_parts(x)


def test_other_numbers_run_as_modules():
    layout, x = draw('numbers')
    block = build(layout_window(layout))
    assert not block._trains_by_parts(x.double())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert not block._trains_by_parts(x)
    with torch.no_grad():
        assert not block._trains_by_parts(x)
