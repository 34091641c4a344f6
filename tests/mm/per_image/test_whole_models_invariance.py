"""Whole models give an image the same results in every batch, and a batch the mean of its images' losses.

The oracle is the model as mmdet or mmseg builds it, without the switch, on one image that nothing was added to.
"""
from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
import torch
from oracles.cases import case_count, dice
from oracles.compare import TOLERANCE, gradient_error, record
from small_models import DETECTORS, SEGMENTORS, build, collate, of_size, predict, random_data, train

from swin_rpe_mm import make_padding_invariant

CASES = case_count(1)
IMAGES = 8
# pixels of the image; absolute; absolute; share of the pixels
LIMITS = dict(boxes=1e-2, scores=1e-4, logits=1e-4, masks=0.)
NAMES = [pytest.param(name, marks=pytest.mark.needs_ops) for name in [*DETECTORS, 'semantic Mask2Former']] + [
    name for name in SEGMENTORS if name != 'semantic Mask2Former']


@lru_cache(maxsize=1)
def images_and_results(name: str, case: int) -> tuple[list[dict], list[Any]]:
    """Random images, and what each gives alone."""
    data = random_data(name, dice(name, case), IMAGES)
    return data, [predict(build(name, padding=False), [one])[0] for one in data]


def difference(actual: Any, expected: Any) -> dict[str, float]:
    """Of an image's results: largest distances of boxes, scores, logits; share of the mask pixels that differ."""
    if isinstance(expected, torch.Tensor):
        return dict(logits=(actual - expected).abs().max().item() if actual.shape == expected.shape else float('inf'))
    if len(actual) != len(expected) or not torch.equal(actual.labels, expected.labels):
        return dict(boxes=float('inf'))
    found = dict(boxes=(actual.bboxes - expected.bboxes).abs().max().item(),
                 scores=(actual.scores - expected.scores).abs().max().item())
    if 'masks' in expected:
        found['masks'] = (actual.masks != expected.masks).float().mean().item()
    return found


@pytest.mark.parametrize('case', range(CASES))
@pytest.mark.parametrize('name', NAMES)
def test_same_results_in_every_batch(name, case):
    """Batches of 1, 2, 4 and 8 in random orders."""
    data, expected = images_and_results(name, case)
    if name in DETECTORS:
        assert all(len(result) > 5 for result in expected)
    assert 'Mask' not in name or name in SEGMENTORS or any(0 < result.masks.float().mean() < 1 for result in expected)
    model, order = make_padding_invariant(build(name)), list(range(IMAGES))
    rng = dice(f'{name}, orders', case)
    for size in (8, 4, 2, 1):
        rng.shuffle(order)
        for start in range(0, IMAGES if size > 1 else 2, size):
            chosen = order[start:start + size]
            for i, result in zip(chosen, predict(model, [data[i] for i in chosen])):
                for part, value in difference(result, expected[i]).items():
                    record(f'{name}: {part} alone and in a batch', value)
                    assert value <= LIMITS[part], f'{part} of image {i} in a batch of {size}'


@pytest.mark.parametrize('name', NAMES)
def test_other_results_without_the_switch(name):
    """By far more than the limits, so that the test above would see it."""
    data, expected = images_and_results(name, 0)
    found = [difference(*pair) for pair in zip(predict(build(name), data), expected)]
    worst = {part: max(one.get(part, 0.) for one in found) for part in LIMITS}
    assert any(value > 10 * LIMITS[part] for part, value in worst.items()), worst


def mean_of(results: list[dict]) -> dict:
    """Of numbers or tensors by name; what an image lacks counts as zero."""
    names = {name: value for result in results for name, value in result.items()}
    return {name: sum(result.get(name, 0 * like) for result in results) / len(results) for name, like in names.items()}


def far_losses(actual: dict[str, float], expected: dict[str, float]) -> float:
    """The largest difference, absolute for small losses and relative for large ones."""
    assert actual.keys() == expected.keys()
    return max(abs(actual[name] - value) / max(1, abs(value)) for name, value in expected.items())


@pytest.mark.parametrize('case', range(CASES))
@pytest.mark.parametrize('name', NAMES)
def test_losses_and_gradients_are_the_mean(name, case):
    """Of those of the images alone. Random numbers are drawn image after image, so the seed gives the same ones."""
    data = random_data(name, dice(f'{name}, losses', case), 3)
    alone, together = build(name, padding=False), build(name)
    torch.manual_seed(case)
    losses, gradients = (mean_of(list(parts)) for parts in zip(*(train(alone, [one]) for one in data)))
    torch.manual_seed(case)
    if case == 0:
        assert far_losses(train(together, data)[0], losses) > 1e-3, 'equal without the switch too'
    torch.manual_seed(case)
    actual, actual_gradients = train(make_padding_invariant(together), data)
    error = far_losses(actual, losses)
    record(f'{name}: losses', error)
    assert error <= 1e-5
    error, where = gradient_error(actual_gradients, gradients)
    if error > TOLERANCE['gradient'][torch.float32]:
        error, where = min(gradient_error(actual_gradients, other) for other in beside(alone, data, case))
    record(f'{name}: gradients', error)
    assert error <= TOLERANCE['gradient'][torch.float32], where


def beside(model: Any, data: list[dict], case: int) -> Iterator[dict]:
    """Gradients of the images alone, with weights changed by no more than rounding: absolute differences, bilinear
    sampling and the choice of queries have kinks, at which the gradient is that of either side."""
    weights = [value.detach().clone() for value in model.parameters()]
    for draw in range(8):
        torch.manual_seed(draw)
        for value, given in zip(model.parameters(), weights):
            value.data.copy_(given * (1 + 3e-7 * torch.randn_like(given)))
        torch.manual_seed(case)
        yield mean_of([train(model, [one])[1] for one in data])


@pytest.mark.parametrize('name', ['UPerNet', 'FCN'])
def test_live_batch_norms_see_all_images(name):
    """Where no image is padded, a segmentor trains as without the switch: losses, gradients and running statistics."""
    data = [of_size(one, 72, 88) for one in random_data(name, dice(name, 0), 3)]
    plain, changed = build(name, padding=False), make_padding_invariant(build(name, padding=False))
    (losses, gradients), (actual, actual_gradients) = (train(model, data, norms=True) for model in (plain, changed))
    assert far_losses(actual, losses) <= 1e-5
    assert gradient_error(actual_gradients, gradients)[0] <= TOLERANCE['gradient'][torch.float32]
    for (key, buffer), other in zip(plain.named_buffers(), changed.buffers()):
        torch.testing.assert_close(other, buffer, msg=key)


@pytest.mark.parametrize('name', ['UPerNet', 'FCN'])
def test_live_batch_norms_do_not_mind_the_order_or_more_padding(name):
    data = random_data(name, dice(name, 1), 3)
    padded, other = (make_padding_invariant(build(name)) for _ in range(2))
    other.data_preprocessor.size = (224, 256)
    losses, gradients = train(padded, data, norms=True)
    actual, actual_gradients = train(other, data[::-1], norms=True)
    assert far_losses(actual, losses) <= 1e-5
    assert gradient_error(actual_gradients, gradients)[0] <= TOLERANCE['gradient'][torch.float32]
    for (key, buffer), changed in zip(padded.named_buffers(), other.buffers()):
        torch.testing.assert_close(changed, buffer, msg=key)


@pytest.mark.parametrize('name', [pytest.param('Mask R-CNN', marks=pytest.mark.needs_ops), 'UPerNet'])
def test_all_else_stays(name):
    """The state dict; what samples say of their images; the parts of the results."""
    data = random_data(name, dice(name, 0), 2)
    plain = build(name)
    changed = make_padding_invariant(build(name))
    assert list(changed.state_dict()) == list(plain.state_dict())
    assert isinstance(changed, type(plain))
    batches = [model.data_preprocessor(collate(data), False) for model in (plain, changed)]
    with torch.no_grad():
        samples, others = (model(**batch, mode='predict') for model, batch in zip((plain, changed), batches))
    for one, other, given in zip(samples, others, batches[1]['data_samples']):
        assert other is given
        assert set(other.keys()) == set(one.keys())
        assert other.metainfo == one.metainfo
