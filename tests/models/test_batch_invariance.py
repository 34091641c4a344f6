"""An image's features do not depend on what it was batched with, and nothing is kept from call to call."""
import copy

import pytest
import torch
from oracles.cases import (
    SMALL,
    case_count,
    dice,
    gradients,
    loss_of,
    pixels,
    random_extents,
    random_size,
    random_window,
    randomise,
    token_size,
)
from oracles.compare import assert_forward, assert_gradients

from swin_rpe_mm import SwinRPE, attach_extents


def small(seed=0, **kwargs) -> SwinRPE:
    return randomise(SwinRPE(**(SMALL | dict(window_size=3) | kwargs)), seed)


def crop(maps, index, extent):
    return maps[index, :, :extent[0], :extent[1]]


def zero_padded(images, extents):
    """A copy with zeros outside the extents."""
    result = torch.zeros_like(images)
    for i, extent in enumerate(extents):
        crop(result, i, extent).copy_(crop(images, i, extent))
    return result


@pytest.mark.parametrize('case', range(case_count(16)))
def test_alone_and_in_any_batch(case):
    rng = dice('invariance', case)
    size = random_size(rng, 97)
    extents = random_extents(rng, rng.randint(2, 4), size)
    model = small(case, window_size=[random_window(rng) for _ in range(4)], attn_backend=rng.choice(['eager', 'sdpa']),
                  shift_covered_axes=rng.random() < 0.7, use_abs_pos_embed=rng.random() < 0.3, pretrain_img_size=40)
    images = zero_padded(pixels(len(extents), 3, *size, seed=case), extents)
    order = rng.sample(range(len(extents)), len(extents))
    grown = torch.nn.functional.pad(images[order], (0, rng.randint(0, 40), 0, rng.randint(0, 40)))
    with torch.no_grad():
        together = model(attach_extents(images, extents))
        elsewhere = model(attach_extents(grown, [extents[i] for i in order]))
        for i, extent in enumerate(extents):
            alone = model(crop(images, i, extent)[None].clone())
            for stage, features in enumerate(alone):
                inside = token_size(extent, stage)
                assert features.shape[-2:] == inside
                assert_forward(crop(together[stage], i, inside), features[0], 'alone against in a batch')
                assert_forward(crop(elsewhere[stage], order.index(i), inside), features[0],
                               'alone against in another batch')


@pytest.mark.parametrize('case', range(8))
def test_gradients_alone_and_in_a_batch(case):
    rng = dice('invariance of gradients', case)
    size = random_size(rng, 97)
    extents = random_extents(rng, 3, size)
    images = zero_padded(pixels(3, 3, *size, seed=case), extents)
    together, alone = small(case), small(case)
    outs = together(attach_extents(images, extents))
    loss_of([crop(out, i, token_size(e, s)) for i, e in enumerate(extents) for s, out in enumerate(outs)]).backward()
    loss_of([out[0] for i, e in enumerate(extents) for out in alone(crop(images, i, e)[None].clone())]).backward()
    assert_gradients(gradients(together), gradients(alone), 'alone against in a batch')


@pytest.mark.parametrize('case', range(8))
def test_zero_outside_the_extents(case):
    rng = dice('zero outside', case)
    size = random_size(rng, 97)
    extents = random_extents(rng, 3, size)
    for stage, out in enumerate(small(case)(attach_extents(pixels(3, 3, *size), extents))):
        for i, extent in enumerate(extents):
            h, w = token_size(extent, stage)
            assert (out[i, :, h:] == 0).all() and (out[i, :, :, w:] == 0).all()
            assert (out[i, :, :h, :w] != 0).any()


@pytest.mark.parametrize('poison', [1e4, float('nan'), float('inf')])
@pytest.mark.parametrize('backend', ['eager', 'sdpa'])
@pytest.mark.parametrize('case', range(3))
def test_values_in_the_padding_never_leak(case, backend, poison):
    rng = dice('poison', case)
    size = random_size(rng, 97)
    extents = [(max(1, h - 1), max(1, w - 3)) for h, w in random_extents(rng, 3, size)]
    clean = zero_padded(pixels(3, 3, *size), extents)
    poisoned = torch.full_like(clean, poison)
    for i, extent in enumerate(extents):
        crop(poisoned, i, extent).copy_(crop(clean, i, extent))
    results = []
    for images in (clean, poisoned):
        model = small(case, attn_backend=backend, window_size=(2, 5))
        images.requires_grad_()
        outs = model(attach_extents(images, extents))
        loss_of(outs).backward()
        results.append((outs, gradients(model), images.grad))
    for a, b in zip(results[0][0], results[1][0]):
        assert torch.equal(a, b)
    for name, gradient in results[0][1].items():
        assert torch.equal(gradient, results[1][1][name]), name
    assert torch.equal(results[0][2], results[1][2])
    for i, (h, w) in enumerate(extents):
        assert (results[1][2][i, :, h:] == 0).all() and (results[1][2][i, :, :, w:] == 0).all()


def test_without_extents_the_whole_batch_is_content():
    model, images = small(), pixels(2, 3, 33, 50)
    for plain, full in zip(model(images), model(attach_extents(images.clone(), [(33, 50)] * 2))):
        assert torch.equal(plain, full)


def test_masks_make_a_difference():
    """The peer's zeros in padding slots do reach attention: what is tested here is not trivially true."""
    masked, unmasked = small(mask_padding=True), small(mask_padding=False)
    images = pixels(1, 3, 33, 50)
    assert (masked(images)[0] - unmasked(images)[0]).abs().max() > 0.1


def test_no_state_from_call_to_call():
    model = small(window_size=7)
    fresh = copy.deepcopy(model)
    large = pixels(1, 3, 90, 97)
    for size in [(1, 1), (5, 97), (16, 16), (90, 97)]:
        model(pixels(2, 3, *size))
        model(attach_extents(pixels(2, 3, *size), [(1, 1), size]))
    for a, b in zip(model(large), fresh(large)):
        assert torch.equal(a, b)
    assert model.state_dict().keys() == fresh.state_dict().keys()


@pytest.mark.parametrize('backend', ['eager', 'sdpa'])
@pytest.mark.parametrize('mask_padding', [True, False])
def test_inference_mode_leaves_nothing_behind(mask_padding, backend):
    """What an evaluation in inference mode puts in a cache must serve training as well."""
    model = small(window_size=(11 if backend == 'eager' else 9, 8 if mask_padding else 6), mask_padding=mask_padding,
                  attn_backend=backend)  # a window that no other test uses, so that the caches are filled here
    images = attach_extents(pixels(2, 3, 71, 83), [(71, 40), (18, 83)])
    with torch.inference_mode():
        inferred = model(images)
    outs = model(images)
    loss_of(outs).backward()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())
    for a, b in zip(outs, inferred):
        assert_forward(a, b)


def test_memory_format_of_the_images_does_not_matter():
    model, images = small(), pixels(2, 3, 33, 50)
    for a, b in zip(model(images), model(images.to(memory_format=torch.channels_last))):
        assert_forward(a, b)


def test_translation_by_whole_windows():
    """Away from the borders, shifting the content by whole windows of every stage shifts the features."""
    model = small(depths=(2, ), num_heads=(1, ), strides=(4, ), out_indices=(0, ), window_size=3)
    images = pixels(1, 3, 4 * 18, 4 * 18)
    moved = model(images.roll((12, 24), (2, 3)))[0].roll((-3, -6), (2, 3))
    inner = (slice(None), slice(None), slice(6, 12), slice(6, 9))
    assert_forward(moved[inner], model(images)[0][inner])
