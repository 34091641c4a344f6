"""Attention over long sequences equals a loop over the blocks of each sequence."""
import pytest
import torch
from oracles.cases import case_count, dice, loss_of, pixels
from oracles.cells import Geometry
from oracles.compare import assert_forward, assert_gradients
from oracles.encodings import added_values, below, encode
from oracles.swin import linear

from swin_rpe_mm import InputError
from swin_rpe_mm.models import BlockLocalAttention

ENCODINGS = {
    'block': dict(type='BlockRPE', num_buckets=2, max_distance=5),
    'block log': dict(type='BlockRPE', block_form='log'),
    'none': None,
    'table': dict(type='TableRPE'),
    'bucket': dict(type='LogBucketRPE', form='t5', num_buckets=8, max_distance=20),
    'rotary': dict(type='RotaryRPE'),
    'contextual': dict(type='ContextualRPE', on='qkv', form='sign_log'),
    'sum': [dict(type='BlockRPE'), dict(type='DynamicRPE', hidden_dims=5)],
}
CHANNELS, HEADS = 16, 2


def random_weights(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, value in sorted(module.named_parameters()):
            value.copy_(torch.randn(value.shape, generator=generator) * (0.25 if value.ndim > 1 else 0.5))
    return module


def block_by_block(params: dict, x: torch.Tensor, block: int, neighbours: int, rpe) -> torch.Tensor:
    """One sequence ``(L, C)``: the tokens of each block see those of the blocks at most ``neighbours`` away."""
    q, k, v = linear(params, 'attn.qkv', x).view(len(x), 3, HEADS, -1).permute(1, 2, 0, 3)
    q = q * q.shape[-1]**-0.5
    geometry = Geometry((block, ), ((2 * neighbours + 1) * block, ), (-neighbours * block, ))
    encoding, outs = below(params, 'attn.rpe.'), []
    for first in range(0, len(x), block):
        own = torch.arange(first, first + block)
        seen = torch.arange(first - neighbours * block, first + (neighbours + 1) * block)
        real, key_real = own < len(x), (seen >= 0) & (seen < len(x))
        block_q = (q[:, own.clamp(max=len(x) - 1)] * real[:, None])[None]
        block_k, block_v = ((t[:, seen.clamp(0, len(x) - 1)] * key_real[:, None])[None] for t in (k, v))
        bias, added = None, None
        if rpe is not None:
            block_q, block_k, bias = encode(rpe, encoding, block_q, block_k, geometry, geometry.query_size,
                                            geometry.key_size, torch.where(real, 0, -1)[None])
        logits = block_q @ block_k.transpose(-2, -1) + (0 if bias is None else bias)
        weights = logits.masked_fill(~key_real, float('-inf')).softmax(-1)
        out = weights @ block_v
        if rpe is not None:
            added = added_values(rpe, encoding, weights, geometry)
            out = out if added is None else out + added
        outs.append(out[0].transpose(0, 1)[real].flatten(1))
    return linear(params, 'attn.proj', torch.cat(outs))


@pytest.mark.parametrize('case', range(case_count(3)))
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_each_sequence_block_by_block(encoding, case):
    rng = dice(f'blocks {encoding}', case)
    block, neighbours, length = rng.randint(1, 7), rng.randint(0, 2), rng.randint(1, 40)
    lengths = [length, 1, rng.randint(1, length)]
    rpe = ENCODINGS[encoding]
    module = random_weights(BlockLocalAttention(CHANNELS, HEADS, block, neighbours, rpe), case)
    params = {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}
    x = pixels(3, length, CHANNELS, seed=case)
    crops = [x[i, :n].clone().requires_grad_() for i, n in enumerate(lengths)]
    x.requires_grad_()
    out = module(x, lengths)
    expected = [block_by_block(params, crop, block, neighbours, rpe) for crop in crops]
    inside = [out[i, :n] for i, n in enumerate(lengths)]
    for i, (actual, dense) in enumerate(zip(inside, expected)):
        assert_forward(actual, dense, 'block-local attention')
        assert (out[i, lengths[i]:] == 0).all()
    loss_of(inside).backward()
    loss_of(expected).backward()
    zeros = {name: torch.zeros_like(value) for name, value in params.items()}
    actual, dense = ({**zeros, **{name: value.grad for name, value in named if value.grad is not None}}
                     for named in (module.named_parameters(), params.items()))
    for i, (n, crop) in enumerate(zip(lengths, crops)):
        actual[f'sequence {i}'], dense[f'sequence {i}'] = x.grad[i, :n], crop.grad
        assert (x.grad[i, n:] == 0).all()
    assert_gradients(actual, dense, 'block-local attention')


def test_without_lengths_every_sequence_is_full():
    module = random_weights(BlockLocalAttention(CHANNELS, HEADS, 4))
    x = pixels(2, 19, CHANNELS)
    assert torch.equal(module(x), module(x, [19, 19]))
    assert torch.equal(module(x), module(x, torch.tensor([19, 19])))


@pytest.mark.parametrize('poison', [1e4, float('nan')])
@pytest.mark.parametrize('encoding', ['block', 'contextual', 'sum'])
def test_what_follows_the_end_never_matters(encoding, poison):
    module = random_weights(BlockLocalAttention(CHANNELS, HEADS, 4, rpe=ENCODINGS[encoding]))
    lengths = [23, 9, 1]
    x = pixels(3, 23, CHANNELS)
    poisoned = x.clone()
    for i, n in enumerate(lengths):
        poisoned[i, n:] = poison
    assert torch.equal(module(poisoned, lengths), module(x, lengths))
    for i, n in enumerate(lengths):
        assert_forward(module(poisoned, lengths)[i, :n], module(x[i:i + 1, :n])[0])


@pytest.mark.parametrize('encoding', ['block', 'block log', 'bucket', 'rotary'])
def test_longer_than_trained(encoding):
    """One step on short sequences, then a sequence of many times their length."""
    module = random_weights(BlockLocalAttention(CHANNELS, HEADS, 8, rpe=ENCODINGS[encoding]))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    module(pixels(2, 12, CHANNELS)).square().mean().backward()
    optimizer.step()
    x = pixels(1, 700, CHANNELS)
    out = module(x)
    assert out.isfinite().all()
    # a token sees two blocks each way at most: the middle of a long sequence is that of a shorter one
    assert_forward(module(x[:, 320:480])[0, 8:-8], out[0, 328:472])


def test_memory_grows_with_the_length_alone():
    """The largest piece of memory for a sequence twice as long: twice as large, not four times."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.size = max(self.size, out.untyped_storage().nbytes())
            return out

    module, seen = BlockLocalAttention(CHANNELS, HEADS, 16), []
    with torch.no_grad():
        for length in (1024, 2048):
            x = pixels(1, length, CHANNELS)
            module(x)
            with Largest() as largest:
                module(x)
            seen.append(largest.size)
    assert seen[1] <= 2.1 * seen[0]  # at both ends are blocks with fewer keys


@pytest.mark.parametrize('block_size', [3, 12])
@pytest.mark.parametrize('encoding', ['block', 'table', 'rotary', 'none'])
def test_another_block_size(encoding, block_size):
    rpe = ENCODINGS[encoding]
    module = random_weights(BlockLocalAttention(CHANNELS, HEADS, 6, rpe=rpe))
    other = BlockLocalAttention(CHANNELS, HEADS, block_size, rpe=rpe)
    other.load_state_dict(module.state_dict())
    before = dict(module.named_parameters())
    optimizer = torch.optim.AdamW(module.parameters())
    replaced = module.set_block_size(block_size, optimizer=optimizer)
    assert len(replaced) == (encoding == 'table')
    after = dict(module.named_parameters())
    assert [(before[name], after[name]) for name in after if before[name] is not after[name]] == replaced
    assert {id(value) for value in after.values()} == {id(value) for value in optimizer.param_groups[0]['params']}
    x = pixels(2, 31, CHANNELS)
    params = dict(module.named_parameters())
    for i, n in enumerate([31, 20]):
        expected = block_by_block(params, x[i, :n], block_size, 1, rpe)
        assert_forward(module(x, [31, 20])[i, :n], expected)
        assert_forward(other(x, [31, 20])[i, :n], expected)


@pytest.mark.parametrize('rpe, path', [
    (dict(type='TableRPE'), 'rpe.'), (dict(type='LogCPB', hidden_dims=8), 'rpe.'),
    ([dict(type='BlockRPE'), dict(type='TableRPE')], 'rpe.encodings.1.'),
    (dict(type='DynamicRPE', rpe=dict(type='TableRPE')), 'rpe.inner.')])
def test_files_of_earlier_versions(rpe, path):
    """They have Swin's table and SwinV2's network directly in the attention; the path is where these are now."""
    module, other = (torch.nn.Sequential(BlockLocalAttention(CHANNELS, HEADS, 4, rpe=rpe)) for _ in range(2))
    expected = random_weights(module).state_dict()
    old = module.state_dict()
    moved = [key for key in old if key.startswith(f'0.attn.{path}')]
    for key in moved:
        old[key.replace(path, '')] = old.pop(key)
    assert len(moved) == (3 if 'LogCPB' in str(rpe) else 1)
    other.load_state_dict(old)
    assert expected.keys() == other.state_dict().keys()
    assert all(torch.equal(value, expected[key]) for key, value in other.state_dict().items())


def test_a_table_of_another_encoding_is_not_taken():
    module = BlockLocalAttention(CHANNELS, HEADS, 4)
    state = module.state_dict()
    state['attn.relative_position_bias_table'] = state.pop('attn.rpe.relative_position_bias_table')
    with pytest.raises(RuntimeError, match='attn.relative_position_bias_table'):
        module.load_state_dict(state)


@pytest.mark.parametrize('kwargs, named', [
    (dict(block_size=0), 'block_size'), (dict(block_size=-1), 'block_size'), (dict(block_size=2.5), 'block_size'),
    (dict(neighbours=-1), 'neighbours'), (dict(neighbours=0.5), 'neighbours'), (dict(num_heads=3), 'num_heads'),
    (dict(num_heads=0), 'num_heads'), (dict(rpe=dict(type='BlokRPE')), 'BlockRPE')])
def test_wrong_arguments(kwargs, named):
    with pytest.raises(InputError, match=named) as error:
        BlockLocalAttention(**(dict(embed_dims=CHANNELS, num_heads=HEADS, block_size=4) | kwargs))
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('lengths', [[0, 5], [5, 12], [5], [5, 5, 5], [-1, 5]])
def test_wrong_lengths(lengths):
    with pytest.raises(InputError, match='lengths'):
        BlockLocalAttention(CHANNELS, HEADS, 4)(pixels(2, 11, CHANNELS), lengths)


@pytest.mark.parametrize('block_size', [0, 2.5, -3])
def test_wrong_block_size_at_run_time_changes_nothing(block_size):
    module = random_weights(BlockLocalAttention(CHANNELS, HEADS, 4))
    x = pixels(2, 11, CHANNELS)
    before = module(x)
    with pytest.raises(InputError, match='block_size'):
        module.set_block_size(block_size)
    assert torch.equal(module(x), before)
