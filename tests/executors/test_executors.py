"""Every executor gives the plain model's numbers, forward and backward, and is taken where it can run."""
import logging

import pytest
import torch
from oracles.cases import dice, loss_of, pixels, random_extents, random_size, random_window
from oracles.compare import assert_forward, assert_gradients
from small import build, counted
from torch.utils.flop_counter import FlopCounterMode

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.executors import EXECUTORS, tuning

ENCODINGS = {
    'table': dict(type='TableRPE'),
    'log cpb': dict(type='LogCPB', hidden_dims=5),
    'none': None,
    'rotary': dict(type='RotaryRPE'),
    'decomposed': dict(type='DecomposedRPE'),
    'contextual': dict(type='ContextualRPE', on='qkv', form='sign_log'),
    'dynamic': dict(type='DynamicRPE', hidden_dims=5),
    'sum': [dict(type='TableRPE'), dict(type='LowRankRPE')],
    'mixed sum': [dict(type='TableRPE'), dict(type='RotaryRPE')],
}
LOOKING = ('rotary', 'decomposed', 'contextual', 'dynamic', 'mixed sum')  # at queries and keys
KINDS = {
    'windows': {},
    'halo': dict(halo=(2, 1)),
    'whole halo': dict(halo='window'),
    'pooled': dict(pooled_neighbours=1),
    'v2': dict(arch='v2-nano'),
    'padded windows': dict(windows=dict(type='PaddedWindows')),
}


def possible(executor: str, encoding: str, kind: str) -> bool:
    if kind == 'pooled' and 'rotary' in (encoding, *(['rotary'] if encoding == 'mixed sum' else [])):
        return False
    if executor == 'cpu_training':
        return kind in ('windows', 'padded windows') and encoding not in LOOKING
    return True


CASES = [(executor, encoding, kind) for executor in EXECUTORS for encoding in ENCODINGS for kind in KINDS
         if possible(executor, encoding, kind)]


@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('executor, encoding, kind', CASES)
def test_equal_to_the_plain_model(executor, encoding, kind, mask_padding):
    """However much is done at a time; every block is run by the executor that was asked for."""
    rng = dice(f'executors {executor} {encoding} {kind} {mask_padding}', 0)
    size, training = random_size(rng, 90), executor != 'cpu_inference'
    extents, window = random_extents(rng, 3, size), random_window(rng, 5)
    options = dict(rpe=ENCODINGS[encoding], window_size=window, mask_padding=mask_padding) | KINDS[kind]
    images = pixels(3, 3, *size)
    results = []
    for backend, at_once in [('plain', 10**9), (executor, 10**9), (executor, 300), (executor, 1)]:
        model = build(**options, backend=backend).train(training)
        with tuning(tokens_at_once=at_once, rows_at_once=min(at_once, 10**6)), counted() as counts:
            with torch.set_grad_enabled(training):
                outs = model(images, extents)
            if training:
                loss_of(outs).backward()
        assert counts == {name: 4 if name == backend else 0 for name in EXECUTORS}
        results.append((outs, {name: value.grad for name, value in model.named_parameters()}))
    for outs, gradients in results[1:]:
        for actual, expected in zip(outs, results[0][0]):
            # SwinV2's norms after small branches amplify rounding: see the tolerance of its own tests
            scale = max(1, expected.abs().max().item()) if kind == 'v2' else 1
            assert_forward(actual / scale, expected / scale, f'{executor} against the plain model')
        if training:
            assert_gradients(gradients, results[0][1], f'{executor} against the plain model')


@pytest.mark.parametrize('options, training, taken', [
    ({}, True, 'cpu_training'), ({}, False, 'cpu_inference'), (dict(arch='v2-nano'), True, 'cpu_layers'),
    (dict(halo=2), True, 'cpu_layers'), (dict(rpe=dict(type='RotaryRPE')), True, 'cpu_layers'),
    (dict(drop_rate=0.1), True, None), (dict(drop_rate=0.1), False, 'cpu_inference'),
    (dict(act_cfg=dict(type='ReLU')), True, 'cpu_layers'), (dict(norm_cfg=dict(type='LN', eps=1e-3)), True,
                                                            'cpu_training'),
    (dict(windows=dict(type='GlobalWindows'), rpe=dict(type='LogCPB')), False, None),
], ids=str)
def test_the_fastest_that_can_is_taken(options, training, taken):
    model = build(**options).train(training)
    with counted() as counts, torch.set_grad_enabled(training):
        model(pixels(2, 3, 41, 52))
    assert counts == {name: 4 if name == taken else 0 for name in EXECUTORS}


@pytest.mark.parametrize('side', [9, 12, 13])
def test_windows_of_the_size_of_the_map_are_left_to_the_plain_model(side):
    """Also where a map is as large as a window would be, and images in it are smaller."""
    options = dict(windows=dict(type='GlobalWindows'), rpe=dict(type='LogCPB', hidden_dims=5), window_size=3)
    images, extents = pixels(2, 3, side, side), [(side, side), (4, side - 2)]
    with torch.no_grad():
        for actual, expected in zip(*(build(**options, backend=backend)(images, extents)
                                      for backend in ('auto', 'plain'))):
            assert_forward(actual, expected)


def test_frozen_blocks_before_what_is_trained_run_as_in_inference():
    model = build(frozen_stages=1).train()
    with counted() as counts:
        outs = model(pixels(2, 3, 41, 52))
    assert counts == dict(cpu_inference=2, cpu_training=2, cpu_layers=0)
    assert not outs[0].requires_grad and outs[1].requires_grad


@pytest.mark.parametrize('numbers', ['float64', 'bfloat16', 'autocast'])
def test_other_numbers_are_left_to_the_executor_of_layers(numbers):
    dtype = torch.float32 if numbers == 'autocast' else getattr(torch, numbers)
    model, images = build().train().to(dtype), pixels(2, 3, 41, 52).to(dtype)
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=numbers == 'autocast'), counted() as counts:
        model(images)
    assert counts == dict(cpu_inference=0, cpu_training=0, cpu_layers=4)


def test_drop_path_draws_what_the_plain_model_draws():
    images = pixels(4, 3, 41, 52)
    results = []
    for backend in ('plain', 'cpu_training', 'cpu_layers'):
        model = build(drop_path_rate=0.5, backend=backend).train()
        torch.manual_seed(3)
        outs = model(images)
        loss_of(outs).backward()
        results.append((outs, {name: value.grad for name, value in model.named_parameters()}))
    for outs, gradients in results[1:]:
        for actual, expected in zip(outs, results[0][0]):
            assert_forward(actual, expected)
        assert_gradients(gradients, results[0][1])


@pytest.mark.parametrize('options', [
    {}, dict(rpe=None), dict(arch='v2-nano'), dict(halo=2), dict(rpe=dict(type='RotaryRPE')), dict(mask_padding=False),
    dict(drop_path_rate=0.4), dict(with_cp=True)
], ids=str)
def test_second_derivatives(options):
    """A penalty on gradients, through whatever ran forward, is that of the plain model."""
    results = []
    for backend in ('auto', 'plain'):
        model = build(**options, backend=backend).train()
        images = pixels(1, 3, 21, 18).requires_grad_()
        parameters = dict(model.named_parameters())
        torch.manual_seed(1)
        outs = model(images)
        first = torch.autograd.grad(sum(out.sin().sum() for out in outs), images, create_graph=True)[0]
        second = torch.autograd.grad(first.square().sum(), [images, *parameters.values()], allow_unused=True)
        results.append({name: value for name, value in zip(['images', *parameters], second) if value is not None})
    assert_gradients(*results, 'second derivatives')


def test_recomputed_blocks_are_run_by_executors_too():
    results = []
    for with_cp in (False, True):
        model = build(with_cp=with_cp).train()
        with counted() as counts:
            outs = model(pixels(2, 3, 41, 52))
            loss_of(outs).backward()
        assert counts['cpu_training'] == (8 if with_cp else 4)
        results.append({name: value.grad for name, value in model.named_parameters()})
    assert_gradients(*results)


def test_what_a_hook_keeps_is_not_written_over():
    """Blocks without gradients write over what the block before made, but not where anybody may have it."""
    kept = []
    model, images = build(depths=(5, 1)).eval(), pixels(2, 3, 41, 52)
    block = model.stages[0].blocks[2]
    block.register_forward_hook(
        lambda _, inputs, out: kept.extend((tokens, tokens.clone()) for tokens in (images, inputs[0], out)))
    with torch.no_grad(), tuning(tokens_at_once=50), counted() as counts:
        model(images), model(images, torch.tensor([[41, 52], [30, 41]]))
    assert counts['cpu_inference'] == 2 * 5 and len(kept) == 2 * 3
    assert all(torch.equal(now, then) for now, then in kept)


def test_who_looks_at_operations_sees_the_plain_model():
    model, images = build().train(), pixels(1, 3, 41, 52)
    with counted() as counts, FlopCounterMode(display=False) as auto:
        loss_of(model(images)).backward()
    plain = build(backend='plain').train()
    with FlopCounterMode(display=False) as by_hand:
        loss_of(plain(images)).backward()
    assert sum(counts.values()) == 0
    assert auto.get_total_flops() == by_hand.get_total_flops() > 0


def test_what_is_taken_is_said_once(monkeypatch):
    said = []
    monkeypatch.setattr('swin_rpe_mm.executors.print_log', lambda text, logger, level: said.append((level, text)))
    model, images = build().eval(), pixels(1, 3, 41, 52)
    with torch.no_grad():
        model(images), model(images)
    assert said == [(logging.DEBUG, 'SwinRPE: SwinBlock is computed by cpu_inference')]


def test_one_that_was_asked_for_says_why_it_cannot(monkeypatch):
    said = []
    monkeypatch.setattr('swin_rpe_mm.executors.print_log', lambda text, logger, level: said.append((level, text)))
    with torch.no_grad():
        build(backend='cpu_training')(pixels(1, 3, 41, 52))
    sentence = 'SwinRPE: SwinBlock is computed by plain: not cpu_training, since no gradients are wanted'
    assert said == [(logging.WARNING, sentence)]


@pytest.mark.parametrize('backend', ['cpu', 'Plain', None, 3])
def test_wrong_backend(backend):
    with pytest.raises(InputError, match='backend must be one of auto, plain, cpu_inference'):
        SwinRPE(arch='nano', backend=backend)


def test_wrong_backend_with_a_hint():
    with pytest.raises(InputError, match="did you mean 'cpu_inference'"):
        SwinRPE(arch='nano', backend='cpu_inferences')


def test_tuning_lasts_as_long_as_it_is_entered():
    from swin_rpe_mm.executors.tuning import current
    before = current()
    with tuning(tokens_at_once=7) as inner:
        assert current() is inner and inner.tokens_at_once == 7 and inner.few_keys == before.few_keys
    assert current() is before
    with pytest.raises(TypeError):
        with tuning(no_such_number=1):
            pass
