"""Pieces of windows against who sees whom by coordinates."""
import pytest
import torch
from oracles.attention import visible
from oracles.cases import dice, random_extents, random_size, random_window
from watched import image, inputs_of, tiny

from swin_rpe_mm.visualization.attention_maps import point_attention
from swin_rpe_mm.visualization.window_grid import around, covered, draw_windows, keys_of_middle, pieces
from swin_rpe_mm.windows import ShiftedWindows, WindowLayout


@pytest.mark.parametrize('case', range(20))
def test_tokens_of_a_piece_see_each_other_and_no_others(case):
    rng = dice('pieces', case)
    size, window = random_size(rng, 40, 500), random_window(rng)
    shift = tuple(side // 2 for side in window) if case % 2 else (0, 0)
    masked = case % 3 > 0
    extents = random_extents(rng, 2, size) if masked else [size] * 2
    windows = ShiftedWindows(window, shift=shift)
    layout = WindowLayout.build(windows, 2, size, torch.tensor(extents), masked)
    for index, extent in enumerate(extents):
        member = torch.full(extent, -1)
        for number, piece in enumerate(pieces(layout, size, index)):
            top, left, bottom, right = piece.box
            assert (member[top:bottom, left:right] == -1).all()
            member[top:bottom, left:right] = number
        assert (member >= 0).all()
        same = member.flatten()[:, None] == member.flatten()[None]
        assert torch.equal(same, visible(extent, window, shift))


def test_the_seam():
    """The example of the layout's own documentation: 10 tokens, window 4, shift 2."""
    windows = ShiftedWindows((4, 4), shift=(0, 2))
    found = pieces(WindowLayout.build(windows, 1, (4, 10)), (4, 10))
    assert [piece.box for piece in found] == [(0, 0, 4, 2), (0, 2, 4, 6), (0, 6, 4, 10)]
    assert [(piece.joined, piece.padded) for piece in found] == [(False, True), (False, False), (False, False)]
    found = pieces(WindowLayout.build(windows, 1, (4, 11)), (4, 11))
    assert [piece.box for piece in found] == [(0, 0, 4, 2), (0, 2, 4, 6), (0, 6, 4, 10), (0, 10, 4, 11)]
    assert [(piece.joined, piece.padded) for piece in found] == [(True, True), *[(False, False)] * 2, (True, True)]
    assert found[0].window == found[3].window


@pytest.mark.parametrize('arguments, regular, shifted', [
    ({}, (0, 0, 12, 20), (0, 0, 12, 20)),
    (dict(pooled_neighbours=1), (0, 0, 12, 20), (-2, -2, 14, 18)),
    (dict(window_size=24), (0, 0, 24, 24), (0, 0, 24, 24)),
    (dict(window_size=(3, 24), pooled_neighbours=1, shift_covered_axes=False), (0, 0, 12, 24), (-2, 0, 13, 24)),
])
def test_covered_is_as_large_as_the_windows(arguments, regular, shifted):
    backbone = tiny(**arguments)
    extent, stage = (12, 18), backbone.stages[0]
    for windows, expected, layout in zip(stage.kinds, (regular, shifted), stage.layouts(1, extent, None, 'cpu')):
        box = covered(windows, extent)
        assert box == expected
        held = (layout.region >= 0).any(1)
        assert (box[2] - box[0]) * (box[3] - box[1]) == layout.region[held].numel()


@pytest.mark.parametrize('arguments', [dict(halo=(1, 3)), dict(pooled_neighbours=1), dict(window_size=24, halo=1)])
def test_keys_of_the_middle_are_those_it_attends_to(arguments):
    for given in inputs_of(tiny(**arguments), image(48, 72)):
        size = given.layer.map_size((48, 72))
        seen = point_attention(given, size, (size[0] // 2, size[1] // 2)).seen.nonzero()
        box = keys_of_middle(given.layer, pieces(given.layout, size), size)
        assert box == (*seen.amin(0).tolist(), *(seen.amax(0) + 1).tolist())


def test_around():
    parts = around((-1, -2, 7, 9), (5, 6))
    hit = torch.zeros(8, 11)
    for top, left, bottom, right in parts:
        hit[top + 1:bottom + 1, left + 2:right + 2] += 1
    expected = torch.ones(8, 11)
    expected[1:6, 2:8] = 0
    assert torch.equal(hit, expected)


def test_figure_has_a_panel_for_each_stage_and_shift():
    picture = torch.zeros(46, 70, 3, dtype=torch.uint8).numpy()
    figure = draw_windows(tiny(), image(48, 72), picture, [(46, 70)])
    shown = [axis.get_title() for axis in figure.axes if axis.axison]
    assert shown == [
        'stage 0: regular, 4×4 tokens of 4 px\n15 windows, 3 masked, 10 % of slots padding',
        'stage 1: regular, 4×4 tokens of 8 px\n6 windows, 4 masked, 43.8 % of slots padding',
        'stage 0: shifted, 4×4 tokens of 4 px\n15 windows, 7 masked, 10 % of slots padding',
        'stage 1: shifted, 4×4 tokens of 8 px\n6 windows, 5 masked, 43.8 % of slots padding'
    ]
    figure = draw_windows(tiny(shift_windows=False), image(48, 72), picture)
    assert sum(axis.axison for axis in figure.axes) == 2
