"""Checkpoints in the official layout are recognised and converted, whoever loads them."""
import pytest
import torch
import torch.nn.functional as F
from mmengine.runner import load_checkpoint
from oracles.cases import SMALL, pixels, randomise
from oracles.compare import assert_forward
from oracles.official import official_features, official_state

from swin_rpe_mm import SwinRPE

ARGUMENTS = {name: SMALL[name] for name in ('embed_dims', 'depths', 'num_heads')}
WINDOW, SIDE = 2, 64  # maps of 16, 8, 4 and 2 tokens: whole windows everywhere


@pytest.fixture
def state() -> dict:
    return official_state(**ARGUMENTS, window=WINDOW, map_side=SIDE // 4)


@pytest.fixture
def model() -> SwinRPE:
    return randomise(SwinRPE(**SMALL, window_size=WINDOW), seed=1)


def with_norms(state: dict, prefix: str = '') -> dict:
    """The layout of the official detection code: an output norm per stage, no classifier."""
    result = {name: value for name, value in state.items() if not name.startswith(('head.', 'norm.'))}
    for i in range(4):
        result[f'norm{i}.weight'] = pixels(8 * 2**i, seed=10 + i)
        result[f'norm{i}.bias'] = pixels(8 * 2**i, seed=20 + i)
    return {prefix + name: value for name, value in result.items()}


def check(model: SwinRPE, state: dict) -> None:
    """The model gives the official features under its own output norms."""
    images = pixels(1, 3, SIDE, SIDE, seed=7)
    expected = official_features(state, images[0], ARGUMENTS['depths'], ARGUMENTS['num_heads'], WINDOW)
    for i, (out, features) in enumerate(zip(model(images), expected)):
        norm = getattr(model, f'norm{i}')
        assert_forward(out[0].permute(1, 2, 0), F.layer_norm(features, features.shape[-1:], norm.weight, norm.bias),
                       'official layout')


def test_load_state_dict(model, state):
    missing, _ = model.load_state_dict(state, strict=False)
    assert all(name.startswith('norm') for name in missing)
    check(model, state)


def test_strict_load_of_a_detection_state(model, state):
    model.load_state_dict(with_norms(state), strict=True)
    check(model, state)
    assert torch.equal(model.norm2.weight, pixels(32, seed=12))


def test_loading_does_not_touch_the_given_state(model, state):
    before = {name: value.clone() for name, value in state.items()}
    model.load_state_dict(state, strict=False)
    assert state.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(state[name], value)


@pytest.mark.parametrize('wrap', [lambda state: dict(model=state), lambda state: dict(state_dict=state),
                                  lambda state: state, lambda state: dict(model=state, epoch=299, config='x'),
                                  lambda state: dict(state_dict={f'module.{k}': v for k, v in state.items()}),
                                  lambda state: dict(state_dict={f'backbone.{k}': v for k, v in state.items()})])
def test_file_of_init_cfg(wrap, state, tmp_path):
    path = str(tmp_path / 'official.pth')
    torch.save(wrap(state), path)
    model = SwinRPE(**SMALL, window_size=WINDOW, init_cfg=dict(type='Pretrained', checkpoint=path))
    model.init_weights()
    check(model, state)


def test_file_of_pretrained(state, tmp_path):
    path = str(tmp_path / 'official.pth')
    torch.save(dict(model=state), path)
    model = SwinRPE(**SMALL, window_size=WINDOW, pretrained=path)
    model.init_weights()
    check(model, state)


@pytest.mark.parametrize('wrap', [lambda state: dict(state_dict=state), lambda state: state,
                                  lambda state: dict(model=state)])
def test_load_checkpoint_of_mmengine(wrap, model, state, tmp_path):
    path = str(tmp_path / 'official.pth')
    torch.save(wrap(state), path)
    load_checkpoint(model, path, map_location='cpu')
    check(model, state)


@pytest.mark.parametrize('load', ['torch', 'mmengine'])
def test_inside_another_model(load, model, state, tmp_path):
    whole = torch.nn.Module()
    whole.backbone, whole.head = model, torch.nn.Linear(2, 2)
    full = with_norms(state, 'backbone.') | {f'head.{k}': v for k, v in whole.head.state_dict().items()}
    if load == 'torch':
        whole.load_state_dict(full, strict=True)
    else:
        path = str(tmp_path / 'official.pth')
        torch.save(dict(state_dict=full), path)
        load_checkpoint(whole, path, map_location='cpu', strict=True)
    check(whole.backbone, state)


@pytest.mark.parametrize('window', [1, 3, (4, 2)])
def test_into_another_window(window, state):
    model = SwinRPE(**SMALL, window_size=window)
    model.load_state_dict(with_norms(state), strict=True)
    height, width = (window, window) if isinstance(window, int) else window
    for i in range(4):
        name = 'blocks.0.attn.{}relative_position_bias_table'
        table = state[f'layers.{i}.{name.format("")}']
        expected = F.interpolate(table.T.view(1, -1, 3, 3), size=(2 * height - 1, 2 * width - 1), mode='bicubic')
        actual = model.state_dict()[f'stages.{i}.{name.format("w_msa.rpe.")}']
        assert torch.allclose(actual, expected.flatten(2)[0].T, atol=1e-6)


def test_converting_twice_changes_nothing(model, state):
    model.load_state_dict(state, strict=False)
    again = SwinRPE(**SMALL, window_size=WINDOW)
    again.load_state_dict(model.state_dict(), strict=True)
    check(model, state)
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_deeper_checkpoint_fills_the_shallower_model(state):
    shallow = SwinRPE(**(SMALL | dict(depths=(2, 1, 2, 2))), window_size=WINDOW)
    missing, unexpected = shallow.load_state_dict(state, strict=False)
    assert any('stages.1.blocks.1' in name for name in unexpected)
    assert all(name.startswith('norm') for name in missing)
