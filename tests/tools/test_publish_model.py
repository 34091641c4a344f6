"""The file that is given away: weights and plain values, a name with the hash, no code needed to read it."""
import hashlib
import os
import pathlib
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from oracles.cases import SMALL, randomise
from tiny import load_tool

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.checkpoints import read_checkpoint
from swin_rpe_mm.checkpoints.files import _is_whole


@pytest.fixture(scope='module')
def publish():
    return load_tool('model_converters/publish_model')


@pytest.fixture(scope='module')
def model() -> SwinRPE:
    return randomise(SwinRPE(**SMALL, window_size=(3, 5)), 0)


@pytest.fixture
def training(model, tmp_path) -> str:
    """What mmengine's runner saves."""
    optimizer = torch.optim.AdamW(model.parameters())
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    history = HistoryBuffer([np.float64(1.5), np.float32(2)], [1, 2])
    meta = dict(
        epoch=2, iter=8, seed=np.int64(3), cfg='model = dict()', time='20260101',
        dataset_meta=dict(classes=('disc', 'box'), palette=np.array([[1, 2, 3], [4, 5, 6]])),
        hook_msgs=dict(last_ckpt='epoch_2.pth'))
    path = tmp_path / 'epoch_2.pth'
    torch.save(
        dict(meta=meta, state_dict=model.state_dict(), optimizer=optimizer.state_dict(),
             param_schedulers=[dict(last_step=3)], ema_state_dict=model.state_dict(),
             message_hub=dict(log_scalars=dict(loss=history))), path)
    return str(path)


def test_published_file(publish, training, model, tmp_path, capsys):
    path = publish([training, str(tmp_path / 'out/swin.pth')])
    digest = hashlib.sha256(open(path, 'rb').read()).hexdigest()
    assert path == str(tmp_path / f'out/swin-{digest[:8]}.pth')
    assert os.listdir(tmp_path / 'out') == [os.path.basename(path)]
    line, = capsys.readouterr().out.splitlines()
    assert path in line and 'without ema_state_dict, message_hub, optimizer, param_schedulers' in line
    assert os.path.getsize(path) < os.path.getsize(training) / 3

    published = torch.load(path, weights_only=True)
    assert published.keys() == {'meta', 'state_dict'}
    assert published['meta'] == dict(
        epoch=2, iter=8, seed=3, cfg='model = dict()', time='20260101',
        dataset_meta=dict(classes=('disc', 'box'), palette=[[1, 2, 3], [4, 5, 6]]))
    state = model.state_dict()
    assert list(published['state_dict']) == list(state)
    assert all(torch.equal(published['state_dict'][key], value) for key, value in state.items())
    assert published['state_dict']._metadata == state._metadata


def test_ways_to_read_it(publish, training, tmp_path):
    path = publish([training, str(tmp_path / 'swin')])
    full = torch.load(path, weights_only=False)
    read = read_checkpoint(path)
    for content in (full, read):
        assert content.keys() == {'meta', 'state_dict'}
    other = SwinRPE(**SMALL, window_size=(3, 5), init_cfg=dict(type='Pretrained', checkpoint=path))
    other.init_weights()
    assert all(torch.equal(other.state_dict()[key], value) for key, value in read['state_dict'].items())


def test_downloads_accept_its_name(publish, training, tmp_path):
    path = pathlib.Path(publish([training, str(tmp_path / 'swin')]))
    digest = path.stem.rpartition('-')[2]
    assert _is_whole(path, digest)
    path.write_bytes(path.read_bytes()[:-1])
    assert not _is_whole(path, digest)


def test_the_same_weights_have_the_same_hash(publish, training, tmp_path):
    paths = [publish([training, str(tmp_path / name)]) for name in ('a', 'longer-name.pth')]
    assert len({path.rpartition('-')[2] for path in paths}) == 1


def test_state_dict_alone(publish, model, tmp_path):
    torch.save(model.state_dict(), tmp_path / 'bare.pth')
    published = torch.load(publish([str(tmp_path / 'bare.pth'), str(tmp_path / 'b')]), weights_only=True)
    assert published['meta'] == {} and list(published['state_dict']) == list(model.state_dict())


def test_views_are_written_alone(publish, tmp_path):
    torch.save(dict(state_dict=dict(a=torch.zeros(1000, 1000)[0])), tmp_path / 'a.pth')
    assert os.path.getsize(publish([str(tmp_path / 'a.pth'), str(tmp_path / 'b')])) < 10000


def test_values_that_are_not_plain(publish, tmp_path):
    """They are left out or replaced, so that nobody has to trust the file."""
    meta = OrderedDict(path=pathlib.PurePosixPath('a/b'), odd=SimpleNamespace(x=1), several=[1, SimpleNamespace()],
                       sizes={3}, deep=dict(odd=SimpleNamespace(), kept=np.float32(.5)), scale=torch.ones(1),
                       flags=(None, True, b'x'))
    torch.save(dict(state_dict=dict(a=torch.ones(1)), meta=meta), tmp_path / 'a.pth')
    arguments = [str(tmp_path / 'a.pth'), str(tmp_path / 'b')]
    with pytest.raises(InputError, match='--trust-checkpoint'):
        publish(arguments)
    published = torch.load(publish([*arguments, '--trust-checkpoint']), weights_only=True)['meta']
    assert published.pop('scale') == torch.ones(1)
    assert published == dict(path='a/b', several=[1], sizes=[3], deep=dict(kept=.5), flags=(None, True, b'x'))


@pytest.mark.parametrize('content, words', [
    (dict(state_dict={}), 'holds no weights'), ({}, 'holds no weights'),
    (dict(model=dict(a=torch.zeros(1))), 'model is of the type dict; convert_checkpoint.py'),
    (dict(state_dict=dict(a=3)), 'a is of the type int')])
def test_no_weights(publish, content, words, tmp_path):
    torch.save(content, tmp_path / 'a.pth')
    with pytest.raises(InputError, match=words) as error:
        publish([str(tmp_path / 'a.pth'), str(tmp_path / 'b')])
    assert 'a.pth' in str(error.value) and '\n' not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ['a.pth']
