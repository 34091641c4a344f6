"""The door for a new kind of window: a small registered class, and everything else follows from it."""
from dataclasses import dataclass

import pytest
import torch
from oracles.cases import SMALL, pixels, randomise
from oracles.compare import assert_forward

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.registry import WINDOWS
from swin_rpe_mm.windows import ShiftedWindows, WindowGeometry, WindowLayout, Windows
from swin_rpe_mm.windows.indices import ceil_div


@dataclass(frozen=True)
class DilatedWindows(Windows):
    """Each window holds every second token of a region twice its size along both axes; there is no shift."""

    def geometry(self, map_size):
        return WindowGeometry.square(self.window_size)

    def count(self, axis, length):
        return 2 * ceil_div(length, 2 * self.window_size[axis])

    def token(self, axis, window, place, length, extent):
        coordinate = (window // 2) * 2 * self.window_size[axis] + 2 * place + window % 2
        return coordinate, torch.zeros_like(coordinate)

    def slot(self, axis, coordinate, length, extent):
        region, inner = coordinate // (2 * self.window_size[axis]), coordinate % (2 * self.window_size[axis])
        return 2 * region + inner % 2, inner // 2


@pytest.fixture
def dilated():
    WINDOWS.register_module(module=DilatedWindows)
    yield dict(type='DilatedWindows')
    WINDOWS.module_dict.pop('DilatedWindows')


@pytest.mark.parametrize('size', [(1, 1), (5, 12), (13, 9)])
def test_a_kind_of_ones_own_lays_every_token_once(size):
    layout = WindowLayout.build(DilatedWindows((2, 3)), 2, size)
    tokens = 2 * size[0] * size[1]
    assert torch.equal(layout.rows[layout.rows_back], torch.arange(tokens))
    assert (layout.rows < tokens).sum() == tokens


def test_a_kind_of_ones_own_in_a_backbone(dilated):
    """By hand: the same tokens picked out of the map are a map of half the size, attended to in usual windows."""
    options = SMALL | dict(depths=(1, ), num_heads=(2, ), strides=(4, ), out_indices=(0, ), window_size=3)
    model = randomise(SwinRPE(**options, windows=dilated)).eval()
    plain = SwinRPE(**options, backend='plain', windows=dilated)
    plain.load_state_dict(model.state_dict())
    usual = SwinRPE(**options)
    usual.load_state_dict(model.state_dict())
    images = pixels(2, 3, 48, 72)
    with torch.no_grad():
        features, = model(images)
        assert_forward(features, plain.eval()(images)[0], 'a kind of windows of ones own')
        patches = images.unflatten(3, (-1, 4)).unflatten(2, (-1, 4))  # (B, 3, H, 4, W, 4)
        for y in (0, 1):
            for x in (0, 1):
                picked = patches[:, :, y::2, :, x::2].flatten(4, 5).flatten(2, 3)
                assert_forward(features[:, :, y::2, x::2], usual.eval()(picked)[0])


@pytest.mark.parametrize('windows', [dict(type='ShiftedWindow'), 'ShiftedWindows', [dict(type='ShiftedWindows')], 3])
def test_wrong_kind(windows):
    with pytest.raises(InputError, match='windows'):
        SwinRPE(arch='nano', windows=windows)


def test_pooled_neighbours_want_windows_that_do_not_wrap():
    with pytest.raises(InputError, match='PaddedWindows'):
        SwinRPE(arch='nano', pooled_neighbours=1, windows=dict(type='ShiftedWindows'))


def test_global_attention_in_the_last_stage():
    """One window as large as the map is what a window as large as the map gives, for encodings of any size."""
    rpe = dict(type='LogCPB', hidden_dims=8, pretrained_window_size=7)
    kinds = [None, None, None, dict(type='GlobalWindows')]
    model = randomise(SwinRPE(**SMALL, rpe=rpe, windows=kinds, shift_covered_axes=False)).eval()
    windowed = SwinRPE(**SMALL, rpe=rpe, window_size=[7, 7, 7, (5, 3)], shift_covered_axes=False).eval()
    windowed.load_state_dict(model.state_dict())
    images = pixels(2, 3, 160, 96)
    with torch.no_grad():
        for actual, expected in zip(model(images), windowed(images)):
            assert_forward(actual, expected)
    with pytest.raises(InputError, match='table holds the offsets'):
        SwinRPE(**SMALL, windows=kinds)(pixels(1, 3, 320, 96))


def test_a_kind_is_a_value():
    assert ShiftedWindows((7, 7)) == ShiftedWindows((7, 7)) != ShiftedWindows((7, 7), shift=(3, 3))
