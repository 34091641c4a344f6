"""What every layout promises, by plain coordinates."""
import pytest
import torch
from oracles.attention import first_of_cell
from oracles.cases import dice, random_extents, random_size, random_window

from swin_rpe_mm.windows import GlobalWindows, PaddedWindows, ShiftedWindows, WindowLayout, tokens_inside

CASES = range(40)
KINDS = [ShiftedWindows, PaddedWindows]


def draw(case: int, halo: bool = False, kind=ShiftedWindows, area: int = 3000, **options):
    """A random batch: its kind of windows, size of the maps, extents, and how they lie."""
    rng = dice('layout', case)
    size = random_size(rng, 97, area)
    window = random_window(rng, rng.choice([7, 7, 7, 40]))
    shift = tuple(w // 2 for w in window) if rng.random() < 0.6 else (0, 0)
    extents = None if rng.random() < 0.2 else random_extents(rng, rng.randint(1, 4), size)
    reach = (rng.randint(0, window[0]), rng.randint(0, window[1])) if halo else (0, 0)
    kind = kind(window, reach, shift, options.pop('shift_covered_axes', True))
    batch = 2 if extents is None else len(extents)
    layout = WindowLayout.build(kind, batch, size, None if extents is None else torch.tensor(extents), **options)
    return kind, size, extents or [size] * batch, layout


def place(rows: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image, row and column of tokens."""
    tokens = size[0] * size[1]
    return rows // tokens, rows % tokens // size[1], rows % size[1]


def cells_by_coordinates(extent, window, shift) -> set[frozenset[tuple[int, int]]]:
    """The windows of one image as sets of coordinates that see each other."""
    rows = first_of_cell(torch.arange(extent[0]), window[0], shift[0]).tolist()
    columns = first_of_cell(torch.arange(extent[1]), window[1], shift[1]).tolist()
    cells = {}
    for y, top in enumerate(rows):
        for x, left in enumerate(columns):
            cells.setdefault((top, left), set()).add((y, x))
    return {frozenset(cell) for cell in cells.values()}


def cells_of(layout: WindowLayout, size, image: int) -> set[frozenset[tuple[int, int]]]:
    """The same by the layout: slots of a window with one region see each other."""
    windows, slots = layout.region.shape
    owner, y, x = place(layout.rows, size)
    cells = {}
    for flat in ((layout.region.flatten() >= 0) & (owner == image)).nonzero().flatten().tolist():
        key = flat // slots, layout.region.flatten()[flat].item()
        cells.setdefault(key, set()).add((y[flat].item(), x[flat].item()))
    return {frozenset(cell) for cell in cells.values()}


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('kind', KINDS)
def test_every_token_has_one_slot(kind, mask_padding, case):
    kind, size, extents, layout = draw(case, kind=kind, mask_padding=mask_padding)
    tokens = len(extents) * size[0] * size[1]
    assert layout.rows.dtype == layout.rows_back.dtype == layout.region.dtype == torch.long
    assert layout.region.shape[1] == kind.window_size[0] * kind.window_size[1]
    assert layout.rows.shape == (layout.region.numel(), ) and layout.rows_back.shape == (tokens, )
    assert torch.equal(layout.rows[layout.rows_back], torch.arange(tokens))
    assert (layout.rows < tokens).sum() == tokens, 'the other slots are empty'
    assert (layout.rows[layout.rows >= tokens] == tokens).all()


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
def test_what_lies_outside_an_extent_has_no_region(case, halo):
    _, size, extents, layout = draw(case, halo)
    image, y, x = place(layout.rows.view_as(layout.region), size)
    limits = torch.tensor([*extents, (0, 0)])[image]  # empty slots are of no image
    assert torch.equal(layout.region >= 0, (y < limits[..., 0]) & (x < limits[..., 1]))
    inside = tokens_inside(torch.tensor(extents), size)
    assert torch.equal(inside.flatten(), (layout.region >= 0).flatten()[layout.rows_back])


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('covered', [True, False])
def test_windows_are_those_of_the_image_alone(covered, kind, case):
    kind, size, extents, layout = draw(case, kind=kind, shift_covered_axes=covered)
    for image, extent in enumerate(extents):
        shift = kind.shift if covered else tuple(
            0 if w >= e else s for w, e, s in zip(kind.window_size, extent, kind.shift))
        assert cells_of(layout, size, image) == cells_by_coordinates(extent, kind.window_size, shift)


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
@pytest.mark.parametrize('kind', KINDS)
def test_slot_distance_is_token_distance_where_a_query_sees_a_key(kind, halo, case):
    """The bias is looked up by slot: it must be the offset of the tokens."""
    kind, size, _, layout = draw(case, halo, kind, area=900)
    (_, ww), (hh, hw) = kind.window_size, kind.halo
    keys = layout.rows if layout.key_rows is None else layout.key_rows
    keys = keys.view(len(layout.region), -1)
    t, n, m = (layout.visible & (layout.region >= 0)[:, :, None]).nonzero().unbind(1)
    _, qy, qx = place(layout.rows.view_as(layout.region)[t, n], size)
    _, ky, kx = place(keys[t, m], size)
    assert torch.equal(qy - ky, n // ww - (m // (ww + 2 * hw) - hh))
    assert torch.equal(qx - kx, n % ww - (m % (ww + 2 * hw) - hw))


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('halo', [False, True])
@pytest.mark.parametrize('mask_padding', [True, False])
def test_no_query_is_left_without_a_key(mask_padding, halo, case):
    *_, layout = draw(case, halo, mask_padding=mask_padding)
    assert layout.visible.any(2).all()
    if not mask_padding and not halo:
        assert (layout.region >= 0).all(), 'window padding takes part'


@pytest.mark.parametrize('case', CASES)
def test_keys_that_are_not_there_repeat_a_token_of_their_image(case):
    """What is masked must be finite, and must not be another image's: 0 times NaN is NaN."""
    _, size, extents, layout = draw(case, True, area=900)
    if layout.key_rows is None:
        return
    image, y, x = place(layout.key_rows, size)
    limits = torch.tensor(extents)[image]
    assert ((y < limits[:, 0]) & (x < limits[:, 1])).all()
    windows = torch.arange(len(layout.region)) // (len(layout.region) // len(extents))
    assert torch.equal(image.view(len(windows), -1), windows[:, None].expand(-1, len(image) // len(windows)))


@pytest.mark.parametrize('case', range(12))
def test_global_windows_hold_an_image_each(case):
    rng = dice('global', case)
    size = random_size(rng, 20)
    extents = random_extents(rng, 3, size)
    layout = WindowLayout.build(GlobalWindows((3, 3)), 3, size, torch.tensor(extents))
    assert layout.geometry.query_size == layout.geometry.key_size == size
    for image, extent in enumerate(extents):
        assert cells_of(layout, size, image) == {frozenset((y, x) for y in range(extent[0]) for x in range(extent[1]))}


@pytest.mark.parametrize('case', range(20))
def test_neighbours_are_the_windows_around(case):
    rng = dice('neighbours', case)
    size, window, reach = random_size(rng, 40, 600), random_window(rng, 6), rng.randint(1, 2)
    extents = random_extents(rng, 2, size)
    kind = PaddedWindows(window, shift=tuple(w // 2 for w in window))
    layout = WindowLayout.build(kind, 2, size, torch.tensor(extents), pooled_neighbours=reach)
    own = layout.region.shape[1]
    there = layout.visible[:, 0, own:]
    assert torch.equal(layout.visible[:, :, own:], there[:, None].expand(-1, own, -1))

    image, y, x = place(layout.rows.view_as(layout.region), size)
    real = layout.region >= 0
    first = {}  # of each window that holds something, its image and the cell that it is
    for t in real.any(1).nonzero().flatten().tolist():
        n = real[t].nonzero()[0, 0]
        first[t] = tuple([image[t, n].item()] + [
            (c[t, n].item() - s) // w for c, s, w in zip((y, x), kind.shift, window)])
    steps = [(dy, dx) for dy in range(-reach, reach + 1) for dx in range(-reach, reach + 1) if (dy, dx) != (0, 0)]
    places = {cell: t for t, cell in first.items()}
    for t, (b, cy, cx) in first.items():
        for p, (dy, dx) in enumerate(steps):
            other = places.get((b, cy + dy, cx + dx))
            assert there[t, p] == (other is not None)
            if other is not None:
                assert layout.neighbours[t, p] == other


def test_its_tensors_are_found_among_arguments():
    """By PyTorch's own trees, as those who trace or draw a block see them."""
    leaves = torch.utils._pytree.tree_leaves(draw(0, halo=True, pooled_neighbours=1)[-1])
    assert sum(isinstance(leaf, torch.Tensor) for leaf in leaves) == 6
