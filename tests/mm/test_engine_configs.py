"""Fitting a config to a run."""
from pathlib import Path

import pytest
from mmengine.config import Config

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm import configs


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(configs, 'get_device', lambda: 'cpu')


def config(path: Path, **content) -> Config:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(f'{key} = {value!r}' for key, value in content.items()))
    return configs.load_config(str(path))


def loader(**dataset) -> dict:
    return dict(dataset=dict(type='ConcatDataset', datasets=[dict(type='RepeatDataset', dataset=dataset)]))


def test_bad_config_files(tmp_path):
    with pytest.raises(InputError, match='config file .*a.py does not exist'):
        configs.load_config(str(tmp_path / 'a.py'))
    with pytest.raises(InputError, match='config file .*b.py cannot be read: .*absent.py'):
        config(tmp_path / 'b.py', _base_='absent.py')
    (tmp_path / 'c.py').write_text('model = dict(')
    with pytest.raises(InputError, match='config file .*c.py cannot be read'):
        configs.load_config(str(tmp_path / 'c.py'))


def test_lacking_settings(tmp_path):
    with pytest.raises(InputError, match='config file .*a.py lacks train_cfg, optim_wrapper'):
        configs.require(config(tmp_path / 'a.py', model={}, train_cfg=None), 'model', 'train_cfg', 'optim_wrapper')


def test_types_are_names_or_classes():
    assert configs.type_name(dict(type='mmengine.CheckpointHook')) == 'CheckpointHook'
    assert configs.type_name(dict(type=Config)) == 'Config'
    assert configs.type_name({}) == ''


def test_detectors_alone_need_operators(tmp_path, monkeypatch):
    detector, segmentor = (config(tmp_path / f'{scope}.py', default_scope=scope) for scope in ('mmdet', 'mmseg'))
    monkeypatch.setattr(configs, 'has_ops', lambda: False)
    configs.check_ops(segmentor)
    with pytest.raises(InputError) as error:
        configs.check_ops(detector)
    assert str(error.value) == (
        "detectors need mmcv's compiled operators, which are missing here: install a C++ compiler and run make setup, "
        'or install mmcv with its operators')
    monkeypatch.setattr(configs, 'has_ops', lambda: True)
    configs.check_ops(detector)


def test_work_dir(tmp_path):
    cfg = config(tmp_path / 'my_model.py')
    configs.set_work_dir(cfg, None)
    assert Path(cfg.work_dir) == Path('work_dirs/my_model')
    configs.set_work_dir(cfg, 'mine')
    assert cfg.work_dir == 'mine'
    cfg = config(tmp_path / 'my_model.py', work_dir='own')
    configs.set_work_dir(cfg, None)
    assert cfg.work_dir == 'own'


def test_data_are_found_above_the_config(tmp_path, monkeypatch):
    (tmp_path / 'repo/data/set').mkdir(parents=True)
    (tmp_path / 'repo/data/set/val.json').touch()
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path / 'elsewhere')
    cfg = config(
        tmp_path / 'repo/configs/demo/a.py',
        train_dataloader=loader(type='X', data_root='data/set', ann_file='val.json', data_prefix=dict(img='img')),
        val_dataloader=loader(type='X', ann_file='data/set/val.json', data_prefix=dict(img='data/set')),
        val_evaluator=[dict(type='Y', ann_file='data/set/val.json')])
    notes = configs.find_data(cfg)
    root = str(tmp_path / 'repo/data/set')
    train, val = (next(configs.leaf_datasets(cfg[f'{split}_dataloader'].dataset)) for split in ('train', 'val'))
    assert (train.data_root, train.ann_file, train.data_prefix.img) == (root, 'val.json', 'img')
    assert (val.ann_file, val.data_prefix.img) == (f'{root}/val.json', root)
    assert cfg.val_evaluator[0].ann_file == f'{root}/val.json'
    assert len(notes) == 2


def test_data_of_the_current_folder_come_first(tmp_path, monkeypatch):
    for folder in ('repo', 'elsewhere'):
        (tmp_path / folder / 'data').mkdir(parents=True)
    monkeypatch.chdir(tmp_path / 'elsewhere')
    cfg = config(tmp_path / 'repo/a.py', train_dataloader=loader(type='X', data_root='data'))
    assert configs.find_data(cfg) == []
    assert next(configs.leaf_datasets(cfg.train_dataloader.dataset)).data_root == 'data'


def test_sync_bn_needs_other_processes(tmp_path):
    heads = [dict(type='Head', norm_cfg=dict(type='SyncBN', requires_grad=True)), dict(norm_cfg=dict(type='GN'))]
    cfg = config(tmp_path / 'a.py', model=dict(heads=heads), launcher='none')
    assert len(configs.without_sync_bn(cfg)) == 1
    assert [head.norm_cfg.type for head in cfg.model.heads] == ['BN', 'GN']


def test_sync_bn_needs_gpus(tmp_path, no_gpu, monkeypatch):
    cfg = config(tmp_path / 'a.py', model=dict(norm_cfg=dict(type='SyncBN')), launcher='pytorch')
    configs.without_sync_bn(cfg)
    assert cfg.model.norm_cfg.type == 'BN'
    monkeypatch.setattr(configs, 'get_device', lambda: 'cuda')
    cfg = config(tmp_path / 'a.py', model=dict(norm_cfg=dict(type='SyncBN')), launcher='pytorch')
    configs.without_sync_bn(cfg)
    assert cfg.model.norm_cfg.type == 'SyncBN'


def test_amp(tmp_path, monkeypatch):
    monkeypatch.setattr(configs, 'get_device', lambda: 'cuda')
    cfg = config(tmp_path / 'a.py', optim_wrapper=dict(type='OptimWrapper'))
    configs.use_amp(cfg, wanted=True)
    assert cfg.optim_wrapper == dict(type='AmpOptimWrapper', loss_scale='dynamic')
    monkeypatch.setattr(configs, 'get_device', lambda: 'cpu')
    with pytest.raises(InputError, match='needs a GPU'):
        configs.use_amp(cfg, wanted=False)
    cfg = config(tmp_path / 'b.py', optim_wrapper=dict(type='ApexOptimWrapper'))
    with pytest.raises(InputError, match='the config has ApexOptimWrapper'):
        configs.use_amp(cfg, wanted=True)


def test_auto_scale_lr(tmp_path):
    cfg = config(tmp_path / 'a.py', auto_scale_lr=dict(base_batch_size=16, enable=False))
    configs.scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    with pytest.raises(InputError, match='base_batch_size'):
        configs.scale_lr(config(tmp_path / 'b.py'))


def test_nothing_to_resume_keeps_the_pretrained_weights(tmp_path):
    cfg = config(tmp_path / 'a.py', work_dir=str(tmp_path), load_from='pretrained.pth')
    configs.set_resume(cfg, 'auto')
    assert (cfg.resume, cfg.load_from) == (False, 'pretrained.pth')


def test_tensorboard_once(tmp_path, monkeypatch):
    monkeypatch.setattr(configs, 'find_spec', lambda name: True)
    cfg = config(tmp_path / 'a.py', visualizer=dict(type='V', vis_backends=[dict(type='LocalVisBackend')]))
    configs.add_tensorboard(cfg)
    configs.add_tensorboard(cfg)
    assert [backend.type for backend in cfg.visualizer.vis_backends] == ['LocalVisBackend', 'TensorboardVisBackend']
    monkeypatch.setattr(configs, 'find_spec', lambda name: None)
    cfg = config(tmp_path / 'b.py')
    assert configs.add_tensorboard(cfg) == []
    assert 'visualizer' not in cfg


@pytest.mark.parametrize(('hook', 'kind'), [
    (dict(type='CheckpointHook', interval=7), 'swin_rpe_mm.WholeCheckpointHook'),
    (dict(type='CheckpointHook', out_dir='s3://bucket'), 'CheckpointHook'),
    (dict(type='CheckpointHook', backend_args=dict(backend='local')), 'CheckpointHook'),
    (dict(type='MyHook'), 'MyHook'),
])
def test_whole_checkpoints(tmp_path, hook, kind):
    cfg = config(tmp_path / 'a.py', default_hooks=dict(checkpoint=hook))
    configs.save_whole_checkpoints(cfg)
    assert cfg.default_hooks.checkpoint == dict(hook, type=kind)
