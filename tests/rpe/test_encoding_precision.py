"""Biases are float32 or wider whatever the tokens, the module or autocast are; tokens keep their dtype."""
import copy

import pytest
import torch
from oracles.cases import pixels
from oracles.compare import TOLERANCE, forward_error, gradient_error, record
from rpe_cases import ENCODINGS, HEADS, OWN_WINDOWS, built, regions, tokens

HALVES = [torch.bfloat16, torch.float16]
WHERE = ['halo', 'one axis', 'one token']
PAIRS = [(name, where) for name in ENCODINGS for where in WHERE
         if name not in ('clipped to 1, 2', 'log cpb of 7, 1') or where != 'one axis']


def outputs(rpe, q, k, geometry, region, weights) -> dict:
    q, k, bias = rpe(q, k, geometry, region)
    values = rpe.values(weights, geometry) if rpe.gives('values') else None
    return {name: value for name, value in dict(q=q, k=k, bias=bias, values=values).items() if value is not None}


def check(rpe, wide, q, k, geometry, autocast=False) -> None:
    """Compare an encoding of half tokens with one whose parameters and tokens are the same numbers in float32."""
    region = regions(geometry)
    weights = pixels(2, HEADS, q.shape[2], k.shape[2]).softmax(-1).to(q.dtype)
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        actual = outputs(rpe, q, k, geometry, region, weights)
    expected = outputs(wide, q.float(), k.float(), geometry, region, weights.float())
    for part, value in expected.items():
        assert actual[part].dtype == (q.dtype if part in 'qk' else torch.float32), part
        assert torch.isfinite(actual[part]).all(), part
        # what follows a rotation sees queries that were rounded
        rotates = rpe.gives('rotate')
        rounded = part in 'qk' or rotates
        error = forward_error(actual[part], value) / max(1., value.abs().max().item())
        record(f'encodings of {str(q.dtype)[6:]} tokens, {part}{" after rotation" * rotates}, forward', error)
        assert error <= TOLERANCE['forward'][torch.bfloat16 if rounded else torch.float32], f'{part}: {error:.1e}'


@pytest.mark.parametrize('name, where', PAIRS)
def test_half_tokens(name, where):
    made = OWN_WINDOWS[where]
    rpe = built(name, made)
    for dtype in HALVES:
        check(rpe, rpe, *tokens(made.called(), dtype), made.called())


@pytest.mark.parametrize('name, where', PAIRS)
def test_autocast(name, where):
    made = OWN_WINDOWS[where]
    rpe = built(name, made)
    for dtype in (torch.bfloat16, torch.float32):
        check(rpe, rpe, *tokens(made.called(), dtype), made.called(), autocast=True)


@pytest.mark.parametrize('name, where', PAIRS)
def test_half_module(name, where):
    made = OWN_WINDOWS[where]
    for dtype in HALVES:
        rpe = built(name, made).to(dtype)
        wide = copy.deepcopy(rpe).float()
        check(rpe, wide, *tokens(made.called(), dtype), made.called())
        check(rpe, wide, *tokens(made.called(), dtype), made.called(), autocast=True)


@pytest.mark.parametrize('name', sorted(ENCODINGS))
def test_products_beyond_half(name):
    """Half ends at 65504."""
    made = OWN_WINDOWS['halo']
    rpe = built(name, made)
    for parameter in rpe.parameters():
        parameter.data *= 16
    q, k = (3e3 * x for x in tokens(made.called()))
    for module in (rpe, copy.deepcopy(rpe).half()):
        bias = module(q.half(), k.half(), made.called(), regions(made.called()))[2]
        assert bias is None or torch.isfinite(bias).all()


def gradients(rpe, q, k, geometry) -> dict:
    rpe.zero_grad()
    weights = pixels(2, HEADS, q.shape[2], k.shape[2]).softmax(-1)
    parts = outputs(rpe, q, k, geometry, regions(geometry), weights)
    sum((value * pixels(*value.shape, seed=i)).sum() for i, value in enumerate(parts.values())).backward()
    return {name: parameter.grad for name, parameter in rpe.named_parameters()}


@pytest.mark.parametrize('name', sorted(name for name in ENCODINGS if 'axial' not in name))
def test_gradients_under_autocast(name):
    made = OWN_WINDOWS['halo']
    geometry = made.called()
    rpe = built(name, made)
    q, k = tokens(geometry, torch.bfloat16)
    expected = gradients(rpe, q.float(), k.float(), geometry)
    with torch.autocast('cpu', torch.bfloat16):
        actual = gradients(rpe, q, k, geometry)
    assert all(grad.dtype == torch.float32 for grad in actual.values())
    error, where = gradient_error(actual, expected)
    assert error <= TOLERANCE['forward'][torch.bfloat16], f'{where}: {error:.1e}'


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
def test_on_a_gpu():
    made = OWN_WINDOWS['halo']
    geometry = made.called()
    q, k = tokens(geometry, torch.float64)
    weights = pixels(2, HEADS, q.shape[2], k.shape[2]).softmax(-1).double()
    for name in ENCODINGS:
        rpe = built(name, made, torch.float64)
        expected = outputs(rpe, q, k, geometry, regions(geometry), weights)
        actual = outputs(rpe.cuda(), q.cuda(), k.cuda(), geometry, regions(geometry).cuda(), weights.cuda())
        for part, value in expected.items():
            assert forward_error(actual[part].cpu(), value) <= TOLERANCE['forward'][torch.float64], (name, part)
