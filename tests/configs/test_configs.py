"""Every config: it names no dead host, builds, spares biases from weight decay, and trains and tests one step."""
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_data import make_all
from mmengine.config import Config, ConfigDict
from mmengine.hooks import Hook
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from torch import nn

from swin_rpe_mm.mm.configs import task_of

CONFIGS = Path(__file__).parents[2] / 'configs'
FILES = sorted(path for path in CONFIGS.glob('*/*.py') if path.parent.name != '_base_')
IDS = [str(path.relative_to(CONFIGS)) for path in FILES]

every_config = pytest.mark.parametrize('path', FILES, ids=IDS)
every_model = pytest.mark.parametrize('path', [
    pytest.param(path, marks=pytest.mark.needs_ops) if task_of(Config.fromfile(path)) == 'detection' else path
    for path in FILES], ids=IDS)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """A folder with the fakes of all data sets below data/."""
    root = tmp_path_factory.mktemp('start')
    make_all(root)
    return root


def walk(node):
    """Every dict in a config, however deep."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from walk(value)


def scaled(value, factor):
    """Numbers, pairs and lists of pairs times a factor, at least 1."""
    if isinstance(value, list | tuple):
        return type(value)(scaled(v, factor) for v in value)
    return max(1, round(value * factor))


def small(cfg: Config, factor: float) -> Config:
    """Smaller images, fewer proposals, no worker processes, no download, no checkpoint files; all else stays."""
    for node in walk(cfg._cfg_dict):
        if node.get('type') in ('Resize', 'RandomResize', 'RandomChoiceResize', 'RandomCrop'):
            node.update({k: scaled(node[k], factor) for k in ('scale', 'scales', 'crop_size') if node.get(k)})
        if node.get('init_cfg', {}) and node['init_cfg'].get('type') == 'Pretrained':
            node['init_cfg'] = None
    if cfg.model.data_preprocessor.get('size'):
        cfg.model.data_preprocessor.size = scaled(cfg.model.data_preprocessor.size, factor)
    for name in ('train', 'val', 'test'):
        cfg[f'{name}_dataloader'].update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.batch_size = 2
    if 'rcnn' in cfg.model.get('test_cfg', {}):
        # an untrained model's scores are all low, and without a box left no AP is computed
        cfg.model.test_cfg.rcnn.update(score_thr=0., max_per_img=10)
        cfg.model.test_cfg.rpn.max_per_img = 50
        cfg.model.train_cfg.rcnn.sampler.num = 64
    cfg.default_hooks.checkpoint = None
    if cfg.train_cfg.type == 'EpochBasedTrainLoop':
        cfg.train_cfg.max_epochs = cfg.train_cfg.val_interval = 1
    else:
        cfg.train_cfg.max_iters = cfg.train_cfg.val_interval = 1
    return cfg


def build_model(cfg: Config) -> nn.Module:
    init_default_scope(cfg.default_scope)
    return MODELS.build(small(cfg, 1).model)


def test_the_configs_are_found():
    assert {path.parent.name for path in FILES} >= {'coco', 'ade20k', 'bccd', 'nuclei', 'camvid', 'demo'}


@every_config
def test_config_is_self_contained(path):
    """It imports this package, uses its backbone and preprocessor, and points to no host but GitHub."""
    cfg = Config.fromfile(path)
    assert cfg.custom_imports == dict(imports=['swin_rpe_mm'], allow_failed_imports=False)
    assert cfg.model.backbone.type == 'swin_rpe_mm.SwinRPE'
    assert cfg.model.data_preprocessor.type.startswith('swin_rpe_mm.')
    hosts = set(re.findall(r'([a-z0-9-]+)://([\w.-]+)', str(cfg.to_dict())))
    assert hosts <= {('https', 'github.com')}


@every_model
def test_biases_and_norms_do_not_decay(path):
    cfg = Config.fromfile(path)
    model = build_model(cfg)
    wrapper = build_optim_wrapper(model, ConfigDict(cfg.optim_wrapper, type='OptimWrapper'))  # AMP needs CUDA
    decay = {id(p): group['weight_decay'] for group in wrapper.optimizer.param_groups for p in group['params']}
    assert len(decay) == len([p for p in model.parameters() if p.requires_grad])

    tables = [p for name, p in model.named_parameters() if name.endswith('relative_position_bias_table')]
    assert len(tables) == sum(len(stage.blocks) for stage in model.backbone.stages)
    norms = [p for m in model.backbone.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]
    assert norms
    assert {decay[id(p)] for p in tables + norms} == {0.}

    linear = [m.weight for m in model.backbone.modules() if isinstance(m, nn.Linear)]
    assert {decay[id(p)] for p in linear} == {cfg.optim_wrapper.optimizer.weight_decay}


class Losses(Hook):
    """Keeps what the last training step gave."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.values = [value.item() for value in outputs.values()]


METRICS = {'CocoMetric': ('coco/{}_mAP', 1), 'IoUMetric': ('mIoU', 100)}


@every_model
def test_one_training_step_and_one_test_step(path, data, tmp_path, monkeypatch):
    """Through the config's own pipelines, samplers, optimizer, schedule and metrics, on the real sets' layout."""
    cfg = small(Config.fromfile(path), factor=1 / 8 if path.parent.name in ('coco', 'ade20k') else 1)
    if cfg.optim_wrapper.type == 'AmpOptimWrapper' and not torch.cuda.is_available():
        pytest.skip('needs CUDA: AmpOptimWrapper does not run on a CPU')
    monkeypatch.chdir(data)
    monkeypatch.setattr(Config, 'pretty_text', "formatting the log's copy of the config takes longer than the step")
    cfg.work_dir = str(tmp_path)
    cfg.experiment_name = path.stem + tmp_path.name
    runner = Runner.from_cfg(cfg)
    losses = Losses()
    runner.register_hook(losses)

    runner.train()

    assert runner.iter == 1
    assert np.isfinite(losses.values).all()
    # drop path may take a block out of both images, which leaves it without gradient: look at those it never drops
    blocks = [block for stage in runner.model.backbone.stages for block in stage.blocks
              if isinstance(block.drop_path, nn.Identity)]
    tables = [p for block in blocks for name, p in block.named_parameters() if 'relative_position_bias_table' in name]
    assert len(tables) == len(blocks) > 0
    for table in tables:
        assert runner.optim_wrapper.optimizer.state[table]['exp_avg'].abs().sum() > 0

    results = runner.test()
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, list) else [cfg.test_evaluator]
    for evaluator in evaluators:
        key, highest = METRICS[evaluator.type]
        kinds = evaluator.get('metric', 'bbox')
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            assert 0 <= results[key.format(kind)] <= highest
