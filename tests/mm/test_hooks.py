"""The hooks around checkpoints and labels, without a training."""
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner.checkpoint import load_state_dict
from mmengine.structures import BaseDataElement, PixelData
from torch import nn

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.hooks import CheckpointReportHook, LabelRangeHook, StaleAveragesHook


class Model(nn.Sequential):
    """Two layers, and a head to know the classes of."""

    def __init__(self):
        super().__init__(nn.Linear(2, 3), nn.Linear(3, 4))
        self.decode_head = nn.Module()
        self.decode_head.num_classes, self.decode_head.ignore_index = 3, 255


@pytest.fixture
def load(caplog):
    """Load a state dict into a model as the runner does; give the line that is logged."""

    def run(state_dict: dict) -> str:
        lines = []
        logger = SimpleNamespace(info=lines.append)
        runner = SimpleNamespace(model=Model(), cfg=ConfigDict(load_from='a.pth'), logger=logger)
        hook = CheckpointReportHook()
        hook.before_run(runner)
        hook.after_load_checkpoint(runner, dict(state_dict=state_dict))
        load_state_dict(runner.model, state_dict, logger=MMLogger.get_current_instance())
        return lines[-1]

    return run


def test_report_counts_what_was_written(load):
    assert load(Model().state_dict()) == 'checkpoint a.pth: 4 keys matched, 0 missing, 0 unexpected'
    weights = Model().state_dict()
    weights['0.weight'] = torch.zeros(9, 9)  # of another shape
    weights['neck'] = weights.pop('0.bias')
    assert load(weights) == 'checkpoint a.pth: 2 keys matched, 2 missing (0.bias, 0.weight), 1 unexpected (neck)'


@pytest.mark.parametrize('weights', [{}, {'a.weight': torch.zeros(1)}, {'0.weight': torch.zeros(9, 9)}])
def test_a_checkpoint_that_matches_nothing_is_an_error(load, weights):
    with pytest.raises(InputError, match='no key of checkpoint a.pth matches the model'):
        load(weights)


def batch(value: int) -> dict:
    labels = PixelData(data=torch.tensor([[[0, 1], [255, value]]]))
    return dict(data_samples=[BaseDataElement(gt_sem_seg=labels, metainfo=dict(seg_map_path='7.png'))])


def test_labels_outside_the_classes():
    hook, runner = LabelRangeHook(), SimpleNamespace(model=Model())
    hook.before_train(runner)
    hook.before_train_iter(runner, 0, batch(2))
    with pytest.raises(InputError, match='label map 7.png holds the value 3: allowed are 0 to 2 and 255'):
        hook.before_train_iter(runner, 0, batch(3))


def test_models_without_labels_are_left_alone():
    hook, runner = LabelRangeHook(), SimpleNamespace(model=nn.Linear(1, 1))
    hook.before_train(runner)
    hook.before_train_iter(runner, 0, batch(9))


@pytest.mark.parametrize('several', [False, True])
def test_averages_of_another_shape_start_anew(several):
    old, new = nn.Linear(2, 3), nn.Linear(5, 3)
    trained = torch.optim.AdamW(old.parameters())
    old(torch.ones(1, 2)).sum().backward()
    trained.step()
    resumed = torch.optim.AdamW(new.parameters())
    resumed.load_state_dict(trained.state_dict())
    lines, wrapper = [], OptimWrapper(resumed)
    runner = SimpleNamespace(optim_wrapper=OptimWrapperDict(all=wrapper) if several else wrapper,
                             logger=SimpleNamespace(info=lines.append))
    StaleAveragesHook().before_train(runner)
    assert lines == ['parameters of another shape than in the checkpoint, whose running averages start anew: 1']
    assert new.weight not in resumed.state and resumed.state[new.bias]['exp_avg'].abs().sum() > 0
    new(torch.ones(1, 5)).sum().backward()
    resumed.step()
    StaleAveragesHook().before_train(runner)
    assert len(lines) == 1
