"""Two processes on the CPU: the same weights, the same metric, and a training that survives a kill."""
import json
import socket
from pathlib import Path

import pytest
import torch

from swin_rpe_mm.checkpoints import read_checkpoint

pytestmark = pytest.mark.slow
HOOKS = """
custom_imports = dict(imports=['swin_rpe_mm', 'rank_hooks'], allow_failed_imports=False)
custom_hooks = [dict(type='SaveEachRank')]
"""


@pytest.fixture
def together(command):
    """``together(script, *args)`` runs a script of ``tools/`` with two processes on a free port."""

    def run(script: str, *args: str):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = str(free.getsockname()[1])
        return command(script, *args, PORT=port, PYTHONPATH=str(Path(__file__).parent), CUDA_VISIBLE_DEVICES='')

    return run


def ranks(work_dir: Path) -> list[dict]:
    return [torch.load(work_dir / f'rank_{rank}.pt') for rank in range(2)]


def assert_same(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=0, atol=0, msg=key)


def test_training_and_resuming(together, make_config, tmp_path):
    """Two epochs of two iterations; killed in the middle of the second and resumed, the training ends as without."""
    straight, killed = tmp_path / 'straight', tmp_path / 'killed'
    config = make_config('segmentation', HOOKS)
    ended = together('dist_train.sh', config, '2', '--work-dir', str(straight))
    assert ended.returncode == 0, ended.stderr
    assert 'there is no GPU: the processes run on the CPU and talk through gloo' in ended.stdout + ended.stderr
    first, second = ranks(straight)
    assert_same(first['weights'], second['weights'])
    assert len(first['seen']) == len(second['seen']) == 4
    assert not set(first['seen']) & set(second['seen'])

    kill = make_config('segmentation', HOOKS + "custom_hooks.append(dict(type='KillAt', iteration=2))\n", name='kill')
    assert together('dist_train.sh', kill, '2', '--work-dir', str(killed)).returncode != 0
    assert [path.name for path in killed.glob('*.pth')] == ['epoch_1.pth']
    assert not list(killed.glob('rank_*'))

    ended = together('dist_train.sh', config, '2', '--work-dir', str(killed), '--resume')
    assert ended.returncode == 0, ended.stderr
    assert f'training resumes from {killed}/epoch_1.pth' in ended.stdout + ended.stderr
    for rank, (resumed, uninterrupted) in enumerate(zip(ranks(killed), (first, second), strict=True)):
        assert resumed['iter'] == uninterrupted['iter'] == 4, rank
        assert resumed['seen'] == uninterrupted['seen'], rank
        assert_same(resumed['weights'], uninterrupted['weights'])
    resumed, uninterrupted = (read_checkpoint(folder / 'epoch_2.pth') for folder in (killed, straight))
    assert (resumed['meta']['epoch'], resumed['meta']['iter']) == (2, 4)
    assert resumed['param_schedulers'] == uninterrupted['param_schedulers']
    for one, other in zip(resumed['optimizer']['state'].values(), uninterrupted['optimizer']['state'].values(),
                          strict=True):
        assert_same(one, other)


def test_metric_is_that_of_one_process(together, test_tool, make_config, tmp_path, task):
    """With an odd number of images, so that one process gets one of them twice."""
    from mmengine.config import Config
    from mmengine.registry import MODELS
    config = make_config(task)
    cfg = Config.fromfile(config)
    model = MODELS.build(dict(cfg.model, _scope_=cfg.default_scope))
    model.init_weights()
    checkpoint = str(tmp_path / 'random.pth')
    torch.save(dict(state_dict=model.state_dict()), checkpoint)
    one = test_tool([config, checkpoint, '--work-dir', str(tmp_path / 'one')])
    ended = together('dist_test.sh', config, checkpoint, '2', '--work-dir', str(tmp_path / 'two'))
    assert ended.returncode == 0, ended.stderr
    # mmengine's processes all write this file, and may leave the end of a longer one behind
    two, _ = json.JSONDecoder().raw_decode(next((tmp_path / 'two').glob('*/*.json')).read_text())
    assert {name: two[name] for name in one} == pytest.approx(one, abs=1e-6)
    assert any(value > 0 for value in one.values())


@pytest.mark.needs_ops
def test_error_is_told_once(together, make_config, tiny_data):
    (tiny_data / 'img_dir/val/0.jpg').unlink()
    ended = together('dist_train.sh', make_config('detection'), '2')
    lines = [line for line in ended.stderr.splitlines() if line.startswith('error: ')]
    assert lines == [f'error: image {tiny_data}/img_dir/val/0.jpg of val_dataloader does not exist']
    assert ended.returncode != 0


@pytest.mark.parametrize('script', ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh', 'slurm_test.sh'])
def test_usage(command, script):
    ended = command(script)
    assert ended.returncode == 2
    assert f'\ntools/{script} ' in ended.stderr


@pytest.mark.parametrize(('script', 'args', 'expected'), [
    ('slurm_train.sh', ['part', 'job', 'a.py'], 'train.py a.py --launcher slurm'),
    ('slurm_train.sh', ['part', 'job', 'a.py', 'wd', '--amp'], 'train.py a.py --work-dir=wd --launcher slurm --amp'),
    ('slurm_test.sh', ['part', 'job', 'a.py', 'b.pth', '--tta'], 'test.py a.py b.pth --launcher slurm --tta'),
])
def test_slurm(command, tmp_path, script, args, expected):
    """With a stand-in for ``srun`` that prints what it is called with."""
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\necho "$@"\n')
    srun.chmod(0o755)
    ended = command(script, *args, PATH=f'{tmp_path}:/usr/bin:/bin', GPUS='4', GPUS_PER_NODE='2', SRUN_ARGS='--x --y')
    assert ended.stdout.startswith('-p part --job-name=job --gres=gpu:2 --ntasks=4 --ntasks-per-node=2 ')
    assert '--x --y python -u ' in ended.stdout
    assert ended.stdout.rstrip().endswith(expected)
