"""A block trained part by part gives what the block of modules gives, forward and backward."""
import pytest
import torch
from oracles.cases import dice, random_extents, random_size, random_window
from oracles.compare import assert_forward, assert_gradients
from packing import packed

from swin_rpe_mm.executors import tuning
from swin_rpe_mm.executors.cpu import inference, training
from swin_rpe_mm.executors.cpu.rows import prepare, run_rows
from swin_rpe_mm.models import SwinBlock


def build(window=(3, 4), **options) -> SwinBlock:
    block = SwinBlock(8, 20, norm_cfg=dict(type='LN', eps=1e-3), num_heads=2, window_size=window,
                      **({'rpe': dict(type='TableRPE')} | options))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in block.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
    return block


def draw(name: str, mask_padding=True):
    rng = dice(f'block by parts {name}', 0)
    window, size = random_window(rng, 5), random_size(rng, 40)
    layout = packed(size, window, tuple(side // 2 for side in window), random_extents(rng, 3, size),
                    mask_padding=mask_padding)
    return window, layout, torch.randn(len(layout.inside), 8, requires_grad=True)


def gradients(run, x, module):
    module.zero_grad()
    out = run(x)
    to_x, = torch.autograd.grad((out * torch.arange(8)).sin().sum(), x, retain_graph=True)
    (out * torch.arange(8)).sin().sum().backward()
    return out, {'x': to_x} | {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize('at_once', [1, 60, 10**6])
@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('options', [
    {}, dict(rpe=None), dict(qkv_bias=False), dict(qk_scale=0.7), dict(drop_path_rate=0.5),
    dict(rpe=dict(type='LogCPB', hidden_dims=5)),
], ids=str)
def test_equal_to_the_operations_in_a_row(options, mask_padding, at_once):
    window, layout, x = draw(f'{options} {mask_padding}', mask_padding=mask_padding)
    block = build(window, **options).train()
    assert training.why_not(block, x) is None

    def draws(run):
        def seeded(x):
            torch.manual_seed(5)
            return run(x)

        return seeded

    with tuning(tokens_at_once=at_once):
        fast = gradients(draws(lambda x: training.run(block, x, layout, mask_padding, {})), x, block)
    torch.manual_seed(5)
    kept = inference.draw_images(block, x, layout.batch_size)
    plain = gradients(lambda x: run_rows(block, prepare(block), x, layout, mask_padding, kept), x, block)
    assert_forward(fast[0], plain[0], 'block by parts')
    assert fast[1].keys() == plain[1].keys()
    assert_gradients(fast[1], plain[1], 'block by parts')


@pytest.mark.parametrize('frozen', ['x', 'norm1', 'attn', 'ffn', 'norm2', 'all but x'])
def test_what_is_frozen_gets_no_gradient(frozen):
    window, layout, x = draw('frozen')
    block = build(window)
    for name, parameter in block.named_parameters():
        parameter.requires_grad_(frozen != 'all but x' and not name.startswith(frozen))
    x.requires_grad_(frozen != 'x')
    training.run(block, x, layout, True, {}).sum().backward()
    assert (x.grad is not None) == (frozen != 'x')
    for parameter in block.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad


@pytest.mark.parametrize('options, reason', [
    (dict(attn_drop_rate=0.1), 'dropout'), (dict(drop_rate=0.1), 'dropout'), (dict(halo=(0, 1)), 'other windows'),
    (dict(cosine=True), 'cosines'), (dict(norm_after=True), 'norms'), (dict(act_cfg=dict(type='ReLU')), 'GELU'),
    (dict(rpe=dict(type='RotaryRPE', mode='axial')), 'looks at queries'), (dict(pooled_neighbours=1), 'other windows'),
], ids=str)
def test_why_not(options, reason):
    block, x = SwinBlock(8, 20, num_heads=2, window_size=(3, 4), **options).train(), torch.zeros(3, 8)
    assert reason in training.why_not(block, x)
    if reason == 'dropout':
        assert training.why_not(block.eval(), x) is None


def test_why_not_other_numbers():
    block, x = build().train(), torch.zeros(3, 8)
    assert 'float32' in training.why_not(block, x.double())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert 'float32' in training.why_not(block, x)
    with torch.no_grad():
        assert 'no gradients' in training.why_not(block, x)
