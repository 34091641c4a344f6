"""Bias maps against loops over offsets and over all pairs of an image."""
import pytest
import torch
from oracles.attention import coordinates, visible
from oracles.compare import assert_forward
from watched import image, inputs_of, projected, tiny

from swin_rpe_mm.visualization.bias_maps import EXACT, KINDS, NONE, PAIRS, PLACES, bias_map, draw_bias
from swin_rpe_mm.visualization.layers import layers_of, pick_heads
from swin_rpe_mm.windows import WindowGeometry


@pytest.mark.parametrize('halo', [0, (1, 2)])
def test_table(halo):
    backbone = tiny(window_size=(3, 5), halo=halo)
    reach = [side - 1 + more for side, more in zip((3, 5), halo or (0, 0))]
    for given in inputs_of(backbone, image()):
        found = bias_map(given)
        assert found.kind == EXACT
        table = given.layer.attention.rpe.relative_position_bias_table.detach()
        rows, columns = 2 * reach[0] + 1, 2 * reach[1] + 1
        assert found.values.shape == (table.shape[1], rows, columns)
        for y in range(rows):
            for x in range(columns):  # a key below and to the right has a negative offset
                expected = table[(reach[0] - (y - reach[0])) * columns + reach[1] - (x - reach[1])]
                assert torch.allclose(found.values[:, y, x], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('rpe', [
    dict(type='RotaryRPE'),
    dict(type='ContextualRPE', on='qkv'),
    [dict(type='ContextualRPE', on='k'), dict(type='RotaryRPE'), dict(type='ClippedRPE', max_distance=2)],
], ids=['rotary', 'contextual', 'sum'])
@pytest.mark.parametrize('halo', [0, 1])
def test_mean_over_the_pairs_of_an_image(rpe, halo):
    backbone = tiny(rpe=rpe, halo=halo, window_size=(3, 4))
    for given in inputs_of(backbone, image(), (31, 45)):
        found = bias_map(given)
        assert found.kind == PAIRS
        size = given.layer.map_size((31, 45))
        seen = visible(size, (3, 4), (1, 2) if given.layer.shifted else (0, 0), (halo, halo))
        q, k, _ = projected(given)
        # these encodings take windows of any size, so one window over the image gives all pairs
        turned, keys, bias = given.layer.attention.rpe(q[None], k[None], WindowGeometry.square(size))
        change = (turned @ keys.transpose(-2, -1) - q @ k.transpose(-2, -1) + (0 if bias is None else bias))[0].detach()
        rows, columns = coordinates(size)
        down, right = (place[None] - place[:, None] for place in (rows, columns))
        middle = [side // 2 for side in found.values.shape[1:]]
        for y in range(found.values.shape[1]):
            for x in range(found.values.shape[2]):
                pairs = seen & (down == y - middle[0]) & (right == x - middle[1])
                if pairs.any():
                    assert_forward(found.values[:, y, x], change[:, pairs].mean(1), 'mean change of logits')
                else:
                    assert found.values[:, y, x].isnan().all()


@pytest.mark.parametrize('arguments, kind', [
    (dict(rpe=None), NONE),
    (dict(rpe=dict(type='ContextualRPE', on='v')), NONE),
    (dict(rpe=dict(type='LogCPB')), EXACT),
    (dict(rpe=dict(type='BlockRPE')), EXACT),
    (dict(rpe=dict(type='BlockRPE'), halo=2), PLACES),
    (dict(rpe=dict(type='DynamicRPE'), mask_padding=False, pooled_neighbours=1), PAIRS),
    (dict(arch='v2-nano'), EXACT),
])
def test_says_what_a_map_is(arguments, kind):
    backbone = tiny(**arguments)
    for given in inputs_of(backbone, image()):
        found = bias_map(given)
        assert found.kind == kind and (found.values is None) == (kind == NONE)
    layers = layers_of(backbone)
    figure, sentences = draw_bias(backbone, image(), layers, pick_heads(layers, None))
    assert sentences == [KINDS[kind]]
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == ([] if kind == NONE else ['head 0', 'head 1'] * 2 + [f'head {head}' for head in range(4)] * 2)


def test_colours_show_a_map_less_its_mean():
    backbone = tiny()
    layers = layers_of(backbone)[:1]
    figure, _ = draw_bias(backbone, image(), layers, {'0.0': [1]})
    shown = figure.axes[0].images[0].get_array()
    values = bias_map(inputs_of(backbone, image())[0]).values[1]
    assert torch.allclose(torch.from_numpy(shown.data), values - values.mean())
