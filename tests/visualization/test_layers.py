"""Which layers and heads are drawn."""
import pytest
import torch
from watched import image, inputs_of, tiny

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.visualization.layers import layers_of, pick_heads, pick_layers


def names(layers) -> list[str]:
    return [layer.name for layer in layers]


def test_all_layers_with_their_strides():
    layers = layers_of(tiny(depths=(1, 3), patch_size=(4, 2), strides=((4, 2), 2), window_size=[4, (2, 6)]))
    assert names(layers) == ['0.0', '1.0', '1.1', '1.2']
    assert [layer.stride for layer in layers] == [(4, 2), *[(8, 4)] * 3]
    assert [layer.shifted for layer in layers] == [False, False, True, False]
    assert [layer.window for layer in layers] == [(4, 4), *[(2, 6)] * 3]
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
    given = inputs_of(tiny(halo=1), image())[0]
    whole = given.logits(torch.arange(len(given.layout.slots)))
    monkeypatch.setattr('swin_rpe_mm.visualization.layers._PAIRS_AT_ONCE', 2 * 2 * 16 * 36)
    parts = list(given.parts())
    assert len(parts) == -(-len(given.layout.slots) // 2)
    assert torch.equal(torch.cat([windows for windows, _ in parts]), torch.arange(len(given.layout.slots)))
    assert torch.allclose(torch.cat([logits.weights for _, logits in parts]), whole.weights)
