"""Which layers and heads are drawn."""
import pytest
import torch
from oracles.compare import assert_forward
from watched import image, inputs_of, projected, tiny

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.models import Swin
from swin_rpe_mm.visualization.attention_distance import draw_distance
from swin_rpe_mm.visualization.attention_maps import draw_attention
from swin_rpe_mm.visualization.bias_maps import draw_bias
from swin_rpe_mm.visualization.layers import layers_of, pick_heads, pick_layers
from swin_rpe_mm.visualization.window_grid import draw_windows


def names(layers) -> list[str]:
    return [layer.name for layer in layers]


def test_all_layers_with_their_strides():
    layers = layers_of(tiny(depths=(1, 3), patch_size=(4, 2), strides=((4, 2), 2), window_size=[4, (2, 6)]))
    assert names(layers) == ['0.0', '1.0', '1.1', '1.2']
    assert [layer.stride for layer in layers] == [(4, 2), *[(8, 4)] * 3]
    assert [layer.shifted for layer in layers] == [False, False, True, False]
    assert [layer.windows.window_size for layer in layers] == [(4, 4), *[(2, 6)] * 3]
    assert layers[2].title == 'layer 1.1: shifted 2×6'


def test_pick():
    layers = layers_of(tiny(depths=(1, 3)))
    assert names(pick_layers(layers, None)) == ['0.0', '1.1', '1.2']
    assert names(pick_layers(layers, ['all'])) == names(layers)
    assert names(pick_layers(layers, ['1'])) == ['1.0', '1.1', '1.2']
    assert names(pick_layers(layers, ['1.2', '0.0'])) == ['0.0', '1.2']
    with pytest.raises(InputError, match=r'--layers must name layers as STAGE.BLOCK out of 0.0, 1.0, 1.1, 1.2, .* 2.0'):
        pick_layers(layers, ['2.0'])
    assert pick_heads(layers, None)['1.0'] == [0, 1, 2, 3]
    assert pick_heads(layers, [3, 1]) == {'0.0': [1], '1.0': [3, 1], '1.1': [3, 1], '1.2': [3, 1]}
    with pytest.raises(InputError, match='--heads must be from 0 to 3, since these layers have 4 heads, got 4'):
        pick_heads(layers, [4])


def test_parts_are_the_whole(monkeypatch):
    given = inputs_of(tiny(halo=1), image(), (46, 40))[0]
    windows = (given.layout.region >= 0).any(1).nonzero().flatten()
    assert 0 < len(windows) < len(given.layout.region)
    whole = given.logits(windows)
    monkeypatch.setattr('swin_rpe_mm.visualization.layers._PAIRS_AT_ONCE', 2 * 2 * 16 * 36)
    parts = list(given.parts())
    assert len(parts) == -(-len(windows) // 2)
    assert torch.equal(torch.cat([part for part, _ in parts]), windows)
    assert torch.allclose(torch.cat([logits.weights for _, logits in parts]), whole.weights)


@pytest.mark.parametrize('windows', ['ShiftedWindows', 'PaddedWindows', 'GlobalWindows'])
def test_every_kind_of_windows(windows):
    """The logits of all windows, with the values, make what the attention gives; and all pictures can be drawn."""
    backbone = tiny(windows=dict(type=windows), rpe=dict(type='LogCPB'))
    outs = []
    layers = layers_of(backbone)
    for layer in layers:
        layer.attention.proj = torch.nn.Identity()
        layer.attention.proj.register_forward_hook(lambda module, args, out: outs.append(out.detach()))
    for given, out in zip(inputs_of(backbone, image()), outs):
        *_, values = projected(given)
        heads, tokens, channels = values.shape
        found = torch.full((tokens, heads * channels), float('nan'), dtype=values.dtype)
        slots = given.layout.rows.view_as(given.layout.region)
        for part, logits in given.parts():
            for window, weights in zip(part.tolist(), logits.weights):
                held = slots[window] < tokens
                own = values[:, slots[window][held]]
                found[slots[window][held]] = (weights[:, held][..., held] @ own).transpose(0, 1).flatten(1)
        assert_forward(found, out[0], 'weights times values')
    kinds = ['global'] * 2 if windows == 'GlobalWindows' else ['regular', 'shifted']
    assert [layer.kind for layer in layers] == kinds * 2
    picture, heads = torch.zeros(46, 70, 3, dtype=torch.uint8).numpy(), pick_heads(layers, None)
    assert len(draw_windows(backbone, image(), picture).axes) == (2 if windows == 'GlobalWindows' else 4)
    draw_attention(backbone, image(), picture, (20, 30), layers, heads)
    draw_bias(backbone, image(), layers, heads)
    draw_distance(backbone, image(), layers)


def test_the_plain_model_too():
    backbone = tiny(halo=1)
    plain = Swin(backbone.config).double().eval()
    plain.load_state_dict(backbone.state_dict())
    for ours, theirs in zip(inputs_of(backbone, image(), (39, 50)), inputs_of(plain, image(), (39, 50))):
        window = torch.tensor([1])
        assert_forward(ours.logits(window).weights, theirs.logits(window).weights, 'attention of the plain model')
