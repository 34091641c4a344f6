"""Attention distance against dense attention over all tokens."""
import torch
from oracles.attention import coordinates, offset_bias, visible
from oracles.compare import assert_forward
from watched import image, inputs_of, projected, tiny

from swin_rpe_mm.visualization.attention_distance import attention_distance, draw_distance
from swin_rpe_mm.visualization.layers import layers_of

WINDOW, HALO = (3, 4), (1, 2)


def test_against_dense_attention():
    backbone = tiny(window_size=WINDOW, halo=HALO, patch_size=(4, 2), strides=((4, 2), 2))
    for given in inputs_of(backbone, image(46, 40), (35, 37)):
        layer, found = given.layer, attention_distance(given)
        size = layer.map_size((35, 37))
        seen = visible(size, WINDOW, (1, 2) if layer.shifted else (0, 0), HALO)
        q, k, _ = projected(given)
        table = layer.attention.rpe.relative_position_bias_table.detach()
        logits = q @ k.transpose(1, 2) + offset_bias(table, size, WINDOW, seen, HALO)
        weights = logits.masked_fill(~seen, float('-inf')).softmax(-1)
        even = seen / seen.sum(1, keepdim=True).double()
        rows, columns = coordinates(size)
        down, right = ((place[:, None] - place).double() for place in (rows, columns))
        for name, step in (('tokens', (1, 1)), ('pixels', layer.stride)):
            away = ((down * step[0])**2 + (right * step[1])**2).sqrt()
            assert_forward(getattr(found, name), (weights * away).sum(-1).mean(-1), f'attention distance, {name}')
            assert abs(getattr(found, f'even_{name}') - float((even * away).sum(-1).mean())) < 1e-10


def test_pooled_neighbours_count_with_their_centres():
    """Without content and encoding, all keys weigh alike: 16 of the own window, and the eight windows around it."""
    backbone = tiny(pooled_neighbours=1, rpe=None, depths=(1, 1))
    with torch.no_grad():
        for layer in layers_of(backbone):
            layer.attention.qkv.weight.zero_()
            layer.attention.qkv.bias.zero_()
            layer.attention.pooled_rpe.relative_position_bias_table.zero_()
    given = inputs_of(backbone, image(16 * 3, 16 * 3))[0]
    total, places = 0., [(y, x) for y in range(12) for x in range(12)]
    for y, x in places:
        top, left = y // 4 * 4, x // 4 * 4
        keys = [(top + i, left + j) for i in range(4) for j in range(4)]
        keys += [(top + 4 * i + 2, left + 4 * j + 2) for i in (-1, 0, 1) for j in (-1, 0, 1)
                 if (i or j) and 0 <= top + 4 * i < 12 and 0 <= left + 4 * j < 12]
        total += sum(((y - a)**2 + (x - b)**2)**.5 for a, b in keys) / len(keys)
    found = attention_distance(given)
    assert torch.allclose(found.tokens, torch.full((2, ), total / 144, dtype=torch.float64))
    assert torch.allclose(found.pixels, 4 * found.tokens) and abs(found.even_tokens - total / 144) < 1e-10


def test_figure_shows_every_head():
    backbone = tiny()
    layers = layers_of(backbone)
    figure = draw_distance(backbone, image(), layers)
    expected = [attention_distance(given) for given in inputs_of(backbone, image())]
    pixels, tokens = figure.axes
    for axis, unit in ((pixels, 'pixels'), (tokens, 'tokens')):
        assert unit in axis.get_ylabel()
        drawn = [torch.as_tensor(line.get_ydata()) for line in axis.lines[::2]]
        assert len(drawn) == 4
        for values, distance in zip(drawn, expected):
            assert torch.allclose(values, getattr(distance, unit))
