"""The tool: from a config file to one on SwinRPE that trains."""
import os
import subprocess

import pytest
from mmengine.config import Config
from tiny import load_tool

from swin_rpe_mm import InputError

BACKBONES = dict(
    detection="""
model.update(
    backbone=dict(_delete_=True, type='ResNet', depth=18, base_channels=8, norm_cfg=dict(type='GN', num_groups=4)),
    neck=dict(in_channels=[8, 16, 32, 64]))
""",
    segmentation="""
model.update(
    backbone=dict(
        _delete_=True, type='ResNet', depth=18, base_channels=8, norm_cfg=dict(type='GN', num_groups=4),
        strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4)))
model['decode_head'].update(in_channels=[8, 16, 32, 64])
model['auxiliary_head'].update(in_channels=32)
""")
SGD = "optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.1))\n"


@pytest.fixture(scope='module')
def swap_tool():
    return load_tool('swap_backbone')


@pytest.fixture
def config(make_config, task) -> str:
    return make_config(task, BACKBONES[task] + SGD)


def test_swapped_config_trains(config, task, swap_tool, train_tool, tmp_path, capsys):
    """It is checked, inherits from its source, and goes through our training tool."""
    out = str(tmp_path / 'swapped' / f'swin_{task}.py')
    swap_tool([config, out, '--arch', 'nano', '--rpe', 'TableRPE', 'RotaryRPE', '--window-size', '4', '--check'])
    said = capsys.readouterr().out
    for words in ('model.backbone: ResNet becomes SwinRPE, arch nano', 'random weights', 'was SGD with lr=0.1',
                  f'written to {out}', 'parameters: ', ' before, ', 'training step: losses ', 'test step: '):
        assert words in said
    cfg = Config.fromfile(out)
    assert [encoding.type for encoding in cfg.model.backbone.rpe] == ['TableRPE', 'RotaryRPE']
    assert cfg.model.backbone.window_size == 4 and open(out).read().startswith("_base_ = '../configs/")
    train_tool([out, '--work-dir', str(tmp_path / 'work')])
    assert (tmp_path / 'work' / 'epoch_2.pth').exists()


def test_options(make_config, swap_tool, tmp_path, capsys):
    config = make_config('segmentation', BACKBONES['segmentation'])
    out = tmp_path / 'out.py'
    swap_tool([config, str(out), '--pretrained', 'none', '--rpe', 'none', '--drop-path', '0.4', '--keep-optimizer',
               '--cfg-options', 'model.decode_head.num_classes=7'])
    cfg = Config.fromfile(out)
    assert cfg.model.backbone.rpe is None and cfg.model.backbone.drop_path_rate == 0.4
    assert cfg.model.decode_head.num_classes == 7 and '_base_' not in out.read_text()
    assert 'optimizer and schedule are kept' in capsys.readouterr().out
    with pytest.raises(InputError, match='out.py exists already; --force overwrites it'):
        swap_tool([config, str(out)])
    swap_tool([config, str(out), '--force', '--flat', '--pretrained', 'mine.pth'])
    assert Config.fromfile(out).model.backbone.init_cfg.checkpoint == 'mine.pth' and '_base_' not in out.read_text()


@pytest.mark.parametrize('name', [
    pytest.param('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', marks=pytest.mark.needs_ops),
    'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'])
def test_name_of_a_shipped_config(name, swap_tool, tmp_path, capsys, monkeypatch):
    """It is found whichever family of packages is there, and nothing is installed for it."""

    def refuse(*args, **kwargs):
        raise AssertionError(f'a program was started: {args}')

    monkeypatch.setattr(subprocess, 'Popen', refuse)
    out = tmp_path / 'out.py'
    swap_tool([name, str(out)])
    assert Config.fromfile(out).model.backbone.type == 'swin_rpe_mm.SwinRPE'
    if not out.read_text().startswith(f'_base_ = {name!r}\n'):
        assert f'{name} cannot be inherited from here: the config is written in full' in capsys.readouterr().out


def test_check_that_fails(make_config, swap_tool, tmp_path):
    """The file stays, and one sentence says at which step."""
    config = make_config('segmentation', BACKBONES['segmentation'] + "model['decode_head'].update(dropout_ratio=2)\n")
    with pytest.raises(InputError, match='the config is written, but building the model failed: .*dropout'):
        swap_tool([config, str(tmp_path / 'out.py'), '--arch', 'nano', '--check'])
    assert (tmp_path / 'out.py').exists()


@pytest.mark.parametrize(('args', 'words'), [
    (('CONFIG', 'out.json'), 'OUT must be the name of a config, which ends in .py, got out.json'),
    (('nowhere.py', 'out.py'), 'config file nowhere.py does not exist'),
    (('mmseg::no/such.py', 'out.py'), 'no/such.py does not exist'),
    (('no_such::a/b.py', 'out.py'), 'no_such::a/b.py cannot be read: no package no_such is installed')])
def test_bad_input(args, words, swap_tool):
    with pytest.raises(InputError, match=words):
        swap_tool(args)


def test_refusal_from_any_folder(make_config, command, tmp_path):
    """One sentence, no traceback, and nothing is written."""
    config = make_config('segmentation', BACKBONES['segmentation'].replace("'ResNet'", "'UNet'"))
    done = command('swap_backbone.py', config, 'out.py')
    assert done.returncode == 2 and 'Traceback' not in done.stderr
    assert 'error: the backbone UNet cannot be swapped: it is encoder and decoder in one' in done.stderr
    assert os.listdir(tmp_path / 'elsewhere') == []
