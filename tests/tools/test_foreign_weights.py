"""Checkpoints of other projects on the command line: to start from, to go on with, to evaluate."""
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from oracles.official import official_state
from tiny import draw_data, load_tool, write_config

from swin_rpe_mm.checkpoints import read_checkpoint, to_mm_names

SMALL = """
model['backbone'] = dict(_delete_=True, type='{}', embed_dims=8, depths=[1, 2, 1, 1], num_heads=[1, 2, 2, 4],
                         window_size=4, drop_path_rate=0.{})
model['decode_head']['in_channels'], model['auxiliary_head']['in_channels'] = [8, 16, 32, 64], 32
"""
THEIRS, OURS = SMALL.format('SwinTransformer', ''), SMALL.format('swin_rpe_mm.SwinRPE', ', mask_padding=False')


@pytest.fixture(scope='module')
def trained(tmp_path_factory) -> SimpleNamespace:
    """Two epochs of a segmentor with mmseg's own backbone."""
    root = tmp_path_factory.mktemp('theirs')
    data = draw_data(root / 'data')
    config = str(write_config(root / 'theirs.py', 'segmentation', data, THEIRS))
    load_tool('train')([config, '--work-dir', str(root / 'work')])
    return SimpleNamespace(config=config, data=data, first=root / 'work/epoch_1.pth', last=root / 'work/epoch_2.pth')


@pytest.fixture
def ours(trained, tmp_path) -> str:
    """The same config with our backbone."""
    return str(write_config(tmp_path / 'ours.py', 'segmentation', trained.data, OURS))


def official(state: dict) -> dict:
    """A segmentor's state dict with its backbone as microsoft's code names and orders it."""
    result = {}
    for name, value in state.items():
        if '.downsample.' in name:  # by channel, then token, to by token; tokens go down the columns
            by_channel = value.view(*value.shape[:-1], -1, 4)
            value = torch.cat([by_channel[..., token] for token in (0, 2, 1, 3)], -1)
        for mm, theirs in [('patch_embed.projection', 'patch_embed.proj'), ('.stages.', '.layers.'),
                           ('.attn.w_msa.', '.attn.'), ('.ffn.layers.0.0.', '.mlp.fc1.'),
                           ('.ffn.layers.1.', '.mlp.fc2.')]:
            name = name.replace(mm, theirs) if name.startswith('backbone.') else name
        result[name] = value
    return result


WRAPPERS = {
    'mmseg': lambda checkpoint: checkpoint,
    'official': lambda checkpoint: dict(state_dict=official(checkpoint['state_dict']), meta=checkpoint['meta']),
    'official, of another script': lambda checkpoint: dict(
        model={f'module.{name}': value for name, value in official(checkpoint['state_dict']).items()}),
}


@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_evaluate(wrapper: str, trained: SimpleNamespace, ours: str, test_tool: Callable, tmp_path: Path):
    """``tools/test.py`` gives the metrics of their model, whatever the layout of the file."""
    expected = test_tool([trained.config, str(trained.last), '--work-dir', str(tmp_path / 'theirs')])
    torch.save(WRAPPERS[wrapper](read_checkpoint(trained.last)), tmp_path / 'a.pth')
    assert test_tool([ours, str(tmp_path / 'a.pth'), '--work-dir', str(tmp_path / 'ours')]) == expected
    assert expected['mIoU'] > 0


def test_resume(trained: SimpleNamespace, ours: str, train_tool: Callable, tmp_path: Path):
    """A training that their backbone began ends with ours as it would have ended, optimizer and all."""
    train_tool([ours, '--work-dir', str(tmp_path / 'work'), '--resume', str(trained.first)])
    actual, expected = (read_checkpoint(path)['state_dict'] for path in (tmp_path / 'work/epoch_2.pth', trained.last))
    actual, first = to_mm_names(actual, actual._metadata), read_checkpoint(trained.first)['state_dict']
    for name, value in actual.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5)
    assert any((first[name] - value).abs().max() > 1e-4 for name, value in actual.items())


def test_start_from_a_backbone(ours: str, train_tool: Callable, tmp_path: Path):
    """``load_from`` takes a classifier of the official code into the backbone."""
    state = official_state(8, [1, 2, 1, 1], [1, 2, 2, 4], window=4, map_side=32)
    torch.save(dict(model=state, epoch=299), tmp_path / 'classifier.pth')
    train_tool([ours, '--work-dir', str(tmp_path / 'work'), '--cfg-options', f'load_from={tmp_path}/classifier.pth',
                'optim_wrapper.optimizer.lr=0.', 'train_cfg.max_epochs=1'])
    saved = read_checkpoint(tmp_path / 'work/epoch_1.pth')['state_dict']
    named = to_mm_names(saved, saved._metadata)
    expected = official({name: value for name, value in named.items() if name.startswith('backbone.')})
    for name, value in state.items():
        if name.startswith(('patch_embed.', 'layers.')) and not name.endswith(('index', 'attn_mask')):
            assert torch.equal(expected[f'backbone.{name}'], value), name
    assert torch.equal(expected['backbone.norm3.weight'], state['norm.weight'])
