"""Attention through a layout equals dense attention by coordinates, forward and gradient."""
import pytest
import torch
from oracles.attention import dense_attention
from oracles.cases import dice, pixels, random_extents, random_size, random_window
from oracles.compare import assert_forward, assert_gradients

from swin_rpe_mm.windows.layout import WindowLayout

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
    """Masked attention of every window, scattered back: ``(B*H*W, heads, d)`` in and out."""
    qs, ks, vs = q[layout.slots], k[layout.key_slots], v[layout.key_slots]
    logits = torch.einsum('tnhd,tmhd->thnm', qs, ks) + bias
    seen = layout.region[:, :, None] == layout.key_region[:, None]
    weights = logits.masked_fill(~seen[:, None], float('-inf')).softmax(-1)
    return torch.einsum('thnm,tmhd->tnhd', weights, vs).flatten(0, 1)[layout.home]


def random_case(case: int, halo: bool):
    """Layout arguments, extents, and q, k, v, table."""
    rng = dice('layout attention', case)
    size = random_size(rng, 97, 600)
    window = random_window(rng, rng.choice([7, 7, 12]))
    shift = tuple(w // 2 for w in window) if rng.random() < 0.6 else (0, 0)
    extents = random_extents(rng, rng.randint(1, 3), size)
    reach = (rng.randint(0, window[0]), rng.randint(0, window[1])) if halo else (0, 0)
    tokens = len(extents) * size[0] * size[1]
    q, k, v = (pixels(tokens, HEADS, DIMS, seed=3 * case + i) for i in range(3))
    rows = (2 * (window[0] + reach[0]) - 1) * (2 * (window[1] + reach[1]) - 1)
    table = pixels(rows, HEADS, seed=case + 1000)
    return dict(map_size=size, window=window, shift=shift, extents=extents, halo=reach), q, k, v, table


def inside(q: torch.Tensor, size, index: int, extent) -> torch.Tensor:
    """The tokens of one image's extent, ``(heads, h*w, d)``."""
    image = q.view(-1, *size, *q.shape[1:])[index, :extent[0], :extent[1]]
    return image.flatten(0, 1).transpose(0, 1)


def dense_outputs(arguments, q, k, v, table) -> list[torch.Tensor]:
    """The oracle, one image after the other."""
    return [dense_attention(*(inside(x, arguments['map_size'], i, extent) for x in (q, k, v)), table, extent,
                            arguments['window'], arguments['shift'], arguments['halo'])
            for i, extent in enumerate(arguments['extents'])]


@pytest.mark.parametrize('case', range(40))
@pytest.mark.parametrize('halo', [False, True])
def test_equals_dense_attention(case, halo):
    arguments, *values = random_case(case, halo)
    results = {}
    for name in ('layout', 'dense'):
        q, k, v, table = (value.clone().requires_grad_() for value in values)
        if name == 'layout':
            bias = slot_bias(table, arguments['window'], arguments['halo'])
            out = layout_attention(WindowLayout.build(**arguments), q, k, v, bias)
            outs = [inside(out, arguments['map_size'], i, e) for i, e in enumerate(arguments['extents'])]
        else:
            outs = dense_outputs(arguments, q, k, v, table)
        sum((out * pixels(*out.shape, seed=i)).sum() for i, out in enumerate(outs)).backward()
        results[name] = outs, dict(q=q.grad, k=k.grad, v=v.grad, table=table.grad)
    for actual, expected in zip(results['layout'][0], results['dense'][0]):
        assert_forward(actual, expected, 'layout attention against dense')
    assert_gradients(results['layout'][1], results['dense'][1], 'layout attention against dense')


@pytest.mark.parametrize('poison', [1e4, float('nan'), float('inf')])
@pytest.mark.parametrize('case', range(8))
def test_values_outside_the_extents_never_leak(case, poison):
    arguments, q, k, v, table = random_case(case, case % 2 == 1)
    layout = WindowLayout.build(**arguments)
    bias = slot_bias(table, arguments['window'], arguments['halo'])
    clean = layout_attention(layout, q, k, v, bias)
    for value in (q, k, v):
        value[layout.outside] = poison
    poisoned = layout_attention(layout, q, k, v, bias)
    for i, extent in enumerate(arguments['extents']):
        assert torch.equal(inside(poisoned, arguments['map_size'], i, extent),
                           inside(clean, arguments['map_size'], i, extent))


def random_layouts(case: int, side: int = 97) -> tuple[WindowLayout, WindowLayout, int]:
    """Two layouts over the same maps, and the number of tokens."""
    rng = dice('gather', case)
    size, window = random_size(rng, side, 600), random_window(rng, 7)
    extents = random_extents(rng, rng.randint(1, 3), size)
    shift = tuple(w // 2 for w in window)
    plain, shifted = (WindowLayout.build(size, window, by, extents) for by in ((0, 0), shift))
    return plain, shifted, len(extents) * size[0] * size[1]


@pytest.mark.parametrize('case', range(12))
def test_packed_tokens_are_those_inside_in_map_order(case):
    plain, shifted, tokens = random_layouts(case)
    x = pixels(tokens, 3, seed=case)
    keep = torch.ones(tokens, dtype=torch.bool)
    keep[plain.outside] = False
    packed = plain.pack(x)
    assert torch.equal(packed, x[keep])
    assert torch.equal(packed, shifted.pack(x))
    assert torch.equal(plain.pack.inverse(packed), x * keep[:, None])


@pytest.mark.parametrize('case', range(12))
def test_windows_hold_the_tokens_of_their_slots(case):
    for layout in random_layouts(case)[:2]:
        x = pixels(len(layout.home), 3, seed=case)
        packed = layout.pack(x)
        windows = layout.into_windows(packed)
        assert torch.equal(windows, (x[layout.slots] * layout.valid[..., None]).flatten(0, 1))
        assert torch.equal(layout.into_windows.inverse(windows), packed)


@pytest.mark.parametrize('case', range(6))
def test_gradient_of_a_gather_is_its_transpose(case):
    for layout in random_layouts(case, 8)[:2]:
        x = pixels(len(layout.home), 2, seed=case).double().requires_grad_()
        packed = layout.pack(x).detach().requires_grad_()
        slots = pixels(layout.slots.numel(), 2, seed=case).double().requires_grad_()
        assert torch.autograd.gradcheck(layout.pack, (x, ))
        assert torch.autograd.gradcheck(layout.pack.inverse, (packed, ))
        assert torch.autograd.gradcheck(layout.into_windows, (packed, ))
        assert torch.autograd.gradcheck(layout.into_windows.inverse, (slots, ))


def test_double_precision_gradient_of_layout_attention():
    arguments = dict(map_size=(4, 5), window=(3, 2), shift=(1, 1), extents=[(4, 3), (1, 5)], halo=(1, 0))
    layout = WindowLayout.build(**arguments)
    q, k, v = (pixels(40, 1, 2, seed=i).double().requires_grad_() for i in range(3))
    table = pixels(7 * 3, 1, seed=3).double().requires_grad_()

    def attend(q, k, v, table):
        out = layout_attention(layout, q, k, v, slot_bias(table, (3, 2), (1, 0)))
        return torch.cat([inside(out, (4, 5), i, e) for i, e in enumerate(arguments['extents'])], 1)

    assert torch.autograd.gradcheck(attend, (q, k, v, table))
