"""Which old offsets a new offset of a table reads, in each mode; and which windows a table is from."""
import itertools
import math

import numpy as np
import pytest
import torch
from oracles.attention import coordinates
from oracles.cases import dice, pixels, random_window
from oracles.compare import TOLERANCE, forward_error
from oracles.official import offset_index
from scipy.interpolate import CubicSpline, RectBivariateSpline

from swin_rpe_mm import InputError
from swin_rpe_mm.rpe import TableRPE
from swin_rpe_mm.rpe.interpolate import MODES, resize_table, source_sides

PAIRS = [(13, 23), (13, 15), (9, 13), (23, 9), (13, 13), (3, 13), (13, 3), (1, 5), (5, 1), (13, 1), (6, 9), (12, 7)]
ODD_PAIRS = [(old, new) for old, new in PAIRS if old % 2 and new % 2]
GEOMETRIC = [(13, 15), (13, 23), (13, 31), (13, 41), (9, 13), (9, 15), (15, 31), (7, 9), (31, 63), (5, 5), (1, 1)]


def double(*shape, seed=0) -> torch.Tensor:
    return pixels(*shape, seed=seed).double()


def reads(old: int, new: int) -> list[float]:
    """Where bicubic and linear read for each new offset, as an old offset: the window is stretched."""
    centre, new_centre = (old - 1) / 2, (new - 1) / 2
    return [(d + new_centre + 0.5) * old / new - 0.5 - centre for d in np.arange(new) - new_centre]


def tap(row: torch.Tensor, offset: float) -> torch.Tensor:
    """The entry of an offset in a row whose ends are repeated."""
    centre = (len(row) - 1) / 2
    return row[min(max(round(offset + centre), 0), len(row) - 1)]


def convolution(distance: float, a: float = -0.75) -> float:
    """Weight of a neighbour in torch's cubic convolution."""
    x = abs(distance)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.


def ratio_of(reach: int, new_reach: int) -> float:
    """q in [1.01, 1.5] with ``1 + q + ... + q**(reach - 1) = new_reach``, by trying ever finer grids."""
    low, high = 1.01, 1.5
    for _ in range(9):
        grid = np.linspace(low, high, 101)
        best = np.argmin([abs(sum(q**i for i in range(reach)) - new_reach) for q in grid])
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 100)]
    return (low + high) / 2


def knots_of(old: int, new: int) -> np.ndarray:
    """Where the geometric mode puts the old offsets."""
    q = ratio_of(old // 2, new // 2)
    far = np.cumsum([q**i for i in range(old // 2)])
    return np.concatenate([-far[::-1], [0], far])


@pytest.mark.parametrize('old, new', PAIRS)
def test_linear_reads_between_the_two_nearest(old, new):
    row = double(old, 3)
    result = resize_table(row, (old, ), (new, ), 'linear')
    for i, place in enumerate(reads(old, new)):
        below = math.floor(place + (old - 1) / 2) - (old - 1) / 2
        expected = (1 - (place - below)) * tap(row, below) + (place - below) * tap(row, below + 1)
        assert torch.allclose(result[i], expected, atol=1e-12)


@pytest.mark.parametrize('old, new', PAIRS)
def test_bicubic_reads_the_four_nearest(old, new):
    row = double(old, 3)
    result = resize_table(row, (old, ), (new, ), 'bicubic')
    for i, place in enumerate(reads(old, new)):
        below = math.floor(place + (old - 1) / 2) - (old - 1) / 2
        expected = sum(convolution(place - below - step) * tap(row, below + step) for step in (-1, 0, 1, 2))
        assert torch.allclose(result[i], expected, atol=1e-12)


@pytest.mark.parametrize('old, new', [pair for pair in PAIRS if pair[0] > 1])
def test_linear_of_a_ramp_is_the_place_that_is_read(old, new):
    ramp = torch.arange(old, dtype=torch.float64)[:, None] - (old - 1) / 2
    result = resize_table(ramp, (old, ), (new, ), 'linear')
    limit = (old - 1) / 2
    assert torch.allclose(result[:, 0], torch.tensor(reads(old, new), dtype=torch.float64).clamp(-limit, limit))


@pytest.mark.parametrize('mode', ['linear', 'bicubic', 'geometric', 'crop'])
@pytest.mark.parametrize('old, new', [(13, 23), (13, 15), (9, 13)])
def test_odd_tables_stay_odd_and_even_ones_even(mode, old, new):
    half = double(old // 2, 2)
    for sign, middle in ((-1, torch.zeros(1, 2)), (1, torch.ones(1, 2))):
        row = torch.cat([sign * half.flip(0), middle.double(), half])
        result = resize_table(row, (old, ), (new, ), mode)
        assert torch.allclose(result.flip(0), sign * result, atol=1e-12)


@pytest.mark.parametrize('mode', ['linear', 'bicubic', 'geometric', 'crop'])
@pytest.mark.parametrize('old, new', [(13, 23), (9, 13)])
def test_a_constant_stays_itself(mode, old, new):
    result = resize_table(torch.full((old * old, 2), 3.25, dtype=torch.float64), (old, old), (new, new), mode)
    assert torch.allclose(result, torch.full((new * new, 2), 3.25, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize('old, new', ODD_PAIRS)
def test_crop_reads_the_same_offset_or_the_nearest_that_exists(old, new):
    own_offset = torch.arange(old)[:, None] - old // 2
    result = resize_table(own_offset.double(), (old, ), (new, ), 'crop')
    assert result[:, 0].tolist() == [min(max(d, -(old // 2)), old // 2) for d in range(-(new // 2), new // 2 + 1)]


@pytest.mark.parametrize('old, new', [(13, 7), (7, 13)])
def test_crop_of_two_axes_at_once(old, new):
    own = torch.cartesian_prod(torch.arange(old) - old // 2, torch.arange(5) - 2).double()
    result = resize_table(own, (old, 5), (new, 3), 'crop')
    expected = [[min(max(dh, -(old // 2)), old // 2), dw] for dh in range(-(new // 2), new // 2 + 1)
                for dw in (-1, 0, 1)]
    assert result.tolist() == expected


@pytest.mark.parametrize('old, new', GEOMETRIC)
def test_geometric_keeps_the_near_and_the_farthest(old, new):
    row = double(old, 3)
    result = resize_table(row, (old, ), (new, ), 'geometric')
    for offset in {0, 1, -1} & set(range(-(old // 2), old // 2 + 1)):
        assert torch.allclose(result[new // 2 + offset], row[old // 2 + offset], atol=1e-9)
    assert torch.allclose(result[[0, -1]], row[[0, -1]], atol=1e-9)


@pytest.mark.parametrize('old, new', [pair for pair in GEOMETRIC if pair[0] != pair[1]])
def test_geometric_is_a_spline_through_stretched_offsets(old, new):
    row = double(old, 3)
    spline = CubicSpline(knots_of(old, new), row.numpy(), bc_type='not-a-knot')
    expected = torch.from_numpy(spline(np.arange(-(new // 2), new // 2 + 1)))
    assert torch.allclose(resize_table(row, (old, ), (new, ), 'geometric'), expected, atol=1e-8)


@pytest.mark.parametrize('old, new', [((13, 13), (23, 23)), ((13, 9), (15, 13)), ((9, 13), (9, 31))])
def test_geometric_of_a_window_is_the_bivariate_spline(old, new):
    grid = double(*old, 2)
    knots = [knots_of(o, n) if o != n else np.arange(o) - o // 2 for o, n in zip(old, new)]
    targets = [np.arange(-(n // 2), n // 2 + 1) for n in new]
    expected = np.stack([RectBivariateSpline(*knots, grid[..., feature].numpy(), s=0)(*targets)
                         for feature in range(2)], axis=-1)
    result = resize_table(grid.flatten(0, 1), old, new, 'geometric').view(*new, 2)
    assert torch.allclose(result, torch.from_numpy(expected), atol=1e-7)


@pytest.mark.parametrize('old, new', [(13, 11), (13, 13 + 30), (13, 3), (1, 3), (3, 5), (3, 1), (5, 7), (5, 3), (9, 1)])
@pytest.mark.parametrize('axes', [1, 2])
def test_geometric_refuses_what_no_ratio_reaches(old, new, axes):
    with pytest.raises(InputError, match='geometric') as error:
        resize_table(double(old**axes, 2), (old, ) * axes, (old, ) * (axes - 1) + (new, ), 'geometric')
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('old', [1, 3, 5, 7, 9, 13, 15, 17])
def test_geometric_takes_what_its_refusal_offers(old):
    reach = old // 2
    able = []
    for new_reach in range(60):
        try:
            resize_table(double(old, 1), (old, ), (2 * new_reach + 1, ), 'geometric')
            able.append(new_reach)
        except InputError as refusal:
            message = str(refusal)
    low, high = (sum(q**i for i in range(reach)) for q in (1.01, 1.5))
    assert able == sorted({reach} | set(range(math.ceil(low), math.floor(high) + 1)))
    for first, last in [words.split('..') for words in message.replace(',', ' ').split() if '..' in words]:
        assert int(first) <= int(last), message


@pytest.mark.parametrize('mode', ['crop', 'geometric'])
@pytest.mark.parametrize('old, new', [(6, 9), (9, 6), (6, 8)])
def test_offsets_that_are_not_as_many_on_both_sides(mode, old, new):
    with pytest.raises(InputError, match=f'{mode} needs as many negative'):
        resize_table(double(old, 2), (old, ), (new, ), mode)


@pytest.mark.parametrize('mode', sorted(MODES))
@pytest.mark.parametrize('sides', [(13, ), (13, 9), (6, 4), (3, 1, 5)])
def test_same_size_is_the_table_itself(mode, sides):
    table = double(math.prod(sides), 2)
    assert resize_table(table, sides, sides, mode) is table


@pytest.mark.parametrize('mode', ['bicubic', 'linear', 'crop'])
@pytest.mark.parametrize('old, new', [((3, 5), (5, 3)), ((9, ), (4 * 2 - 1, )), ((3, 5, 1), (5, 5, 3)),
                                      ((1, 1), (3, 3)), ((3, 3), (1, 1)), ((3, 3), (13, 13))])
def test_axis_by_axis_in_any_order(mode, old, new):
    table = double(math.prod(old), 2)
    result = resize_table(table, old, new, mode)
    assert result.shape == (math.prod(new), 2)
    for order in itertools.permutations(range(len(old))):
        step, sides = table, list(old)
        for axis in order:
            wanted = sides[:axis] + [new[axis]] + sides[axis + 1:]
            step, sides = resize_table(step, tuple(sides), tuple(wanted), mode), wanted
        assert torch.allclose(step, result, atol=1e-12)


@pytest.mark.parametrize('mode', sorted(MODES))
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_stays(mode, dtype):
    table = double(13 * 13, 2)
    result = resize_table(table.to(dtype), (13, 13), (23, 23), mode)
    assert result.dtype == dtype and result.is_contiguous()
    exact = resize_table(table.to(dtype).double(), (13, 13), (23, 23), mode)
    tolerance = TOLERANCE['forward'].get(dtype, 8 * torch.finfo(dtype).eps)
    assert forward_error(result, exact) <= tolerance


def test_bicubic_of_a_window_is_torchs():
    table = double(13 * 9, 4)
    image = table.view(1, 13, 9, 4).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(image, size=(23, 31), mode='bicubic', align_corners=False)
    result = resize_table(table, (13, 9), (23, 31), 'bicubic')
    assert torch.allclose(result, expected[0].permute(1, 2, 0).flatten(0, 1), atol=1e-12)


def test_unknown_mode():
    with pytest.raises(InputError, match='bicubic, linear, geometric, crop, got .nearest.'):
        resize_table(double(9, 2), (9, ), (9, ), 'nearest')


# ---- the window of a table in a file ----

WINDOWS = [(h, w) for h in range(1, 8) for w in range(1, 8)]


@pytest.mark.parametrize('flat', [False, True])
def test_the_index_tells_the_window(flat):
    for window in WINDOWS:
        sides = tuple(2 * w - 1 for w in window)
        index = offset_index(window)
        index = index.flatten() if flat else index
        for likely in (sides, sides[::-1], (13, 13), (1, math.prod(sides))):
            if min(window) == 1 and likely not in ((13, 13), sides):
                continue  # the index of a row equals that of a column
            found = source_sides(math.prod(sides), index, likely, 'table')
            assert found == sides or min(window) == 1 and found == sides[::-1] != likely, (window, likely)


@pytest.mark.parametrize('window', [(1, 5), (5, 1), (1, 7), (2, 1)])
def test_an_index_that_fits_the_likely_window_is_of_the_likely_window(window):
    sides = tuple(2 * w - 1 for w in window)
    assert source_sides(math.prod(sides), offset_index(window), sides, 'table') == sides


def test_a_file_of_a_window_of_one_row_loads_into_the_same_window():
    rpe = TableRPE(num_heads=2, window_size=(1, 5))
    table = pixels(9, 2)
    rpe.load_state_dict({'relative_position_bias_table': table, 'relative_position_index': offset_index((1, 5))})
    assert torch.equal(rpe.relative_position_bias_table, table)


def test_an_index_over_other_keys_is_no_help_and_no_harm():
    rows = torch.tensor([[0, 1], [2, 3], [4, 5]])
    assert source_sides(16, rows, (4, 4), 'table') == (4, 4)


@pytest.mark.parametrize('case', range(8))
def test_without_an_index_the_likely_window_if_it_fits(case):
    window = random_window(dice('likely', case))
    sides = tuple(2 * w - 1 for w in window)
    assert source_sides(math.prod(sides), None, sides, 'table') == sides


@pytest.mark.parametrize('rows, likely, expected', [
    (169, (23, 23), (13, 13)), (1, (3, 3), (1, 1)), (125, (3, 3, 3), (5, 5, 5)), (9, (7, ), (9, )), (1, (7, ), (1, )),
    (343, (3, 3, 3), (7, 7, 7))])
def test_without_an_index_else_a_square_one(rows, likely, expected):
    assert source_sides(rows, None, likely, 'table') == expected


@pytest.mark.parametrize('rows, likely', [(45, (13, 13)), (16, (13, 13)), (8, (7, )), (10, (3, 3, 3)), (168, (13, 13))])
def test_else_it_cannot_be_told(rows, likely):
    with pytest.raises(InputError, match='blocks.0.table has .* rows') as error:
        source_sides(rows, None, likely, 'blocks.0.table')
    assert '\n' not in str(error.value)


def test_index_of_the_oracle_is_by_coordinates():
    rows, columns = coordinates((2, 3))
    assert offset_index((2, 3))[4, 0] == (1 + rows[4]) * 5 + columns[4] + 2
