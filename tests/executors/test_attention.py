"""Every way to attend against attention written out pair by pair, on the CPU and, where there is one, on a GPU."""
import pytest
import torch
from oracles.cases import pixels
from oracles.compare import TOLERANCE, assert_forward, assert_gradients

from swin_rpe_mm.executors.cpu.by_heads import attend_windows
from swin_rpe_mm.executors.fused import attend_fused, fused, why_not
from swin_rpe_mm.models.block import attend

WAYS = {
    'attend': attend,
    'fused': fused,
    'fused if it can': attend_fused,
    'by heads': lambda *arguments: attend_windows(*arguments, 1.),
}

DEVICES = ['cpu', pytest.param('cuda', marks=pytest.mark.skipif(not torch.cuda.is_available(),
                                                                reason='needs a CUDA device'))]
CASES = {  # windows, heads, queries, keys, head dimensions
    'window 7': (5, 2, 49, 49, 8),
    'window 8, 64 tokens': (4, 2, 64, 64, 16),
    'halo': (3, 2, 9, 25, 4),
    'one token': (4, 1, 1, 1, 4),
}


def inputs(shape, bias_kind: str, masked: bool, device: str, dtype=torch.float32):
    """q, k, v, bias and visible; every query sees at least one key."""
    windows, heads, queries, keys, dims = shape
    q, v = pixels(windows, heads, queries, dims, seed=1), pixels(windows, heads, keys, dims, seed=2)
    k = pixels(windows, heads, keys, dims, seed=3)
    bias = {'none': None, 'shared': pixels(heads, queries, keys, seed=4),
            'per window': pixels(windows, heads, queries, keys, seed=4)}[bias_kind]
    visible = None
    if masked:
        visible = pixels(windows, queries, keys, seed=5) > 0
        visible[..., 0] = True
    tensors = [None if x is None else x.to(device, dtype).requires_grad_() for x in (q, k, v, bias)]
    return *tensors, None if visible is None else visible.to(device)


def written_out(q, k, v, bias, visible):
    logits = torch.einsum('thnd,thmd->thnm', q, k)
    if bias is not None:
        logits = logits + bias
    exponents = logits.exp()
    if visible is not None:
        exponents = exponents * visible[:, None]
    return torch.einsum('thnm,thmd->thnd', exponents / exponents.sum(-1, keepdim=True), v)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('bias_kind', ['none', 'shared', 'per window'])
@pytest.mark.parametrize('trained_bias', [True, False])
@pytest.mark.parametrize('shape', CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize('way', WAYS)
def test_forward_and_gradient(way, shape, trained_bias, bias_kind, masked, device):
    results = []
    for run in (WAYS[way], None):
        q, k, v, bias, visible = inputs(shape, bias_kind, masked, device)
        if bias is not None:
            bias.requires_grad_(trained_bias)
        out = run(q, k, v, bias, visible, 0.0) if run else written_out(q, k, v, bias, visible)
        (out * pixels(*out.shape, seed=6).to(device)).sum().backward()
        named = dict(q=q, k=k, v=v, bias=bias)
        results.append((out, {name: x.grad for name, x in named.items() if x is not None and x.requires_grad}))
    assert_forward(results[0][0], results[1][0], f'attention by {way} on {device}')
    assert_gradients(results[0][1], results[1][1], f'attention by {way} on {device}')


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('shape', CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize('way', WAYS)
def test_bfloat16(way, shape, device):
    q, k, v, bias, visible = inputs(shape, 'shared', True, device, torch.bfloat16)
    out = WAYS[way](q, k, v, bias, visible, 0.0)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v, bias))
    expected = written_out(*(x.detach().float() for x in (q, k, v, bias)), visible)
    assert (out.float() - expected).norm() <= TOLERANCE['forward'][torch.bfloat16] * expected.norm()


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('way', WAYS)
def test_masked_weight_is_zero_at_any_logit(way, device):
    """Bias of 1e4 on every masked key: -100 would let it win."""
    *tensors, visible = inputs(CASES['window 7'], 'per window', True, device)
    q, k, v, bias = (x.detach() for x in tensors)
    with torch.no_grad():
        base = WAYS[way](q, k, v, bias, visible, 0.0)
        loud = WAYS[way](q, k, v, torch.where(visible[:, None], bias, 1e4), visible, 0.0)
    assert torch.equal(base, loud)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('way', WAYS)
def test_more_windows_than_one_call_takes(way, device):
    """Some GPU kernels take 65535 windows at most."""
    windows = 70_000
    q, k, v = (pixels(windows, 1, 4, 4, seed=i).to(device) for i in range(3))
    bias = pixels(1, 4, 4, seed=4).to(device)
    with torch.no_grad():
        out = WAYS[way](q, k, v, bias, None, 0.0)
        assert_forward(out, written_out(q, k, v, bias, None))


@pytest.mark.parametrize('way', WAYS)
def test_dropout_keeps_the_mean(way):
    q, k, v, bias, visible = inputs((1, 1, 4, 4, 2), 'shared', True, 'cpu')
    with torch.no_grad():
        expected = WAYS[way](q, k, v, bias, visible, 0.0)
        drawn = torch.stack([WAYS[way](q, k, v, bias, visible, 0.5) for _ in range(4000)])
    assert drawn.std(0).max() > 0.1
    assert (drawn.mean(0) - expected).abs().max() < 6 * drawn.std(0).max() / 4000**0.5


@pytest.mark.parametrize('values', [None, lambda weights: weights @ weights.new_ones(16, 4)])
def test_why_not_fused(values):
    q = torch.zeros(2, 2, 16, 4)
    reason = 'the encoding adds to the values' if values else 'queries are on cpu, not on a GPU'
    assert why_not(q, values) == reason


def test_what_is_added_to_values():
    q, k, v, bias, visible = inputs((3, 2, 9, 16, 4), 'shared', True, 'cpu')
    added = pixels(3, 2, 16, 4, seed=9)
    out = attend_fused(q, k, v, bias, visible, 0., lambda weights: weights @ added)
    assert_forward(out, written_out(q, k, v + added, bias, visible))
