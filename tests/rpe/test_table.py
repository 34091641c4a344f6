"""The bias table: one learned number per offset and head."""
import pytest
import torch
import torch.nn.functional as F
from oracles.cases import dice, pixels, random_window

from swin_rpe_mm import InputError
from swin_rpe_mm.registry import MODELS
from swin_rpe_mm.rpe import TableRPE, build_rpe, offsets
from swin_rpe_mm.windows import WindowGeometry


def table_rpe(window, heads=2, seed=0, **kwargs) -> TableRPE:
    rpe = TableRPE(num_heads=heads, window_size=window, **kwargs)
    table = rpe.relative_position_bias_table
    table.data = pixels(*table.shape, seed=seed)
    return rpe


def grid(table: torch.Tensor, window) -> torch.Tensor:
    """``(heads, 2wh - 1, 2ww - 1)``."""
    return table.detach().T.reshape(-1, 2 * window[0] - 1, 2 * window[1] - 1)


def bias_of(rpe, geometry) -> torch.Tensor:
    q, k = pixels(1, 2, 4, 3, seed=1), pixels(1, 2, 4, 3, seed=2)
    q_out, k_out, bias = rpe(q, k, geometry)
    assert q_out is q and k_out is k
    return bias


@pytest.mark.parametrize('case', range(16))
def test_row_of_every_pair(case):
    window = random_window(dice('table', case))
    rpe = table_rpe(window, seed=case)
    bias = bias_of(rpe, WindowGeometry(window, window, (0, 0)))
    wh, ww = window
    slots = [(y, x) for y in range(wh) for x in range(ww)]
    expected = torch.tensor([[(qy - ky + wh - 1) * (2 * ww - 1) + qx - kx + ww - 1 for ky, kx in slots]
                             for qy, qx in slots])
    table = rpe.relative_position_bias_table
    assert table.shape == ((2 * wh - 1) * (2 * ww - 1), 2)
    assert torch.equal(bias, table[expected].permute(2, 0, 1))


@pytest.mark.parametrize('geometry', [WindowGeometry((7, 7), (13, 13), (-3, -3)),
                                      WindowGeometry((2, 3), (6, 5), (-2, -1)), WindowGeometry((5, ), (5, ), (0, )),
                                      WindowGeometry((2, 3, 2), (2, 3, 2), (0, 0, 0))])
def test_equal_offsets_share_a_row_and_others_do_not(geometry):
    rpe = table_rpe(geometry.query_size, key_size=geometry.key_size)
    rows = 1
    for wq, wk in zip(geometry.query_size, geometry.key_size):
        rows *= wq + wk - 1
    assert len(rpe.relative_position_bias_table) == rows
    bias = bias_of(rpe, geometry)
    by_offset = {}
    for offset, value in zip(offsets(geometry).flatten(1).T.tolist(), bias[0].flatten().tolist()):
        by_offset.setdefault(tuple(offset), set()).add(value)
    assert all(len(values) == 1 for values in by_offset.values())
    assert len(by_offset) == rows
    assert len(set.union(*by_offset.values())) == rows
    assert list(by_offset[offset] for offset in sorted(by_offset)) == [
        {value} for value in rpe.relative_position_bias_table[:, 0].tolist()]


@pytest.mark.parametrize('window', [(1, 1), (3, 3), (2, 4)])
def test_gradient_counts_the_pairs_of_each_offset(window):
    rpe = table_rpe(window)
    bias_of(rpe, WindowGeometry(window, window, (0, 0))).sum().backward()
    pairs = [(window[0] - abs(dh)) * (window[1] - abs(dw))
             for dh in range(1 - window[0], window[0]) for dw in range(1 - window[1], window[1])]
    assert rpe.relative_position_bias_table.grad.tolist() == [[pair, pair] for pair in pairs]


def test_gradient_in_double_precision():
    rpe = table_rpe((2, 3)).double()
    table = rpe.relative_position_bias_table

    def bias(_):
        return rpe.bias(WindowGeometry.square((2, 3)))

    assert torch.autograd.gradcheck(bias, (table, ))


@pytest.mark.parametrize('new', [(5, 5), (7, 7), (12, 12), (1, 1), (4, 9), (9, 4)])
@pytest.mark.parametrize('mode', ['bicubic', 'crop'])
def test_resampling_hands_over_the_old_table_and_the_new_one(new, mode):
    rpe = table_rpe((7, 7))
    before = rpe.relative_position_bias_table
    replaced = rpe.resample(new, mode)
    after = rpe.relative_position_bias_table
    assert isinstance(after, torch.nn.Parameter) and after.requires_grad
    if new == (7, 7):
        assert not replaced and after is before
    else:
        (old, made), = replaced
        assert old is before and made is after and after is not before and len(before) == 169
    assert bias_of(rpe, WindowGeometry(new, new, (0, 0))).shape == (2, new[0] * new[1], new[0] * new[1])


@pytest.mark.parametrize('mode', ['bicubic', 'crop'])
@pytest.mark.parametrize('window', [(7, 7), (3, 5)])
def test_resampling_to_the_same_window_changes_nothing(window, mode):
    rpe = table_rpe(window)
    before = rpe.relative_position_bias_table.detach().clone()
    rpe.resample(window, mode)
    assert torch.equal(rpe.relative_position_bias_table, before)


@pytest.mark.parametrize('old', [(7, 7), (3, 5)])
@pytest.mark.parametrize('new', [(12, 12), (5, 3), (2, 9)])
def test_bicubic_stretches_the_table(old, new):
    rpe = table_rpe(old)
    before = grid(rpe.relative_position_bias_table, old)
    rpe.resample(new, 'bicubic')
    expected = F.interpolate(before[None], size=(2 * new[0] - 1, 2 * new[1] - 1), mode='bicubic')[0]
    assert torch.allclose(grid(rpe.relative_position_bias_table, new), expected, atol=1e-6)


@pytest.mark.parametrize('old', [(7, 7), (3, 5)])
@pytest.mark.parametrize('new', [(12, 12), (5, 3), (2, 9), (2, 2)])
def test_crop_keeps_every_offset_and_repeats_the_edge(old, new):
    rpe = table_rpe(old)
    before = grid(rpe.relative_position_bias_table, old)
    rpe.resample(new, 'crop')
    after = grid(rpe.relative_position_bias_table, new)
    for dh in range(1 - new[0], new[0]):
        for dw in range(1 - new[1], new[1]):
            near = (max(1 - old[0], min(dh, old[0] - 1)), max(1 - old[1], min(dw, old[1] - 1)))
            assert torch.equal(after[:, dh + new[0] - 1, dw + new[1] - 1],
                               before[:, near[0] + old[0] - 1, near[1] + old[1] - 1])


def test_initial_table_is_small_noise():
    table = TableRPE(num_heads=8, window_size=(7, 7)).relative_position_bias_table
    assert 0.015 < table.std() < 0.025


def test_unknown_mode_and_wrong_window_are_input_errors():
    rpe = table_rpe((7, 7))
    with pytest.raises(InputError, match='bicubic'):
        rpe.resample((5, 5), 'nearest')
    with pytest.raises(InputError):
        bias_of(rpe, WindowGeometry((9, 9), (9, 9), (0, 0)))


@pytest.mark.parametrize('kind', ['TableRPE', 'LowRankRPE', 'DecomposedRPE'])
@pytest.mark.parametrize('origin, size', [
    ((-2, 0), (3, 3)), ((1, 0), (3, 3)), ((0, -2), (3, 3)), ((0, 1), (3, 3)), ((-1, 0), (4, 3)), ((0, ), (3, ))])
def test_offsets_that_have_no_row(kind, origin, size):
    """Made for 3 by 3 queries and 5 by 5 keys; one offset too far at either end of either axis."""
    rpe = build_rpe(dict(type=kind), num_heads=2, window_size=(3, 3), key_size=(5, 5), head_dim=4)
    geometry = WindowGeometry(size, (4, ) * len(size), origin)
    q, k = (pixels(1, 2, torch.Size(slots).numel(), 4) for slots in geometry[:2])
    with pytest.raises(InputError, match='resample') as error:
        rpe(q, k, geometry)
    assert '\n' not in str(error.value)


def test_registered():
    rpe = MODELS.build(dict(type='swin_rpe_mm.TableRPE', num_heads=2, window_size=(3, 3)))
    assert isinstance(rpe, TableRPE)
