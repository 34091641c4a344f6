"""Packed layouts hold the same windows as those of the plain model, without padding."""
import gc

import pytest
import torch
from oracles.cases import dice, pixels, random_extents, random_size, random_window
from packing import kind_of, packed

from swin_rpe_mm.executors.cpu.packed import PackedLayout
from swin_rpe_mm.windows import WindowLayout

CASES = range(40)


def random_arguments(case: int, halo: bool) -> dict:
    """Map, window, shift, extents and halo of a random batch."""
    rng = dice('layout', case)
    size = random_size(rng, 97, 900)
    window = random_window(rng, rng.choice([7, 7, 7, 40]))
    shift = tuple(w // 2 for w in window) if rng.random() < 0.6 else (0, 0)
    extents = None if rng.random() < 0.2 else random_extents(rng, rng.randint(1, 4), size)
    reach = (rng.randint(0, window[0]), rng.randint(0, window[1])) if halo else (0, 0)
    return dict(map_size=size, window=window, shift=shift, extents=extents, halo=reach)


def tokens_inside(arguments: dict) -> list[int]:
    h, w = arguments['map_size']
    extents = arguments['extents'] or [(h, w)]
    return [b * h * w + y * w + x for b, extent in enumerate(extents) for y in range(extent[0])
            for x in range(extent[1])]


def what_is_seen(slots, keys, visible, real, key_real) -> dict:
    """For each token its place in its window, and the keys that it sees, with theirs."""
    found = {}
    for t, n in real.nonzero().tolist():
        seen = visible[t, n, :keys.shape[1]] & key_real[t]
        found[slots[t, n].item()] = n, tuple((m, keys[t, m].item()) for m in seen.nonzero().flatten().tolist())
    return found


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('halo', [False, True])
@pytest.mark.parametrize('covered', [True, False])
def test_tokens_see_what_they_see_in_the_plain_layout(covered, halo, mask_padding, case):
    arguments = random_arguments(case, halo) | dict(mask_padding=mask_padding, shift_covered_axes=covered)
    layout, size = packed(**arguments), arguments['map_size']
    extents = arguments['extents'] or [size]
    kind = kind_of(arguments['window'], arguments['shift'], arguments['halo'], covered)
    plain = WindowLayout.build(kind, len(extents), size, torch.tensor(extents), mask_padding)
    visible = torch.ones(*layout.slots.shape, layout.key_slots.shape[1], dtype=torch.bool)
    visible[layout.plain:] = layout.visible
    tokens = len(extents) * size[0] * size[1]
    rows = plain.rows.view_as(plain.region)
    keys = rows if plain.key_rows is None else plain.key_rows.view(len(rows), -1)
    real = plain.region >= 0 if mask_padding else rows < tokens
    key_real = keys < tokens
    assert what_is_seen(layout.slots, layout.key_slots, visible, layout.valid, layout.key_valid) == \
        what_is_seen(rows, keys, plain.visible, real, key_real)


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
def test_every_token_has_one_slot(case, halo):
    arguments = random_arguments(case, halo)
    layout, tokens = packed(**arguments), tokens_inside(arguments)
    inside = torch.tensor(tokens)
    assert sorted(layout.slots[layout.valid].tolist()) == tokens
    assert torch.equal(layout.slots.flatten()[layout.home[inside]], inside)
    assert layout.valid.flatten()[layout.home[inside]].all()
    assert torch.equal(layout.inside, inside)
    size = arguments['map_size'][0] * arguments['map_size'][1]
    assert torch.equal(layout.image_of_token, inside // size)
    assert sorted(layout.outside.tolist()) == sorted(set(range(len(layout.home))) - set(tokens))
    assert layout.valid.any(1).all(), 'a window without a token'


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
def test_padding_slots_repeat_a_real_token_of_their_image(case, halo):
    arguments = random_arguments(case, halo)
    layout = packed(**arguments)
    size = arguments['map_size'][0] * arguments['map_size'][1]
    outside = set(layout.outside.tolist())
    image = (layout.slots // size).masked_fill(~layout.valid, -1).amax(1)
    for slots in (layout.slots, layout.key_slots):
        assert outside.isdisjoint(slots.unique().tolist())
        assert torch.equal(slots // size, image[:, None].expand_as(slots))


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
def test_plain_windows_are_exactly_those_without_a_mask(case, halo):
    layout = packed(**random_arguments(case, halo))
    assert layout.valid[:layout.plain].all() and layout.key_valid[:layout.plain].all()
    assert not layout.visible.all(2).all(1).any()


def test_windows_of_padding_are_left_out():
    layout = packed((100, 100), (7, 7), (3, 3), extents=[(100, 7), (7, 100), (1, 1)])
    assert len(layout.slots) == 15 + 15 + 1


def test_layout_does_not_depend_on_what_was_built_before():
    arguments = dict(map_size=(10, 13), window=(4, 4), shift=(2, 2), extents=[(9, 13), (1, 1)])
    before = packed(**arguments)
    kept = {name: getattr(before, name).clone() for name in ('slots', 'valid', 'region', 'home', 'image_of_token')}
    for length in range(1, 100):
        packed((length, 3), (4, 4), (2, 2))
    after = packed(**arguments)
    for name, value in kept.items():
        assert torch.equal(getattr(after, name), value)
        assert torch.equal(getattr(before, name), value)


def test_cache_is_bounded():
    def alive() -> int:
        gc.collect()
        return sum(isinstance(thing, PackedLayout) for thing in gc.get_objects())

    before = alive()  # other tests leave some behind
    for length in range(1, 300):
        packed((length, 1), (3, 3), (1, 1))
    assert alive() - before <= 64


def random_layouts(case: int, side: int = 97) -> tuple[PackedLayout, PackedLayout, int]:
    """Two layouts over the same maps, and the number of tokens."""
    rng = dice('gather', case)
    size, window = random_size(rng, side, 600), random_window(rng, 7)
    extents = random_extents(rng, rng.randint(1, 3), size)
    plain, shifted = (packed(size, window, by, extents) for by in ((0, 0), tuple(w // 2 for w in window)))
    return plain, shifted, len(extents) * size[0] * size[1]


@pytest.mark.parametrize('case', range(12))
def test_packed_tokens_are_those_inside_in_map_order(case):
    plain, shifted, tokens = random_layouts(case)
    x = pixels(tokens, 3, seed=case)
    keep = torch.ones(tokens, dtype=torch.bool)
    keep[plain.outside] = False
    rows = plain.pack(x)
    assert torch.equal(rows, x[keep])
    assert torch.equal(rows, shifted.pack(x))
    assert torch.equal(plain.pack.inverse(rows), x * keep[:, None])


@pytest.mark.parametrize('case', range(12))
def test_windows_hold_the_tokens_of_their_slots(case):
    for layout in random_layouts(case)[:2]:
        x = pixels(len(layout.home), 3, seed=case)
        rows = layout.pack(x)
        windows = layout.into_windows(rows)
        assert torch.equal(windows, (x[layout.slots] * layout.valid[..., None]).flatten(0, 1))
        assert torch.equal(layout.into_windows.inverse(windows), rows)


@pytest.mark.parametrize('case', range(6))
def test_gradient_of_a_gather_is_its_transpose(case):
    for layout in random_layouts(case, 8)[:2]:
        x = pixels(len(layout.home), 2, seed=case).double().requires_grad_()
        rows = layout.pack(x).detach().requires_grad_()
        slots = pixels(layout.slots.numel(), 2, seed=case).double().requires_grad_()
        assert torch.autograd.gradcheck(layout.pack, (x, ))
        assert torch.autograd.gradcheck(layout.pack.inverse, (rows, ))
        assert torch.autograd.gradcheck(layout.into_windows, (rows, ))
        assert torch.autograd.gradcheck(layout.into_windows.inverse, (slots, ))
