"""The monitor of position encodings in trainings of a few iterations."""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS, init_default_scope
from mmengine.runner import Runner
from mmengine.visualization import Visualizer
from torch.utils.data import Dataset

from swin_rpe_mm import RPEMonitorHook, SwinRPE
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.hooks import rpe_monitor
from swin_rpe_mm.models import BlockLocalAttention, WindowAttention
from swin_rpe_mm.visualization.statistics import logit_statistics
from swin_rpe_mm.visualization.window_logits import spread_windows, window_logits

LAYERS = [f'stages.{i}.blocks.{j}' for i in range(2) for j in range(2)]


class Images(Dataset):
    """Eight images of noise."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.randn(3, 40, 52, generator=torch.Generator().manual_seed(index)))


class Model(BaseModel):
    """A backbone with random drop path, with a loss of no use."""

    def __init__(self, **backbone):
        super().__init__()
        sizes = dict(arch='nano', depths=(2, 2), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1), window_size=4,
                     drop_path_rate=0.3)
        self.backbone = SwinRPE(**{**sizes, **backbone})

    def forward(self, inputs, mode: str):
        return dict(loss=sum(features.sin().mean() for features in self.backbone(torch.stack(list(inputs)))))


class LossScale(OptimWrapper):
    """Mixed precision's handling of the loss, on a CPU."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scaler = torch.amp.GradScaler('cpu', init_scale=1024.)

    def backward(self, loss: torch.Tensor, **kwargs) -> None:
        self.scaler.scale(loss).backward(**kwargs)
        self._inner_count += 1

    def step(self, **kwargs) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Losses(Hook):
    """Notes the losses."""

    def __init__(self):
        self.found = []

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.found.append(outputs['loss'].item())


class Change(Hook):
    """Changes the model when its weights are drawn."""

    def __init__(self, change: Callable):
        self.change = change

    def before_train(self, runner) -> None:
        self.change(runner.model)


@pytest.fixture
def train(tmp_path) -> Callable:
    """``train(*hooks, iterations=..., optim=..., change=..., **backbone)`` trains and returns the runner."""
    count = iter(range(99))

    def run(*hooks: Hook, iterations: int = 4, optim: dict | None = None, change: Callable | None = None,
            **backbone) -> Runner:
        number = next(count)
        torch.manual_seed(0)
        Visualizer._instance_dict.clear()
        init_default_scope('mmengine')
        wrapper = dict(type=OptimWrapper, optimizer=dict(type='AdamW', lr=1e-2))
        runner = Runner(
            model=Model(**backbone),
            work_dir=str(tmp_path / str(number)),
            experiment_name=f'monitor{tmp_path.name}{number}',
            train_dataloader=dict(
                dataset=Images(), batch_size=2, sampler=dict(type='InfiniteSampler', shuffle=False),
                collate_fn=dict(type='pseudo_collate')),
            train_cfg=dict(by_epoch=False, max_iters=iterations),
            optim_wrapper={**wrapper, **(optim or {})},
            default_hooks=dict(checkpoint=None, logger=dict(type='LoggerHook', interval=1)),
            custom_hooks=[*([Change(change)] if change else []), *hooks],
            log_processor=dict(by_epoch=False),
            randomness=dict(seed=0),
            cfg=ConfigDict())
        runner.train()
        return runner

    return run


def records(runner: Runner) -> list:
    """What the monitor logged, a dict for each measurement."""
    files = list(Path(runner.work_dir).rglob('*.json'))
    assert len(files) == 2  # scalars.json, and the one named after the time
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    found = [[line for line in file if any(key.startswith('rpe/') for key in line)] for file in lines]
    assert str(found[0]) == str(found[1])
    return found[0]


def text(runner: Runner) -> str:
    return next(Path(runner.work_dir).rglob('*.log')).read_text()


def keys_of(record: dict, layer: str) -> set:
    return {key[len(f'rpe/{layer}/'):] for key in record if key.startswith(f'rpe/{layer}/')}


@pytest.mark.parametrize('backbone', [{}, dict(with_cp=True), dict(halo=1, attn_drop_rate=0.2)],
                         ids=['plain', 'recomputed', 'halo and dropout'])
def test_changes_no_result(train, backbone):
    without, watched = Losses(), Losses()
    plain = train(without, **backbone)
    monitored = train(watched, RPEMonitorHook(interval=2), **backbone)
    assert without.found == pytest.approx(watched.found, rel=1e-5) and len(set(without.found)) == 4
    for one, two in zip(plain.model.state_dict().values(), monitored.model.state_dict().values()):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    assert [record['step'] for record in records(monitored)] == [2, 4]
    assert not any(module._forward_pre_hooks for module in monitored.model.modules())


def test_every_layer_is_logged_as_json_and_text(train):
    runner = train(RPEMonitorHook(interval=4))
    (record, ) = records(runner)
    assert record['step'] == record['iter'] == 4
    for layer in LAYERS:
        assert keys_of(record, layer) == {
            'content_mean', 'content_std', 'content_max', 'bias_mean', 'bias_std', 'bias_max', 'ratio', 'entropy',
            'bias_grad_norm'}
        assert record[f'rpe/{layer}/ratio'] == pytest.approx(
            record[f'rpe/{layer}/bias_std'] / record[f'rpe/{layer}/content_std'])
        (line, ) = (line for line in text(runner).splitlines() if line.startswith(layer))
        for key in ('content_std', 'content_max', 'bias_std', 'bias_max', 'ratio', 'entropy', 'bias_grad_norm'):
            assert f'{record[f"rpe/{layer}/{key}"]:.3g}' in line.split()


class Direct(Hook):
    """Computes the figures of a layer of one iteration on its own, and its gradient where the optimizer gets it."""

    def __init__(self, layer: str, iteration: int):
        self.layer, self.iteration = layer, iteration

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        if runner.iter + 1 != self.iteration:
            return
        module = runner.model.get_submodule(f'backbone.{self.layer}.attn.w_msa')

        def look(module, args):
            logits = window_logits(module, spread_windows(args[1], 8), *args)
            self.found = logit_statistics(logits.content, logits.bias, logits.visible, logits.queries)
            handle.remove()

        def gradient(*_):
            self.norm = math.sqrt(sum(float(p.grad.square().sum()) for p in module.rpe.parameters()))

        handle = module.register_forward_pre_hook(look)
        runner.optim_wrapper.optimizer.register_step_pre_hook(gradient)


def test_values(train):
    direct = Direct('stages.1.blocks.1', 3)
    (record, ) = records(train(direct, RPEMonitorHook(interval=3), iterations=3))
    for key, value in direct.found.items():
        assert record[f'rpe/stages.1.blocks.1/{key}'] == pytest.approx(float(value), rel=1e-6)
    assert record['rpe/stages.1.blocks.1/bias_grad_norm'] == pytest.approx(direct.norm, rel=1e-6)
    assert direct.norm > 0


def test_gradients_of_accumulated_iterations(train):
    """Figures are those of iteration 2 and the gradient that of the step after iteration 3."""
    direct, stepped = Direct('stages.0.blocks.0', 2), Direct('stages.0.blocks.0', 3)
    runner = train(direct, stepped, RPEMonitorHook(interval=2), iterations=3, optim=dict(accumulative_counts=3))
    (record, ) = records(runner)
    assert record['step'] == 3
    assert record['rpe/stages.0.blocks.0/content_std'] == pytest.approx(float(direct.found['content_std']), rel=1e-6)
    assert record['rpe/stages.0.blocks.0/content_std'] != pytest.approx(float(stepped.found['content_std']), rel=1e-6)
    assert record['rpe/stages.0.blocks.0/bias_grad_norm'] == pytest.approx(stepped.norm, rel=1e-6)


def test_gradients_without_loss_scale(train):
    OPTIM_WRAPPERS.register_module(module=LossScale, force=True)
    (plain, ), (scaled, ) = (
        records(train(RPEMonitorHook(interval=1), iterations=1, optim=optim)) for optim in ({}, dict(type=LossScale)))
    for layer in LAYERS:
        assert scaled[f'rpe/{layer}/bias_grad_norm'] == pytest.approx(plain[f'rpe/{layer}/bias_grad_norm'], rel=1e-4)


def test_gradients_are_clipped(train):
    clipped = dict(clip_grad=dict(max_norm=1e-6))
    (record, ) = records(train(RPEMonitorHook(interval=1), iterations=1, optim=clipped))
    assert 0 < record['rpe/stages.0.blocks.0/bias_grad_norm'] <= 1e-6


def test_measurement_without_a_step(train):
    """A step that never comes leaves the gradient out and nothing else."""
    runner = train(RPEMonitorHook(interval=2), iterations=4, optim=dict(type=Idle))
    assert [record['step'] for record in records(runner)] == [3, 4]
    assert all('rpe/stages.0.blocks.0/ratio' in record for record in records(runner))
    assert not any('grad' in key for record in records(runner) for key in record)


class Idle(OptimWrapper):
    """Every step is left out, as mixed precision does after an overflow."""

    def step(self, **kwargs) -> None:
        pass


def test_frozen_encodings_have_no_gradient(train):
    (record, ) = records(train(RPEMonitorHook(interval=4), frozen_stages=1))
    assert 'bias_grad_norm' not in keys_of(record, 'stages.0.blocks.1')
    assert {'ratio', 'entropy'} <= keys_of(record, 'stages.0.blocks.1')
    assert 'bias_grad_norm' in keys_of(record, 'stages.1.blocks.0')


@pytest.mark.parametrize('rpe, bias, gradient', [
    (None, False, False),
    (dict(type='RotaryRPE', mode='axial'), False, False),
    (dict(type='RotaryRPE'), False, True),
    (dict(type='ContextualRPE', on='v'), False, True),
    (dict(type='ContextualRPE', on='qk'), True, True),
    ([dict(type='RotaryRPE'), dict(type='DynamicRPE')], True, True),
])
def test_encodings(train, rpe, bias, gradient):
    (record, ) = records(train(RPEMonitorHook(interval=2), iterations=2, rpe=rpe))
    found = keys_of(record, 'stages.1.blocks.0')
    assert {'content_mean', 'content_std', 'content_max', 'entropy'} <= found
    assert ({'bias_mean', 'bias_std', 'bias_max', 'ratio'} <= found) == bias == ('ratio' in found)
    assert ('bias_grad_norm' in found) == gradient
    assert ('saturated' in found) == (isinstance(rpe, list))


def test_saturated_sigmoids_and_clamped_temperatures(train):

    def change(model: Model) -> None:
        attention = model.backbone.stages[1].blocks[0].attn.w_msa
        with torch.no_grad():
            attention.logit_scale[:3] = math.log(100) + 0.1
            attention.rpe.cpb_mlp[0].weight.zero_()
            attention.rpe.cpb_mlp[0].bias.fill_(1.)
            attention.rpe.cpb_mlp[2].weight.zero_()
            attention.rpe.cpb_mlp[2].weight[0] = 1.  # 512 channels of 1
            attention.rpe.cpb_mlp[2].weight[1] = -1.

    runner = train(RPEMonitorHook(interval=1), iterations=1, change=change, arch='v2-tiny', embed_dims=16)
    (record, ) = records(runner)
    assert record['rpe/stages.1.blocks.0/clamped'] == 3 / 4 and record['rpe/stages.0.blocks.0/clamped'] == 0
    assert record['rpe/stages.1.blocks.0/saturated'] == 2 / 4 and record['rpe/stages.0.blocks.0/saturated'] == 0


def test_chosen_layers(train):
    (record, ) = records(train(RPEMonitorHook(interval=4, layers=['stages.0.*', '*.1.blocks.1'])))
    assert [layer for layer in LAYERS if keys_of(record, layer)] == [LAYERS[0], LAYERS[1], LAYERS[3]]


def warnings_of(runner: Runner) -> Sequence[str]:
    return [line for line in text(runner).splitlines() if 'WARNING' in line and ': ' in line and 'layer' in line]


def test_warns_once_when_the_bias_drowns_the_content(train):

    def change(model: Model) -> None:
        with torch.no_grad():
            model.backbone.stages[0].blocks[1].attn.w_msa.rpe.relative_position_bias_table.mul_(1e3)

    runner = train(RPEMonitorHook(interval=1), change=change)
    (line, ) = warnings_of(runner)
    ratio = records(runner)[0]['rpe/stages.0.blocks.1/ratio']
    assert line.endswith(
        'iteration 1: the position encoding of layer stages.0.blocks.1 drowns the content: over the keys of a query, '
        f'its bias varies {ratio:.1f} times as much as the logits it is added to, more than max_ratio=10')
    assert not warnings_of(train(RPEMonitorHook(interval=1, max_ratio=1e6), change=change))


def test_warns_once_of_what_is_not_finite(train):

    def change(model: Model) -> None:
        with torch.no_grad():
            model.backbone.stages[1].blocks[1].attn.w_msa.rpe.relative_position_bias_table.fill_(math.inf)

    (line, ) = warnings_of(train(RPEMonitorHook(interval=1, layers='stages.1.blocks.1'), iterations=2, change=change))
    assert 'iteration 1: layer stages.1.blocks.1 has figures of attention that are not finite: bias_mean, ' in line


def test_other_processes_log_nothing(train, monkeypatch):
    monkeypatch.setattr(rpe_monitor, 'is_main_process', lambda: False)
    assert not records(train(RPEMonitorHook(interval=1)))


def test_half_precision(train):
    """Under autocast, as in mixed precision."""
    hook = RPEMonitorHook(interval=1)
    model = Model(drop_path_rate=0.)
    model.backbone.init_weights()
    found = []
    for enabled in (False, True):
        layers = rpe_monitor._chosen(model, '*')
        handles = [layer.register_forward_pre_hook(lambda layer, args, name=name: hook._look(name, layer, args))
                   for name, layer in layers.items()]
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=enabled):
            model([Images()[0]['inputs']], 'loss')['loss'].backward()
        found.append({(name, key): float(value) for name, figures in hook._found.items()
                      for key, value in figures.items()})
        hook._found = {}
        for handle in handles:
            handle.remove()
    assert len(found[0]) == 4 * 7
    for key, value in found[0].items():
        assert found[1][key] == pytest.approx(value, rel=0.05, abs=0.02)


@pytest.mark.parametrize('arguments, sentence', [
    (dict(interval=0), 'interval of RPEMonitorHook must be a whole number from 1, got 0'),
    (dict(windows=2.5), 'windows of RPEMonitorHook must be a whole number from 1, got 2.5'),
    (dict(max_ratio=-1), 'max_ratio of RPEMonitorHook must be a positive number, got -1'),
    (dict(layers=3), "layers of RPEMonitorHook must be None, or one or several patterns such as 'stages.0.*', got 3"),
])
def test_arguments_that_are_refused(arguments, sentence):
    with pytest.raises(InputError) as error:
        RPEMonitorHook(**arguments)
    assert str(error.value) == sentence


def test_layers_that_do_not_exist(train):
    with pytest.raises(InputError, match="holds 'stages.7', which matches none of stages.0.blocks.0, "):
        train(RPEMonitorHook(layers='stages.7'))


def test_models_without_windows():
    with pytest.raises(InputError, match='needs a model with window attention, such as one on SwinRPE, and Linear has'):
        rpe_monitor._chosen(torch.nn.Linear(1, 1), '*')


def test_names_in_a_model_of_several_backbones():
    model = torch.nn.ModuleDict(dict(student=Model().backbone, teacher=Model().backbone))
    layers = rpe_monitor._chosen(model, ('teacher.*', ))
    assert list(layers) == [f'teacher.{layer}' for layer in LAYERS]
    assert all(isinstance(layer, WindowAttention) for layer in layers.values())


def test_attention_that_is_in_no_block():
    model = torch.nn.ModuleDict(dict(text=BlockLocalAttention(8, 2, 4)))
    layers = rpe_monitor._chosen(model, ('*', ))
    assert list(layers) == ['text.attn']
    hook = RPEMonitorHook()
    layers['text.attn'].register_forward_pre_hook(lambda layer, args: hook._look('text.attn', layer, args))
    model['text'](torch.randn(2, 19, 8), [19, 5])
    assert all(value.isfinite() for value in hook._found['text.attn'].values())


def test_from_a_config():
    from swin_rpe_mm.registry import HOOKS
    assert HOOKS.build(dict(type='swin_rpe_mm.RPEMonitorHook', interval=7)).interval == 7
