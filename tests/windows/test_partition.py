"""Partition, attend and merge equal dense attention by coordinates, forward and gradient."""
import pytest
import torch
from oracles.attention import dense_attention
from oracles.cases import dice, pixels, random_extents, random_size, random_window
from oracles.compare import assert_forward, assert_gradients

from swin_rpe_mm.models.block import attend, merge, partition
from swin_rpe_mm.windows import PaddedWindows, ShiftedWindows, WindowLayout, tokens_inside

HEADS, DIMS = 2, 4


def slot_bias(table: torch.Tensor, window: tuple[int, int], halo: tuple[int, int]) -> torch.Tensor:
    """Bias by slot, ``(heads, N, Nk)``, written out pair by pair of axes."""
    index = []
    for w, h in zip(window, halo):
        offset = torch.arange(w)[:, None] - torch.arange(-h, w + h)[None]
        index.append(offset + w + h - 1)
    side = 2 * (window[1] + halo[1]) - 1
    rows = index[0][:, None, :, None] * side + index[1][None, :, None, :]
    return table[rows.flatten(2).flatten(0, 1)].permute(2, 0, 1)


def layout_attention(layout: WindowLayout, q, k, v, bias) -> torch.Tensor:
    """Masked attention of every window: ``(B * L, heads, d)`` in and out."""
    qkv = torch.cat([x.flatten(1) for x in (q, k, v)], dim=1)
    q, k, v = partition(qkv, layout, HEADS)
    if layout.key_rows is not None:
        keys = qkv[:, HEADS * DIMS:].index_select(0, layout.key_rows)
        k, v = keys.view(len(q), -1, 2, HEADS, DIMS).permute(2, 0, 3, 1, 4)
    return merge(attend(q, k, v, bias, layout.visible), layout).view(-1, HEADS, DIMS)


def random_case(case: int, halo: bool):
    """Window, shift, halo, size of the maps, extents, and q, k, v, table."""
    rng = dice('layout attention', case)
    size = random_size(rng, 97, 600)
    window = random_window(rng, rng.choice([7, 7, 12]))
    shift = tuple(w // 2 for w in window) if rng.random() < 0.6 else (0, 0)
    extents = random_extents(rng, rng.randint(1, 3), size)
    reach = (rng.randint(0, window[0]), rng.randint(0, window[1])) if halo else (0, 0)
    tokens = len(extents) * size[0] * size[1]
    q, k, v = (pixels(tokens, HEADS, DIMS, seed=3 * case + i) for i in range(3))
    rows = (2 * (window[0] + reach[0]) - 1) * (2 * (window[1] + reach[1]) - 1)
    return (window, reach, shift), size, extents, (q, k, v, pixels(rows, HEADS, seed=case + 1000))


def inside(x: torch.Tensor, size, index: int, extent) -> torch.Tensor:
    """The tokens of one image's extent, ``(heads, h*w, d)``."""
    image = x.view(-1, *size, *x.shape[1:])[index, :extent[0], :extent[1]]
    return image.flatten(0, 1).transpose(0, 1)


@pytest.mark.parametrize('case', range(40))
@pytest.mark.parametrize('halo', [False, True])
@pytest.mark.parametrize('kind', [ShiftedWindows, PaddedWindows])
def test_equals_dense_attention(kind, halo, case):
    (window, reach, shift), size, extents, values = random_case(case, halo)
    layout = WindowLayout.build(kind(window, reach, shift), len(extents), size, torch.tensor(extents))
    results = {}
    for name in ('layout', 'dense'):
        q, k, v, table = (value.clone().requires_grad_() for value in values)
        if name == 'layout':
            out = layout_attention(layout, q, k, v, slot_bias(table, window, reach))
            outs = [inside(out, size, i, e) for i, e in enumerate(extents)]
        else:
            outs = [dense_attention(*(inside(x, size, i, e) for x in (q, k, v)), table, e, window, shift, reach)
                    for i, e in enumerate(extents)]
        sum((out * pixels(*out.shape, seed=i)).sum() for i, out in enumerate(outs)).backward()
        results[name] = outs, dict(q=q.grad, k=k.grad, v=v.grad, table=table.grad)
    for actual, expected in zip(results['layout'][0], results['dense'][0]):
        assert_forward(actual, expected, 'layout attention against dense')
    assert_gradients(results['layout'][1], results['dense'][1], 'layout attention against dense')


@pytest.mark.parametrize('case', range(8))
def test_large_values_outside_the_extents_never_leak(case):
    (window, reach, shift), size, extents, (q, k, v, table) = random_case(case, case % 2 == 1)
    layout = WindowLayout.build(ShiftedWindows(window, reach, shift), len(extents), size, torch.tensor(extents))
    bias = slot_bias(table, window, reach)
    clean = layout_attention(layout, q, k, v, bias)
    for value in (q, k, v):
        value[~tokens_inside(torch.tensor(extents), size).flatten()] = 1e4
    loud = layout_attention(layout, q, k, v, bias)
    for i, extent in enumerate(extents):
        assert torch.equal(inside(loud, size, i, extent), inside(clean, size, i, extent))


def test_gradients_of_every_order():
    extents = [(4, 3), (1, 5)]
    layout = WindowLayout.build(ShiftedWindows((3, 2), (1, 0), (1, 1)), 2, (4, 5), torch.tensor(extents))
    q, k, v = (pixels(40, HEADS, DIMS, seed=i).double().requires_grad_() for i in range(3))
    table = pixels(7 * 3, HEADS, seed=3).double().requires_grad_()

    def run(q, k, v, table):
        out = layout_attention(layout, q, k, v, slot_bias(table, (3, 2), (1, 0)))
        return torch.cat([inside(out, (4, 5), i, e) for i, e in enumerate(extents)], 1)

    assert torch.autograd.gradcheck(run, (q, k, v, table), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (q, k, v, table), fast_mode=True)


@pytest.mark.parametrize('case', range(12))
@pytest.mark.parametrize('takes_part', [True, False])
def test_merge_undoes_partition(takes_part, case):
    (window, _, shift), size, extents, _ = random_case(case, False)
    layout = WindowLayout.build(ShiftedWindows(window, shift=shift), len(extents), size, mask_padding=not takes_part)
    tokens = len(extents) * size[0] * size[1]
    rows = pixels(tokens + takes_part, 3 * HEADS * DIMS, seed=case)
    q, k, v = partition(rows, layout, HEADS)
    for part, expected in zip((q, k, v), rows[:tokens].chunk(3, dim=1)):
        assert torch.equal(merge(part, layout), expected)
    empty = (layout.rows == tokens).view(len(q), -1)
    filling = rows[-1].view(3, HEADS, DIMS) if takes_part else torch.zeros(3, HEADS, DIMS)
    for part, value in zip((q, k, v), filling):
        assert torch.equal(part.transpose(1, 2)[empty], value.expand(int(empty.sum()), -1, -1))
