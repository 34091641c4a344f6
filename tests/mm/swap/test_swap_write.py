"""The file: the differences to what it inherits from, or all, and always the same config when it is read."""
from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from shipped import shipped, shipped_path

from swin_rpe_mm import InputError, swap_backbone
from swin_rpe_mm.mm.swap import Swap, write_config

PSPNET = 'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1, 1) | st.text('ab\'"\n', max_size=4)
KEYS = st.sampled_from(['type', 'a', 'b', 'in', 'x.y', 'long_' * 12])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=2).map(tuple)
    | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
CONFIGS = st.dictionaries(st.sampled_from(['model', 'optim_wrapper', 'a', 'b']), VALUES, max_size=4)


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@settings(max_examples=60, deadline=None)
@given(old=CONFIGS, new=CONFIGS)
def test_any_two_configs(tmp_path_factory, old, new):
    """mmengine merges what is written into the source, and the new config comes out; what a merge cannot take away,
    settings of the top level, the swap never takes away."""
    folder = tmp_path_factory.mktemp('swap')
    new = {**{key: old[key] for key in old if key not in new}, **new}
    for flat in (False, True):
        write_config(Swap(Config(new), Config(old)), folder / f'source_{flat}.py', flat=True)
        source = Config.fromfile(folder / f'source_{flat}.py')
        assert source.to_dict() == new
    (folder / 'base').mkdir()
    write_config(Swap(Config(old), Config(old)), folder / 'base' / 'source.py', flat=True)
    source = Config.fromfile(folder / 'base' / 'source.py')
    assert write_config(Swap(Config(new), source), folder / 'out.py') == []
    assert Config.fromfile(folder / 'out.py').to_dict() == new
    assert (folder / 'out.py').read_text().startswith("_base_ = 'base/source.py'\n")
    assert sorted(os.listdir(folder)) == ['base', 'out.py', 'source_False.py', 'source_True.py']


@pytest.fixture
def source(tmp_path) -> Config:
    """A user's own file, which inherits from nothing."""
    path = tmp_path / 'mine' / 'pspnet.py'
    path.parent.mkdir()
    write_config(Swap(shipped('mmseg', PSPNET), Config(dict())), path, flat=True)
    return Config.fromfile(path)


@pytest.mark.parametrize('folder', ['.', 'mine', 'new/deeper'])
def test_relative_base(source, tmp_path, folder, monkeypatch):
    """It is found from any folder, however the paths were given."""
    monkeypatch.chdir(tmp_path)
    source = Config.fromfile('mine/pspnet.py')
    swap = swap_backbone(source)
    out = Path(folder, 'swin_pspnet.py')
    assert write_config(swap, out) == []
    text = out.read_text()
    assert text.splitlines()[0] == f"_base_ = '{os.path.relpath('mine/pspnet.py', folder)}'"
    monkeypatch.chdir('/')
    assert Config.fromfile(tmp_path / out).to_dict() == swap.cfg.to_dict()


def test_text_is_short_and_fits(source, tmp_path):
    write_config(swap_backbone(source), tmp_path / 'out.py')
    text = (tmp_path / 'out.py').read_text()
    address = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'
    assert text.replace(address, 'ADDRESS') == """\
_base_ = 'mine/pspnet.py'
custom_imports = dict(imports=['swin_rpe_mm'], allow_failed_imports=False)
model = dict(
    data_preprocessor=dict(type='swin_rpe_mm.SegDataPreprocessor'),
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='swin_rpe_mm.SwinRPE',
        arch='tiny',
        drop_path_rate=0.3,
        out_indices=(2, 3),
        init_cfg=dict(
            type='Pretrained',
            checkpoint='ADDRESS')),
    decode_head=dict(in_channels=768, in_index=1),
    auxiliary_head=dict(in_channels=384, in_index=0))
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=6e-05, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        custom_keys={
            'absolute_pos_embed': dict(decay_mult=0.0),
            'window_pos_embed': dict(decay_mult=0.0),
            'relative_position_bias_table': dict(decay_mult=0.0),
            '.rpe.': dict(decay_mult=0.0),
            'logit_scale': dict(decay_mult=0.0),
            'norm': dict(decay_mult=0.0)}))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-06, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0.0, power=1.0, begin=1500, end=40000, by_epoch=False)]
"""


def test_base_of_a_package_that_is_not_found_under_its_name(tmp_path, monkeypatch):
    """The forks of mmsegmentation are installed under another name than mmengine looks for."""
    swap = swap_backbone(shipped_path('mmseg', PSPNET))
    read = Config.fromfile

    def fromfile(path, *args, **kwargs):
        if Path(path).read_text().startswith("_base_ = 'mmseg::"):
            raise ModuleNotFoundError('mmsegmentation is not installed')
        return read(path, *args, **kwargs)

    monkeypatch.setattr(Config, 'fromfile', fromfile)
    notes = write_config(swap, tmp_path / 'out.py')
    assert notes == [f'mmseg::{PSPNET} cannot be inherited from here: the config is written in full']
    assert read(tmp_path / 'out.py').to_dict() == swap.cfg.to_dict()


def test_flat(source, tmp_path):
    swap = swap_backbone(source)
    assert write_config(swap, tmp_path / 'out.py', flat=True) == []
    assert '_base_' not in (tmp_path / 'out.py').read_text()
    assert Config.fromfile(tmp_path / 'out.py').to_dict() == swap.cfg.to_dict()


def test_what_has_no_text(tmp_path):
    swap = Swap(Config(dict(a=object())), Config(dict()))
    with pytest.raises(InputError, match='out.py cannot be written: the config holds values that have no text'):
        write_config(swap, tmp_path / 'out.py', flat=True)
    assert os.listdir(tmp_path) == []


def test_folder_that_cannot_be_made(source, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(InputError, match='out.py cannot be written: '):
        write_config(swap_backbone(source), tmp_path / 'file' / 'out.py')


LAZY = """
from mmengine.config import read_base
from mmengine.dataset import pseudo_collate
from mmseg.models import EncoderDecoder, FCNHead, ResNet, SegDataPreProcessor
from torch.optim import SGD

default_scope = 'mmseg'
model = dict(
    type=EncoderDecoder,
    data_preprocessor=dict(type=SegDataPreProcessor, size=(64, 64)),
    backbone=dict(type=ResNet, depth=18),
    decode_head=dict(type=FCNHead, in_channels=512, channels=16, num_classes=3))
train_dataloader = dict(collate_fn=dict(type=pseudo_collate))
optim_wrapper = dict(optimizer=dict(type=SGD, lr=0.1))
"""


def test_config_in_pythons_own_syntax(tmp_path):
    """mmengine lets no text config inherit from it: it is written in full, with names in place of classes."""
    (tmp_path / 'lazy.py').write_text(LAZY)
    swap = swap_backbone(tmp_path / 'lazy.py', arch='nano')
    assert write_config(swap, tmp_path / 'out.py') == [
        'lazy.py cannot be inherited from here: the config is written in full']
    cfg = Config.fromfile(tmp_path / 'out.py')
    assert cfg.model.data_preprocessor.type == 'swin_rpe_mm.SegDataPreprocessor'
    assert cfg.model.decode_head.in_channels == 256 and cfg.optim_wrapper.optimizer.type == 'AdamW'
    assert cfg.train_dataloader.collate_fn.type.endswith('.pseudo_collate')
    with DefaultScope.overwrite_default_scope('mmseg'):
        assert type(MODELS.build(cfg.model)).__name__ == 'EncoderDecoder'


@pytest.mark.needs_ops
def test_scopes(tmp_path):
    """Inheritance notes the package of every type; what is said by default_scope already is left out."""
    (tmp_path / 'mine.py').write_text(
        "_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'\nvisualizer = dict(_scope_='mmseg')\n")
    swap = swap_backbone(tmp_path / 'mine.py')
    assert write_config(swap, tmp_path / 'out.py') == []
    assert '_scope_' not in (tmp_path / 'out.py').read_text()
    assert write_config(swap, tmp_path / 'flat.py', flat=True) == []
    cfg = Config.fromfile(tmp_path / 'flat.py')
    assert cfg.visualizer['_scope_'] == 'mmseg' and (tmp_path / 'flat.py').read_text().count('_scope_') == 1
