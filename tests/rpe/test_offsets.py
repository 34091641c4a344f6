"""Offsets are query coordinate minus key coordinate, in any number of axes."""
import itertools

import pytest
import torch
from oracles import encodings
from oracles.cases import case_count, dice

from swin_rpe_mm.rpe import all_offsets, coordinates, offsets
from swin_rpe_mm.rpe.offsets import joint_index, offset_range
from swin_rpe_mm.windows import WindowGeometry


def random_geometry(case: int) -> WindowGeometry:
    """Keys anywhere, every second time some tokens apart."""
    rng = dice('geometry', case)
    axes = 1 + case % 3
    longest = {1: 20, 2: 6, 3: 3}[axes]
    geometry = WindowGeometry(*(tuple(rng.randint(low, longest) for _ in range(axes)) for low in (1, 1, -longest)))
    return geometry if case % 2 else geometry._replace(key_stride=tuple(rng.randint(1, 5) for _ in range(axes)))


@pytest.mark.parametrize('case', range(case_count(24)))
def test_pair_by_pair(case):
    geometry = random_geometry(case)
    queries, keys = encodings.places(geometry)
    expected = torch.tensor([[[q[axis] - k[axis] for k in keys] for q in queries]
                             for axis in range(len(geometry.query_size))])
    result = offsets(geometry)
    assert not result.is_floating_point()
    assert torch.equal(result.long(), expected)
    at_queries, at_keys = coordinates(geometry)
    assert at_queries.T.tolist() == [list(place) for place in queries]
    assert at_keys.T.tolist() == [list(place) for place in keys]


@pytest.mark.parametrize('case', range(case_count(24)))
def test_every_offset_of_the_range_once(case):
    geometry = random_geometry(case)
    found = offsets(geometry).flatten(1)
    ranges = list(zip(found.amin(1).tolist(), found.amax(1).tolist()))
    assert list(offset_range(geometry)) == ranges
    grid = all_offsets(geometry)
    assert grid.shape == (len(ranges), *(high - low + 1 for low, high in ranges))
    assert grid.flatten(1).T.tolist() == [list(offset) for offset in itertools.product(
        *(range(low, high + 1) for low, high in ranges))]


@pytest.mark.parametrize('window', [(1, 1), (7, 7), (2, 5)])
def test_swapping_query_and_key_turns_the_sign(window):
    result = offsets(WindowGeometry.square(window))
    assert torch.equal(result, -result.transpose(1, 2))


def test_moving_the_keys_moves_the_offsets():
    here = WindowGeometry((3, 4), (2, 5), (1, -2))
    there = here._replace(origin=(1 + 7, -2 - 11))
    assert torch.equal(offsets(there), offsets(here) - torch.tensor([7, -11])[:, None, None])


def test_halo_of_three():
    result = offsets(WindowGeometry.centred((7, 7), (13, 13)))
    assert result.shape == (2, 49, 169)
    assert result.amin() == -9 and result.amax() == 9


@pytest.mark.parametrize('window, key_size, origin', [
    ((7, 7), (13, 13), (-3, -3)), ((4, 6), (4, 6), (0, 0)), ((5, ), (1, ), (2, )), ((4, 2, 3), (6, 6, 3), (-1, -2, 0))])
def test_centred_windows_share_their_centre(window, key_size, origin):
    geometry = WindowGeometry.centred(window, key_size)
    assert geometry == WindowGeometry(window, key_size, origin)
    found = offsets(geometry).flatten(1)
    assert torch.equal(found.amin(1), -found.amax(1))


@pytest.mark.parametrize('window, key_size, origin', [((4, ), (7, ), (-1, )), ((3, 2), (4, 5), (0, -1))])
def test_an_odd_key_more_lies_behind(window, key_size, origin):
    assert WindowGeometry.centred(window, key_size).origin == origin


@pytest.mark.parametrize('window, reach', [((7, 7), 1), ((4, 6), 2), ((8, ), 3), ((1, 1), 1), ((3, 3), 0)])
def test_pooled_keys_are_the_centres_of_the_windows_around(window, reach):
    queries, keys = encodings.places(WindowGeometry.pooled(window, reach))
    assert queries == list(itertools.product(*map(range, window)))
    assert keys == [tuple(step * w + w // 2 for step, w in zip(steps, window))
                    for steps in itertools.product(range(-reach, reach + 1), repeat=len(window))]


def test_joint_index_counts_the_last_axis_fastest():
    sides = (3, 1, 4)
    grid = torch.stack(torch.meshgrid(*map(torch.arange, sides), indexing='ij'))
    assert joint_index(grid, sides).flatten().tolist() == list(range(12))
    assert joint_index(grid[:1], sides[:1]).tolist() == grid[0].tolist()


def test_made_in_inference_mode_used_in_training():
    geometry = WindowGeometry((9, 1), (1, 9), (0, 0))  # a geometry of no other test
    with torch.inference_mode():
        offsets(geometry)
    weight = torch.ones(1, requires_grad=True)
    (weight * offsets(geometry)).sum().backward()
    assert weight.grad is not None
