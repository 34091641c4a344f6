"""The strategy of the FSDP config in two processes on the CPU: it trains as DDP does, and resumes."""
import socket
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from tiny import REPO

from swin_rpe_mm.checkpoints import read_checkpoint

pytestmark = pytest.mark.slow
RECIPE = Config.fromfile(REPO / 'configs/coco/mask-rcnn_swin-rpe-l-p4-w12-in22k_fpn_fsdp-ms-crop-3x_coco.py')
SHARDED = f"""
runner_type = {RECIPE.runner_type!r}
strategy = {RECIPE.strategy.to_dict()!r}
model['backbone']['with_cp'] = {RECIPE.model.backbone.with_cp!r}
"""


@pytest.fixture
def train(command):
    """``train(config, work_dir, *args)`` trains in two processes and reads what they have saved at the end."""

    def run(config: str, work_dir: Path, *args: str) -> dict:
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = str(free.getsockname()[1])
        ended = command('dist_train.sh', config, '2', '--work-dir', str(work_dir), *args, PORT=port,
                        CUDA_VISIBLE_DEVICES='')
        assert ended.returncode == 0, ended.stderr
        return read_checkpoint(str(work_dir / 'epoch_2.pth'))

    return run


def test_it_trains_as_ddp_and_resumes(train, make_config, tmp_path):
    sharded = make_config('segmentation', SHARDED, name='sharded')
    straight = train(sharded, tmp_path / 'straight')
    whole = train(make_config('segmentation'), tmp_path / 'whole')
    assert straight['state_dict'].keys() == whole['state_dict'].keys()
    for key, value in whole['state_dict'].items():
        torch.testing.assert_close(straight['state_dict'][key], value, rtol=0, atol=1e-5, msg=key)
    averages, names = whole['optimizer']['state'], straight['optimizer']['param_groups'][0]['params']
    assert len(averages) == len(names)
    for index, name in enumerate(names):
        for key, value in averages[index].items():
            torch.testing.assert_close(straight['optimizer']['state'][name][key], value, rtol=0, atol=1e-6, msg=name)

    (tmp_path / 'resumed').mkdir()
    (tmp_path / 'straight/epoch_1.pth').rename(tmp_path / 'resumed/epoch_1.pth')
    resumed = train(sharded, tmp_path / 'resumed', '--resume')
    assert resumed['meta']['iter'] == straight['meta']['iter'] == 4
    for key, value in straight['state_dict'].items():
        torch.testing.assert_close(resumed['state_dict'][key], value, rtol=0, atol=0, msg=key)


def test_one_process_alone_is_told(command, make_config):
    ended = command('train.py', make_config('segmentation', SHARDED), CUDA_VISIBLE_DEVICES='')
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        'error: SwinFSDPStrategy spreads a model over processes, and here is one alone: use tools/dist_train.sh or '
        'tools/dist_test.sh')
