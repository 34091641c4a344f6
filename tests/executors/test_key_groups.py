"""Keys that windows share, against the layout's own keys."""
import pytest
import torch
from oracles.cases import case_count, dice, random_extents, random_size, random_window
from packing import packed

from swin_rpe_mm.executors.cpu.key_groups import all_keys, group_by_keys, groups_of_parts
from swin_rpe_mm.executors.cpu.packed import PackedLayout
from swin_rpe_mm.executors.cpu.parts import cut_into_parts

CASES = range(case_count(40))


def random_layout(rng, **kwargs) -> tuple[PackedLayout, tuple[int, int]]:
    """A layout with a halo, and how many keys a window has along each axis."""
    size, window = random_size(rng, 30, 500), random_window(rng, 5)
    halo = rng.choice([window, (rng.randint(0, 3), rng.randint(1, 3)), (rng.randint(1, 3), 0)])
    shift = rng.choice([(0, 0), tuple(w // 2 for w in window)])
    layout = packed(size, window, shift, random_extents(rng, rng.randint(1, 3), size), halo, **kwargs)
    return layout, tuple(w + 2 * h for w, h in zip(window, halo))


def seen(layout: PackedLayout) -> torch.Tensor:
    """``(T, N, Nk)`` bool."""
    visible = torch.ones(*layout.slots.shape, layout.key_slots.shape[1], dtype=torch.bool)
    visible[layout.plain:] = layout.visible
    return visible


@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('case', CASES)
def test_every_query_sees_its_keys(case, mask_padding):
    """The groups hold every window once, in order, and the keys that a query sees are those of the layout."""
    layout, key_size = random_layout(dice('key groups', case), mask_padding=mask_padding)
    tokens, truth = torch.arange(len(layout.inside)).double()[:, None], seen(layout)
    first = 0
    for group in group_by_keys(layout, key_size):
        count = group.windows.stop - first
        assert group.windows.start == first and count > 0 and group.size == len(group.keys)
        held = group.gather(tokens, tokens.new_full((1, ), -1))[..., 0].long()
        rows, valid = (part[group.windows][:, group.keys] for part in (layout.key_rows, layout.key_valid))
        assert torch.equal(held, torch.where(valid, rows, -1))
        assert torch.equal(group.gather(tokens)[..., 0].long(), rows)

        visible = torch.ones(count, layout.slots.shape[1], group.size, dtype=torch.bool)
        visible[count - len(group.visible):] = group.visible
        assert visible.any(2).all()
        real = layout.valid[group.windows]
        spread = torch.zeros_like(truth[group.windows])
        spread[..., group.keys] = visible
        assert torch.equal(spread[real], truth[group.windows][real])
        assert (spread[real].any(0)[group.keys]).all(), 'a key that nobody sees'
        first = group.windows.stop
    assert first == len(layout.slots)


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('grouped', [True, False])
def test_parts_of_groups(case, grouped):
    """However groups are split and cut, each window keeps its keys and its mask."""
    rng = dice(f'parts of groups {grouped}', case)
    layout, key_size = random_layout(rng)
    groups = group_by_keys(layout, key_size) if grouped else (all_keys(layout), )
    tokens = torch.arange(len(layout.inside)).double()[:, None]

    def windows_of(groups, offset: int = 0) -> dict:
        found = {}
        for group in groups:
            keys, count = group.gather(tokens), group.windows.stop - group.windows.start
            for place in range(count):
                masked = place - (count - len(group.visible))
                mask = group.visible[masked] if masked >= 0 else None
                found[offset + group.windows.start + place] = (keys[place], mask)
        return found

    expected, most = windows_of(groups), rng.randint(1, 6)
    split = [part for group in groups for part in group.split(most)]
    assert all(part.windows.stop - part.windows.start <= most for part in split)
    in_parts = {}
    pieces = cut_into_parts(layout, most).parts
    own = groups_of_parts(layout, most, key_size if grouped else None)
    assert len(own) == len(pieces)
    for part, its in zip(pieces, own):
        in_parts |= windows_of(its, part.windows.start)
    for found in (windows_of(split), in_parts):
        assert found.keys() == expected.keys() == set(range(len(layout.slots)))
        for window, (keys, mask) in found.items():
            assert torch.equal(keys, expected[window][0])
            assert mask is expected[window][1] is None or torch.equal(mask, expected[window][1])


def test_neighbours_share_their_keys():
    """Far fewer rows are gathered than there are keys, and most windows need no mask."""
    layout = packed((70, 210), (7, 7), (3, 3), halo=(7, 7))
    groups = group_by_keys(layout, (21, 21))
    assert sum(len(group.rows) for group in groups) < 0.45 * layout.key_rows.numel()
    assert sum(len(group.visible) for group in groups) == 10 + 30 - 1  # the windows at the seams
