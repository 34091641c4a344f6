"""Offsets are query coordinate minus key coordinate, in any number of axes."""
import itertools

import pytest
import torch
from oracles.cases import dice

from swin_rpe_mm.models.rpe import WindowGeometry, offsets


def random_geometry(case: int) -> WindowGeometry:
    rng = dice('geometry', case)
    axes = 1 + case % 3
    longest = {1: 20, 2: 6, 3: 3}[axes]
    return WindowGeometry(*(tuple(rng.randint(low, longest) for _ in range(axes)) for low in (1, 1, -longest)))


@pytest.mark.parametrize('case', range(24))
def test_pair_by_pair(case):
    geometry = random_geometry(case)
    queries = list(itertools.product(*map(range, geometry.query_size)))
    keys = [tuple(o + c for o, c in zip(geometry.origin, key)) for key in
            itertools.product(*map(range, geometry.key_size))]
    expected = torch.tensor([[[q[axis] - k[axis] for k in keys] for q in queries]
                             for axis in range(len(geometry.query_size))])
    result = offsets(geometry)
    assert not result.is_floating_point()
    assert torch.equal(result.long(), expected)


@pytest.mark.parametrize('window', [(1, 1), (7, 7), (2, 5)])
def test_swapping_query_and_key_turns_the_sign(window):
    result = offsets(WindowGeometry(window, window, (0, 0)))
    assert torch.equal(result, -result.transpose(1, 2))


def test_halo_of_three():
    result = offsets(WindowGeometry((7, 7), (13, 13), (-3, -3)))
    assert result.shape == (2, 49, 169)
    assert result.amin() == -9 and result.amax() == 9
