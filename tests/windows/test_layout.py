"""What every layout promises, by plain coordinates."""
import gc

import pytest
import torch
from oracles.attention import first_of_cell
from oracles.cases import dice, random_extents, random_size, random_window

from swin_rpe_mm.windows.layout import WindowLayout

CASES = range(40)


def random_arguments(case: int, halo: bool) -> dict:
    """Map, window, shift, extents and halo of a random batch."""
    rng = dice('layout', case)
    size = random_size(rng, 97, 3000)
    window = random_window(rng, rng.choice([7, 7, 7, 40]))
    shift = tuple(w // 2 for w in window) if rng.random() < 0.6 else (0, 0)
    extents = None if rng.random() < 0.2 else random_extents(rng, rng.randint(1, 4), size)
    reach = (rng.randint(0, window[0]), rng.randint(0, window[1])) if halo else (0, 0)
    return dict(map_size=size, window=window, shift=shift, extents=extents, halo=reach)


def place(slots: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image, row and column of token indices."""
    tokens = size[0] * size[1]
    return slots // tokens, slots % tokens // size[1], slots % size[1]


def cells_by_coordinates(extent, window, shift) -> set[frozenset[tuple[int, int]]]:
    """The windows of one image as sets of coordinates that see each other."""
    rows = first_of_cell(torch.arange(extent[0]), window[0], shift[0]).tolist()
    columns = first_of_cell(torch.arange(extent[1]), window[1], shift[1]).tolist()
    cells = {}
    for y, top in enumerate(rows):
        for x, left in enumerate(columns):
            cells.setdefault((top, left), set()).add((y, x))
    return {frozenset(cell) for cell in cells.values()}


def image_of_window(layout, size):
    """The image that the real tokens of each window belong to."""
    return place(layout.slots, size)[0].masked_fill(~layout.valid, -1).amax(1)


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
def test_every_token_has_one_slot(case, halo):
    arguments = random_arguments(case, halo)
    layout = WindowLayout.build(**arguments)
    size = arguments['map_size']
    extents = arguments['extents'] or [size]
    tokens = [b * size[0] * size[1] + y * size[1] + x
              for b, (h, w) in enumerate(extents) for y in range(h) for x in range(w)]
    total = len(extents) * size[0] * size[1]

    assert layout.slots.dtype == layout.home.dtype == layout.image_of_token.dtype == torch.long
    assert layout.valid.dtype == torch.bool
    assert layout.slots.shape[1] == arguments['window'][0] * arguments['window'][1]
    assert sorted(layout.slots[layout.valid].tolist()) == tokens
    assert layout.home.shape == (total, )
    inside = torch.tensor(tokens)
    assert torch.equal(layout.slots.flatten()[layout.home[inside]], inside)
    assert layout.valid.flatten()[layout.home[inside]].all()
    assert torch.equal(layout.inside, inside)
    assert torch.equal(layout.image_of_token, place(inside, size)[0])
    assert sorted(layout.outside.tolist()) == sorted(set(range(total)) - set(tokens))
    assert layout.home.min() >= 0 and layout.home.max() < layout.slots.numel()


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
def test_padding_slots_repeat_a_real_token_of_their_image(case, halo):
    arguments = random_arguments(case, halo)
    layout = WindowLayout.build(**arguments)
    outside = set(layout.outside.tolist())
    for slots, valid, region in ((layout.slots, layout.valid, layout.region),
                                 (layout.key_slots, layout.key_valid, layout.key_region)):
        assert outside.isdisjoint(slots.unique().tolist())
        image = image_of_window(layout, arguments['map_size'])
        assert torch.equal(place(slots, arguments['map_size'])[0], image[:, None].expand_as(slots))
        assert torch.equal(region == -1, ~valid)


@pytest.mark.parametrize('case', CASES)
def test_windows_are_those_of_the_image_alone(case):
    arguments = random_arguments(case, False)
    size, window, shift = (arguments[key] for key in ('map_size', 'window', 'shift'))
    extents = arguments['extents'] or [size]
    layout = WindowLayout.build(**arguments)
    _, rows, columns = place(layout.slots, size)
    for index, extent in enumerate(extents):
        groups, windows = set(), set()
        for t in (image_of_window(layout, size) == index).nonzero().flatten().tolist():
            members = [(r, y, x) for r, y, x, v in zip(layout.region[t].tolist(), rows[t].tolist(),
                                                       columns[t].tolist(), layout.valid[t].tolist()) if v]
            assert members, 'a window without a valid token'
            windows.add(t)
            for region in {r for r, _, _ in members}:
                groups.add(frozenset((y, x) for r, y, x in members if r == region))
        assert groups == cells_by_coordinates(extent, window, shift)
        assert len(windows) == -(-extent[0] // window[0]) * -(-extent[1] // window[1])


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
def test_slot_distance_is_token_distance_where_regions_agree(case, halo):
    """The bias is looked up by slot: it must be the offset of the tokens whenever a query sees a key."""
    arguments = random_arguments(case, halo)
    layout = WindowLayout.build(**arguments)
    (_, ww), (hh, hw) = arguments['window'], arguments['halo']
    pairs = (layout.region[:, :, None] == layout.key_region[:, None]) & layout.valid[:, :, None]
    t, n, m = pairs.nonzero().unbind(1)
    if len(t) > 100_000:
        keep = torch.randperm(len(t))[:100_000]
        t, n, m = t[keep], n[keep], m[keep]
    _, qy, qx = place(layout.slots[t, n], arguments['map_size'])
    _, ky, kx = place(layout.key_slots[t, m], arguments['map_size'])
    assert torch.equal(qy - ky, n // ww - (m // (ww + 2 * hw) - hh))
    assert torch.equal(qx - kx, n % ww - (m % (ww + 2 * hw) - hw))


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
def test_plain_windows_are_exactly_those_without_a_mask(case, halo):
    layout = WindowLayout.build(**random_arguments(case, halo))
    first = layout.region[:, :1]
    unmasked = (layout.valid.all(1) & layout.key_valid.all(1) & (layout.region == first).all(1)
                & (layout.key_region == first).all(1))
    assert unmasked[:layout.plain].all()
    assert not unmasked[layout.plain:].any()


@pytest.mark.parametrize('case', CASES)
def test_padding_that_takes_part_has_a_region(case):
    arguments = random_arguments(case, False)
    layout = WindowLayout.build(**arguments, mask_padding=False)
    masked = WindowLayout.build(**arguments)
    assert (layout.region >= 0).all()
    assert len(layout.slots) == len(masked.slots)
    assert layout.plain >= masked.plain
    assert layout.valid.sum() == masked.valid.sum()


@pytest.mark.parametrize('case', CASES)
def test_covered_axes_are_not_shifted_on_request(case):
    arguments = random_arguments(case, False) | dict(shift_covered_axes=False)
    size, window, shift = (arguments[key] for key in ('map_size', 'window', 'shift'))
    extents = arguments['extents'] or [size]
    layout = WindowLayout.build(**arguments)
    image, rows, columns = place(layout.slots, size)
    for index, extent in enumerate(extents):
        own_shift = tuple(0 if w >= e else s for w, e, s in zip(window, extent, shift))
        groups = {}
        for t, n in (layout.valid & (image == index)).nonzero().tolist():
            key = (t, layout.region[t, n].item())
            groups.setdefault(key, set()).add((rows[t, n].item(), columns[t, n].item()))
        assert {frozenset(group) for group in groups.values()} == cells_by_coordinates(extent, window, own_shift)


def test_layout_does_not_depend_on_what_was_built_before():
    arguments = dict(map_size=(10, 13), window=(4, 4), shift=(2, 2), extents=[(9, 13), (1, 1)])
    before = WindowLayout.build(**arguments)
    kept = {name: getattr(before, name).clone() for name in ('slots', 'valid', 'region', 'home', 'image_of_token')}
    for length in range(1, 300):
        WindowLayout.build((length, 3), (4, 4), (2, 2))
    after = WindowLayout.build(**arguments)
    for name, value in kept.items():
        assert torch.equal(getattr(after, name), value)
        assert torch.equal(getattr(before, name), value)


def test_cache_is_bounded():
    def alive() -> int:
        gc.collect()
        return sum(isinstance(thing, WindowLayout) for thing in gc.get_objects())

    before = alive()  # other tests leave some behind
    for length in range(1, 700):
        WindowLayout.build((length, 1), (3, 3), (1, 1))
    assert alive() - before <= 64


def test_fully_padded_windows_are_left_out():
    layout = WindowLayout.build((100, 100), (7, 7), (3, 3), extents=[(100, 7), (7, 100), (1, 1)])
    assert len(layout.slots) == 15 + 15 + 1
