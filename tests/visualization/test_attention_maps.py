"""Attention of a point against what the model's own attention gives, and against dense attention."""
import pytest
import torch
from oracles.attention import offset_bias, visible
from oracles.compare import assert_forward
from watched import image, inputs_of, projected, tiny

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.visualization.attention_maps import draw_attention, point_attention
from swin_rpe_mm.visualization.layers import layers_of, pick_heads

CASES = {
    'table': {},
    'none': dict(rpe=None),
    'clipped': dict(rpe=dict(type='ClippedRPE', max_distance=2)),
    'log bucket': dict(rpe=dict(type='LogBucketRPE')),
    'log cpb': dict(rpe=dict(type='LogCPB')),
    'rotary': dict(rpe=dict(type='RotaryRPE')),
    'contextual': dict(rpe=dict(type='ContextualRPE', on='qkv')),
    'decomposed': dict(rpe=dict(type='DecomposedRPE')),
    'low rank': dict(rpe=dict(type='LowRankRPE')),
    'dynamic after rotary': dict(rpe=[dict(type='RotaryRPE'), dict(type='DynamicRPE')]),
    'block, halo': dict(rpe=dict(type='BlockRPE'), halo=2),
    'halo of a window, no shift': dict(halo='window', shift_windows=False),
    'halo, padding seen': dict(halo=2, mask_padding=False),
    'pooled neighbours': dict(pooled_neighbours=1),
    'pooled neighbours, padding seen': dict(pooled_neighbours=1, mask_padding=False),
    'pooled neighbours, halo, contextual': dict(pooled_neighbours=1, halo=1, rpe=dict(type='ContextualRPE', on='kv')),
    'padding seen': dict(mask_padding=False),
    'rectangular, per stage': dict(window_size=[(3, 5), (6, 2)]),
    'larger than the map': dict(window_size=24),
    'larger than the map, not shifted there': dict(window_size=[(4, 24), 24], shift_covered_axes=False),
    'rectangular patches': dict(patch_size=(4, 2), strides=((4, 2), 2)),
    'v2': dict(arch='v2-nano'),
    'v2, halo, pooled': dict(arch='v2-nano', halo=1, pooled_neighbours=1),
}


def values_of(given) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of the tokens ``(heads, L, d)``, and what zeros are projected to ``(heads, d)``."""
    attention = given.layer.attention
    x = attention.qkv(given.tokens[0]).detach()
    padding = x.new_zeros(x.shape[1]) if attention.qkv.bias is None else attention.qkv.bias.detach()
    shape = (3, attention.num_heads, attention.head_dim)
    x, padding = x.unflatten(1, shape)[:, 2].transpose(0, 1), padding.unflatten(0, shape)[2]
    if attention.v_bias is not None:
        own = attention.v_bias.detach().view_as(padding)
        x, padding = x + own[:, None], padding + own
    return x, padding


@pytest.mark.parametrize('arguments', CASES.values(), ids=CASES)
def test_weights_times_values_are_what_the_model_gives(arguments):
    backbone = tiny(**arguments)
    images, size = image(), (41, 58)
    outs = []
    for layer in layers_of(backbone):
        layer.attention.register_forward_hook(lambda module, args, out: outs.append(out.detach()))
    for given, expected in zip(inputs_of(backbone, images, size), outs):
        layer, layout = given.layer, given.layout
        map_size = layer.map_size((46, 70))
        extent = layer.map_size(size if backbone.config.mask_padding else (46, 70))
        values, padding_value = values_of(given)
        for token in ((0, 0), (extent[0] // 2, extent[1] // 2), (extent[0] - 1, extent[1] - 1)):
            found = point_attention(given, map_size, token)
            flat = found.weights.flatten(1)
            assert flat.new_tensor(1).expand(len(flat)).allclose(flat.sum(1) + found.padding)
            assert not found.weights[:, extent[0]:].any() and not found.weights[:, :, extent[1]:].any()
            assert not flat[:, ~found.seen.flatten()].any()
            out = torch.einsum('hk,hkd->hd', flat, values) + found.padding[:, None] * padding_value
            at = token[0] * map_size[1] + token[1]
            rpe = layer.attention.rpe
            if rpe is not None and rpe.gives('values'):
                window, query = divmod(int(layout.rows_back[at]), layout.region.shape[1])
                weights = given.logits(torch.tensor([window])).weights
                if layer.attention.pooled_neighbours:
                    weights = weights[..., :-8]
                out = out + rpe.values(weights, layout.geometry)[0, :, query]
            assert_forward(layer.attention.proj(out.flatten()), expected[0, at], 'attention of a point')
        assert (found.padding > 0).any() <= (not backbone.config.mask_padding)


@pytest.mark.parametrize('halo', [0, 2])
def test_against_dense_attention(halo):
    backbone = tiny(halo=halo, window_size=(3, 4))
    for given in inputs_of(backbone, image(44, 64)):
        size = given.layer.map_size((44, 64))
        seen = visible(size, (3, 4), (1, 2) if given.layer.shifted else (0, 0), (halo, halo))
        q, k, _ = projected(given)
        table = given.layer.attention.rpe.relative_position_bias_table.detach()
        logits = q @ k.transpose(1, 2) + offset_bias(table, size, (3, 4), seen, (halo, halo))
        weights = logits.masked_fill(~seen, float('-inf')).softmax(-1)
        for token in ((1, 2), (4, 7)):
            found = point_attention(given, size, token)
            row = token[0] * size[1] + token[1]
            assert_forward(found.weights.flatten(1), weights[:, row], 'attention of a point against dense')
            assert torch.equal(found.seen.flatten(), seen[row])


def test_pooled_tokens_share_their_weight():
    given = inputs_of(tiny(pooled_neighbours=1), image(64, 96))[0]
    found = point_attention(given, (16, 24), (5, 9))
    assert torch.equal(found.seen.nonzero().amin(0), torch.tensor([0, 4]))
    assert torch.equal(found.seen.nonzero().amax(0), torch.tensor([11, 15]))
    neighbour = found.weights[:, 0:4, 4:8].flatten(1)
    assert (neighbour > 0).all() and (neighbour == neighbour[:, :1]).all()
    assert not (found.weights[:, 4:8, 8:12] == found.weights[:, 4:5, 8:9]).all()


def test_figure_has_a_panel_for_the_image_the_mean_and_each_head():
    backbone = tiny(pooled_neighbours=1)
    layers = layers_of(backbone)
    picture = torch.randint(0, 255, (46, 70, 3), dtype=torch.uint8).numpy()
    heads = pick_heads(layers, [1, 3])
    figure = draw_attention(backbone, image(), picture, (20, 30), layers, heads)
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == ['the image', 'mean of heads', 'head 1'] * 2 + ['the image', 'mean of heads', 'head 1',
                                                                     'head 3'] * 2
    with pytest.raises(InputError, match='--point must lie inside the image, which is 46x70 px'):
        draw_attention(backbone, image(), picture, (46, 0), layers, heads)
