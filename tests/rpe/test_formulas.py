"""Every encoding in windows of every kind against its formula, written out pair by pair."""
import math

import pytest
import torch
from oracles import encodings
from oracles.cases import case_count, dice, pixels, random_window
from oracles.compare import TOLERANCE, assert_forward, assert_gradients, forward_error, record
from rpe_cases import (
    ANY_OFFSET,
    COMBINATIONS,
    CONTEXTUAL,
    ENCODINGS,
    FAR_WINDOWS,
    FUNCTIONS,
    HEAD_DIM,
    HEADS,
    OWN_WINDOWS,
    TABLES,
    WRAPPED_TABLES,
    Made,
    built,
    drawn,
    regions,
    tokens,
)
from torch.utils._python_dispatch import TorchDispatchMode

from swin_rpe_mm.rpe import LowRankRPE, RotaryRPE, build_rpe
from swin_rpe_mm.rpe.buckets import piecewise, sign_log, t5
from swin_rpe_mm.windows import WindowGeometry


def run(rpe, q, k, geometry, region, weights) -> dict:
    """All that an encoding gives, by name."""
    q, k, bias = rpe(q, k, geometry, region)
    values = rpe.values(weights, geometry) if rpe.gives('values') else None
    return dict(q=q, k=k, bias=bias, values=values)


def written_out(name, params, q, k, made, region, weights) -> dict:
    geometry = made.called()
    added = encodings.added_values(ENCODINGS[name], params, weights, geometry)
    q, k, bias = encodings.encode(ENCODINGS[name], params, q, k, geometry, made.window, made.key_size, region)
    return dict(q=q, k=k, bias=bias, values=added)


def weighted_sum(outs: dict) -> torch.Tensor:
    """A scalar that depends on every entry of every output with a weight of its own."""
    return sum((out * pixels(*out.shape, seed=i).to(out.dtype)).sum() for i, out in enumerate(outs.values())
               if out is not None)


def with_grad(*tensors) -> list:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize('seed, name, where', [(seed, name, where) for seed, (name, where) in enumerate(COMBINATIONS)])
def test_as_written_out(seed, name, where):
    made = (OWN_WINDOWS | FAR_WINDOWS)[where]
    geometry = made.called()
    rpe = built(name, made, torch.float64, seed)
    q, k = tokens(geometry, torch.float64, seed)
    region = regions(geometry, seed) if seed % 3 else None
    weights = pixels(2, HEADS, q.shape[2], k.shape[2], seed=seed).double().softmax(-1)

    inputs, twins = (dict(zip(('q', 'k', 'weights'), with_grad(q, k, weights))) for _ in range(2))
    params = dict(zip(dict(rpe.named_parameters()), with_grad(*rpe.parameters())))
    actual = run(rpe, inputs['q'], inputs['k'], geometry, region, inputs['weights'])
    expected = written_out(name, params, twins['q'], twins['k'], made, region, twins['weights'])
    for part, value in expected.items():
        assert (actual[part] is None) == (value is None), part
        if value is not None:
            assert_forward(actual[part], value, f'encodings float64, {part}')
            assert torch.isfinite(value).all()
    if not rpe.gives('rotate'):
        assert actual['q'] is inputs['q'] and actual['k'] is inputs['k']

    weighted_sum(actual).backward()
    weighted_sum(expected).backward()
    used = {key: twin.grad for key, twin in twins.items() if twin.grad is not None}
    assert {key for key, value in inputs.items() if value.grad is not None and value.grad.abs().max() > 0} == {
        key for key, value in used.items() if value.abs().max() > 0}
    grads = {key: inputs[key].grad for key in used} | {key: value.grad for key, value in rpe.named_parameters()}
    assert_gradients(grads, used | {key: value.grad for key, value in params.items()}, 'encodings float64')

    single = run(rpe.float(), q.float(), k.float(), geometry, region, weights.float())
    for part, value in expected.items():
        if value is not None:
            assert single[part].dtype == torch.float32
            error = forward_error(single[part], value) / max(1., value.abs().max().item())
            record(f'encodings float32, {part}, forward', error)
            assert error <= TOLERANCE['forward'][torch.float32], f'{part}: {error:.1e}'


SMALL = {1: Made((2, ), (3, )), 2: Made((2, 1), (2, 2))}


@pytest.mark.parametrize('axes', [1, 2])
@pytest.mark.parametrize('name', ['table', 'clipped to 1', 'sign_log of 3', 't5 of 8', 'piecewise of 1', 'log cpb',
                                  'linear cpb', 'contextual qk', 'contextual qkv, heads', 'decomposed', 'low rank',
                                  'block of 1', 'rotary', 'axial', 'dynamic', 'dynamic contextual', 'three'])
def test_gradcheck(name, axes):
    made = SMALL[axes]
    geometry = made.called()
    rpe = built(name, made, torch.float64)
    q, k = tokens(geometry, torch.float64)
    region = regions(geometry)
    weights = pixels(2, HEADS, q.shape[2], k.shape[2]).double()
    names = list(dict(rpe.named_parameters()))

    def outputs(q, k, weights, *params):
        rebuilt = torch.func.functional_call(_Outputs(rpe), dict(zip((f'rpe.{name}' for name in names), params)),
                                             (q, k, geometry, region, weights))
        return tuple(out for out in rebuilt if out is not None and out.requires_grad)

    assert torch.autograd.gradcheck(outputs, with_grad(q, k, weights, *rpe.parameters()), fast_mode=True)


class _Outputs(torch.nn.Module):
    """An encoding whose ``forward`` gives everything."""

    def __init__(self, rpe):
        super().__init__()
        self.rpe = rpe

    def forward(self, q, k, geometry, region, weights):
        return tuple(run(self.rpe, q, k, geometry, region, weights).values())


# ---- rotary ----


@pytest.mark.parametrize('name', ['rotary', 'axial', 'axial of 100'])
@pytest.mark.parametrize('window', [(3, 4), (6, ), (2, 3, 2)])
def test_rotary_logits_depend_on_the_offset_only(name, window):
    made = Made(window, window)
    rpe = built(name, made, torch.float64)
    one, other = (pixels(1, HEADS, 1, HEAD_DIM, seed=seed).double() for seed in (1, 2))
    slots = math.prod(window)
    q, k, bias = rpe(one.expand(-1, -1, slots, -1), other.expand(-1, -1, slots, -1), made.called())
    assert bias is None
    logits = q @ k.mT
    by_offset = {}
    queries, keys = encodings.places(made.called())
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            by_offset.setdefault(tuple(a - b for a, b in zip(query, key)), []).append(logits[0, 0, i, j].item())
    assert all(max(found) - min(found) < 1e-10 for found in by_offset.values())
    assert len({round(found[0], 8) for found in by_offset.values()}) == len(by_offset)
    assert by_offset[(0, ) * len(window)][0] == pytest.approx((one * other).sum(-1)[0, 0].item())


@pytest.mark.parametrize('name', ['rotary', 'axial'])
def test_rotary_at_another_place_gives_the_same_logits(name):
    made = Made((3, 3), (5, 5))
    rpe = built(name, made, torch.float64)
    here = made.called()
    smaller = WindowGeometry((2, 2), (3, 3), (-1, -1))
    q, k = tokens(here, torch.float64)
    q_out, k_out, _ = rpe(q, k, here)
    inside = [0, 1, 3, 4], [0, 1, 2, 5, 6, 7, 10, 11, 12]
    q_small, k_small, _ = rpe(q[:, :, inside[0]], k[:, :, inside[1]], smaller)
    assert torch.allclose((q_out @ k_out.mT)[:, :, inside[0]][..., inside[1]], q_small @ k_small.mT, atol=1e-10)


def test_rotary_keeps_lengths():
    made = Made((3, 4), (5, 6))
    q, k = tokens(made.called(), torch.float64)
    q_out, k_out, _ = built('rotary', made, torch.float64)(q, k, made.called())
    assert torch.allclose(q_out.norm(dim=-1), q.norm(dim=-1)) and torch.allclose(k_out.norm(dim=-1), k.norm(dim=-1))


# ---- a window among others ----


@pytest.mark.parametrize('name', sorted(CONTEXTUAL | WRAPPED_TABLES | FUNCTIONS | TABLES))
def test_a_window_does_not_depend_on_the_others(name):
    made = OWN_WINDOWS['halo']
    geometry = made.called()
    rpe = built(name, made, torch.float64)
    q, k = tokens(geometry, torch.float64)
    weights = pixels(2, HEADS, q.shape[2], k.shape[2]).double()
    region = regions(geometry)
    both = run(rpe, q, k, geometry, region, weights)
    for t in range(2):
        alone = run(rpe, *(x[t:t + 1] for x in (q, k)), geometry, region[t:t + 1], weights[t:t + 1])
        for part, value in alone.items():
            if value is not None:
                own = both[part] if both[part].ndim == 3 else both[part][t:t + 1]
                assert torch.allclose(own, value, atol=1e-12), part


@pytest.mark.parametrize('name', ['dynamic', 'dynamic of two', 'three'])
def test_slots_of_other_regions_have_no_say(name):
    made = OWN_WINDOWS['square']
    geometry = made.called()
    rpe = built(name, made, torch.float64)
    q, k = tokens(geometry, torch.float64)
    region = regions(geometry)
    before = rpe(q, k, geometry, region)[2]
    own = region == region[:, :1]
    changed = torch.where(own[:, None, :, None], q, q + 10)
    after = rpe(changed, k, geometry, region)[2]
    for t in range(len(q)):
        assert torch.allclose(before[t][:, own[t]], after[t][:, own[t]], atol=1e-12)
        assert own[t].all() or not torch.allclose(before[t], after[t], atol=1e-3)


def test_no_regions_are_one_region():
    made = OWN_WINDOWS['halo']
    geometry = made.called()
    rpe = built('dynamic', made, torch.float64)
    q, k = tokens(geometry, torch.float64)
    nowhere = rpe(q, k, geometry)[2]
    assert torch.equal(nowhere, rpe(q, k, geometry, None)[2])
    for region in (0, 3, -1):
        all_of_one = torch.full((2, q.shape[2]), region)
        assert torch.allclose(rpe(q, k, geometry, all_of_one)[2], nowhere, atol=1e-12)


# ---- what is never made ----


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation gave."""
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            self.numel = max(self.numel, tensor.numel() if isinstance(tensor, torch.Tensor) else 0)
        return out


@pytest.mark.parametrize('config', [
    dict(type='DecomposedRPE'), dict(type='ContextualRPE', on='qkv'), dict(type='LogCPB', hidden_dims=64),
    dict(type='ContextualRPE', on='qkv', shared_heads=False, join='cross'), dict(type='LowRankRPE', rank=64),
    dict(type='RotaryRPE'), dict(type='DynamicRPE', hidden_dims=64)])
def test_no_tensor_of_all_pairs_and_channels(config):
    channels, window = 64, (8, 8)
    rpe = drawn(build_rpe(config, num_heads=1, window_size=window, head_dim=channels))
    q, k = with_grad(pixels(1, 1, 64, channels), pixels(1, 1, 64, channels, seed=1))
    weights, = with_grad(pixels(1, 1, 64, 64))
    with Largest() as largest:
        weighted_sum(run(rpe, q, k, WindowGeometry.square(window), None, weights)).backward()
    assert 64 * 64 <= largest.numel < 64 * 64 * channels / 8


# ---- where training starts ----


@pytest.mark.parametrize('name', sorted(ENCODINGS))
def test_start(name):
    """What init_weights draws; the window is large enough to measure a deviation."""
    made = Made((6, 6), (6, 6))
    rpe = build_rpe(ENCODINGS[name], num_heads=HEADS, window_size=made.window, key_size=made.key_size,
                    head_dim=HEAD_DIM)
    at_build = {key: value.clone() for key, value in rpe.state_dict().items()}
    for parameter in rpe.parameters():
        parameter.data.fill_(7.)
    torch.manual_seed(1)
    rpe.init_weights()
    for key, value in rpe.state_dict().items():
        random = bool(at_build[key].abs().max() > 0) and at_build[key].unique().numel() > 1
        if 'relative_position_bias_table' in key and 'LowRank' not in str(ENCODINGS[name]):
            assert random and value.abs().max() <= 2.0001
            assert value.numel() < 100 or 0.015 < value.std() < 0.025, key
        if '_tables.' in key and 'relative' not in key or 'scale_mlp.2' in key:
            assert not value.any(), key
        assert not (value == 7).any(), f'{key} is not drawn'
        assert random == (value.unique().numel() > 1) and random == (not torch.equal(value, at_build[key])), key


@pytest.mark.parametrize('rank', [1, 2, 8])
def test_low_rank_starts_as_small_as_a_table(rank):
    biases = [LowRankRPE(rank=rank, num_heads=16, window_size=window).bias(WindowGeometry.square(window))
              for window in ((7, 7), (40, ), (3, 3, 3)) for _ in range(3)]
    for bias in biases:
        assert 0.012 < bias.std() < 0.03


def test_dynamic_starts_as_the_inner_encoding():
    made = OWN_WINDOWS['halo']
    rpe = build_rpe(dict(type='DynamicRPE'), num_heads=HEADS, window_size=made.window, key_size=made.key_size,
                    head_dim=HEAD_DIM)
    q, k = tokens(made.called())
    bias = rpe(q, k, made.called(), regions(made.called()))[2]
    table = next(value for name, value in rpe.named_parameters() if name.endswith('relative_position_bias_table'))
    expected = encodings.table(table, made.called(), made.window, made.key_size)
    assert torch.allclose(bias, expected.expand_as(bias), atol=1e-7)


def test_mixed_rotary_starts_as_in_the_paper():
    """``theta**(-4t/d)`` along a direction and the one at right angles to it, another in every head."""
    rpe = RotaryRPE(num_heads=64, window_size=(7, 7), head_dim=32)
    assert rpe.freqs.shape == (2, 64, 16) and rpe.freqs.requires_grad
    magnitude = 10.**(-4 * torch.arange(8) / 32)
    first, second = rpe.freqs.detach().split(8, dim=-1)
    for half in (first, second):
        assert torch.allclose(half.norm(dim=0), magnitude.expand(64, 8), atol=1e-6)
        direction = half / half.norm(dim=0)
        assert torch.allclose(direction, direction[..., :1].expand_as(direction), atol=1e-5)
    assert torch.allclose(second[0], -first[1], atol=1e-6) and torch.allclose(second[1], first[0], atol=1e-6)
    angle = torch.atan2(first[1, :, 0], first[0, :, 0])
    quarters = torch.histc(angle, 4, -math.pi, math.pi)
    assert quarters.min() >= 5, 'directions of 64 heads fall in every quarter'


# ---- buckets ----


@pytest.mark.parametrize('num_buckets, max_distance', [(8, 32), (1, 1), (3, 6), (5, 100), (16, 7)])
def test_sign_log_buckets(num_buckets, max_distance):
    offsets = torch.arange(-300, 301)
    expected = [encodings.sign_log(d, num_buckets, max_distance) for d in offsets.tolist()]
    result = sign_log(offsets, num_buckets, max_distance)
    assert result.dtype == torch.long and result.tolist() == expected
    assert result[300] == num_buckets and result[300 + max_distance] == 2 * num_buckets and result[0] == 0
    assert (result.diff() >= 0).all() and torch.equal(result.flip(0), 2 * num_buckets - result)


def test_t5_buckets_as_published():
    """The buckets of keys at and behind the query, and ahead, with 32 buckets up to 128."""
    behind = t5(torch.arange(200), 32, 128).tolist()
    starts = [behind.index(bucket) for bucket in range(16)]
    assert starts == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    assert behind == sorted(behind) and max(behind) == 15
    ahead = t5(-torch.arange(1, 200), 32, 128).tolist()
    assert ahead == [bucket + 16 for bucket in behind[1:]]


@pytest.mark.parametrize('num_buckets, max_distance', [(32, 128), (8, 9), (4, 20), (20, 160), (40, 320), (38, 16)])
def test_t5_buckets(num_buckets, max_distance):
    """In the last three, float64 would put some offsets one bucket further."""
    offsets = torch.arange(-600, 601)
    expected = [encodings.t5(d, num_buckets, max_distance) for d in offsets.tolist()]
    result = t5(offsets, num_buckets, max_distance)
    assert result.dtype == torch.long and result.tolist() == expected
    assert set(result.tolist()) <= set(range(num_buckets))


def test_piecewise_buckets_as_published():
    """ratio 1.9 has 7 buckets per axis, 49 in all; ratio 2 has 9."""
    assert piecewise(torch.arange(-20, 21), 1.9).unique().tolist() == list(range(7))
    assert piecewise(torch.arange(-20, 21), 2.).unique().tolist() == list(range(9))
    assert piecewise(torch.arange(6), 1.9).tolist() == [3, 4, 5, 5, 6, 6]


@pytest.mark.parametrize('ratio', [0.5, 1., 1.9, 2., 2.6, 3.75, 10.])
def test_piecewise_buckets(ratio):
    offsets = torch.arange(-200, 201)
    expected = [encodings.piecewise(d, ratio) for d in offsets.tolist()]
    result = piecewise(offsets, ratio)
    assert result.dtype == torch.long and result.tolist() == expected
    assert result.min() == 0 and result.max() == 2 * int(2 * ratio)


@pytest.mark.parametrize('bucket, options', [(sign_log, (8, 32)), (t5, (32, 128)), (piecewise, (1.9, ))])
def test_buckets_of_floats_and_of_any_shape(bucket, options):
    offsets = torch.randint(-50, 50, (2, 3, 4))
    assert torch.equal(bucket(offsets.double(), *options), bucket(offsets, *options))
    assert torch.equal(bucket(offsets[1, 2], *options), bucket(offsets, *options)[1, 2])


# ---- windows that were never named ----


@pytest.mark.parametrize('case', range(case_count(30)))
def test_random_windows(case):
    """Any window, halo and map smaller than the window; any keys at all where the encoding works at any distance."""
    rng = dice('encoding', case)
    name = rng.choice(sorted(ENCODINGS))
    window = random_window(rng, 4)
    halo = rng.randint(0, 2), rng.randint(0, 2)
    key_size = tuple(w + 2 * h for w, h in zip(window, halo))
    if name in ANY_OFFSET and rng.random() < 0.5:
        geometry = WindowGeometry(*((rng.randint(low, high), rng.randint(low, high))
                                    for low, high in ((1, 3), (1, 3), (-90, 90), (1, 40))))
    else:
        inside = tuple(rng.randint(1, w) for w in window)
        geometry = WindowGeometry(inside, tuple(w + 2 * h for w, h in zip(inside, halo)), tuple(-h for h in halo))
    made = Made(window, key_size, geometry)
    rpe = built(name, made, torch.float64, case)
    q, k = tokens(geometry, torch.float64, case)
    region = regions(geometry, case)
    expected = encodings.encode(ENCODINGS[name], dict(rpe.named_parameters()), q, k, geometry, window, key_size, region)
    for actual, value in zip(rpe(q, k, geometry, region), expected):
        assert value is None and actual is None or torch.allclose(actual, value, atol=1e-10)
