"""Checkpoint files: what is read and what is refused, and downloads that are whole or absent."""
import argparse
import builtins
import hashlib
import importlib.util
import io
import json
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import peers
import pytest
import torch
from mmengine.logging import HistoryBuffer
from oracles.cases import SMALL, randomise

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.checkpoints import read_checkpoint
from swin_rpe_mm.checkpoints.files import download


class Code:
    """Makes a file when it is unpickled in full."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, 'w')


def saved(content, path: Path, **kwargs) -> Path:
    torch.save(content, path, **kwargs)
    return path


def assert_one_sentence(error, *words: str) -> None:
    assert '\n' not in str(error.value) and '. ' not in str(error.value)
    for word in words:
        assert word in str(error.value)


# ---- reading ----

@pytest.mark.parametrize('zipped', [True, False])
def test_plain_files(zipped, tmp_path):
    path = saved(dict(a=torch.arange(3.), b=[1, 'x']), tmp_path / 'a.pth', _use_new_zipfile_serialization=zipped)
    for source in (path, str(path)):
        content = read_checkpoint(source)
        assert torch.equal(content['a'], torch.arange(3.)) and content['b'] == [1, 'x']


def test_home_folder(tmp_path, monkeypatch):
    saved(dict(a=torch.ones(1)), tmp_path / 'a.pth')
    monkeypatch.setenv('HOME', str(tmp_path))
    assert read_checkpoint('~/a.pth')['a'] == 1


@pytest.mark.parametrize('kind', ['int8', 'int64', 'uint8', 'float16', 'float32', 'float64', 'bool'])
def test_numbers_of_numpy(kind, tmp_path):
    array = np.ones((2, 3), kind)
    content = read_checkpoint(saved(dict(scalar=array[0, 0], array=array), tmp_path / 'a.pth'))
    assert content['scalar'] == array[0, 0] and content['array'].dtype == kind
    assert np.array_equal(content['array'], array)


def test_log_history_of_mmengine(tmp_path):
    """With every statistic it keeps, by which it holds functions."""
    history = HistoryBuffer([np.float64(1.5), np.float32(2)], [1, 2])
    content = read_checkpoint(saved(dict(message_hub=dict(log_scalars=dict(loss=history))), tmp_path / 'a.pth'))
    assert content['message_hub']['log_scalars']['loss'].data[0].tolist() == [1.5, 2]


def test_checkpoint_of_a_runner(tmp_path):
    """What mmengine's runner itself writes."""
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Model(BaseModel):

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, inputs, mode='tensor'):
            loss = self.layer(torch.ones(1, 1)).sum()
            return dict(loss=loss)

    loader = torch.utils.data.DataLoader([dict(inputs=0)] * 2)
    runner = Runner(
        Model(), str(tmp_path), loader, train_cfg=dict(by_epoch=True, max_epochs=1), experiment_name='files',
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=.1)), default_scope='mmengine',
        param_scheduler=dict(type='LinearLR', start_factor=.1), custom_hooks=[dict(type='EMAHook')])
    runner.train()
    content = read_checkpoint(tmp_path / 'epoch_1.pth')
    assert {'meta', 'state_dict', 'optimizer', 'param_schedulers', 'message_hub', 'ema_state_dict'} <= content.keys()
    assert torch.equal(content['ema_state_dict']['module.layer.weight'], runner.model.layer.weight)


@pytest.fixture
def safetensors(monkeypatch):
    """safetensors.torch; skips where the package is nowhere."""
    if not importlib.util.find_spec('safetensors'):
        if not (peers.FOLDER / 'safetensors').is_dir():
            pytest.skip('needs the package safetensors, which make setup puts into .venv/peers')
        monkeypatch.setattr(sys, 'path', [*sys.path, str(peers.FOLDER)])
    return importlib.import_module('safetensors.torch')


def test_safetensors(safetensors, tmp_path):
    state = SwinRPE(**SMALL).state_dict()
    safetensors.save_file(state, tmp_path / 'any-name.bin', metadata=dict(format='pt'))
    content = read_checkpoint(tmp_path / 'any-name.bin')
    assert content.keys() == state.keys()
    assert all(torch.equal(content[key], value) for key, value in state.items())
    model = SwinRPE(**SMALL, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'any-name.bin')))
    model.init_weights()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


@pytest.mark.parametrize('length', [9, 40, -1])
def test_part_of_a_safetensors_file(safetensors, length, tmp_path):
    whole = safetensors.save(dict(a=torch.ones(100)))
    (tmp_path / 'a.safetensors').write_bytes(whole[:length])
    with pytest.raises(InputError) as error:
        read_checkpoint(tmp_path / 'a.safetensors')
    assert_one_sentence(error, 'a.safetensors', 'only part of one')


def test_safetensors_without_the_package(monkeypatch, tmp_path):
    for name in ('safetensors', 'safetensors.torch'):
        monkeypatch.setitem(sys.modules, name, None)
    header = json.dumps(dict(a=dict(dtype='F32', shape=[1], data_offsets=[0, 4]))).encode()
    (tmp_path / 'a.safetensors').write_bytes(len(header).to_bytes(8, 'little') + header + bytes(4))
    with pytest.raises(InputError) as error:
        read_checkpoint(tmp_path / 'a.safetensors')
    assert_one_sentence(error, 'a.safetensors', 'install the package safetensors')


def a_zip() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, 'w') as file:
        file.writestr('notes.txt', 'no weights')
    return content.getvalue()


@pytest.mark.parametrize('content', [b'', b'\n', b'some text', b'<!DOCTYPE html><html>404</html>', b'{"a": 1, "b": 2}',
                                     b'\x80', bytes(1000), a_zip(), b'x' * 8 + b'{}'],
                         ids=['empty', 'line', 'text', 'page', 'json', 'byte', 'zeros', 'zip', 'brace'])
@pytest.mark.parametrize('trust', [False, True])
def test_no_checkpoint(content, trust, tmp_path):
    (tmp_path / 'a.pth').write_bytes(content)
    with pytest.raises(InputError) as error:
        read_checkpoint(tmp_path / 'a.pth', trust=trust)
    assert_one_sentence(error, 'a.pth')


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize('part', [.001, .3, .9, .999])
@pytest.mark.parametrize('trust', [False, True])
def test_part_of_a_file(zipped, part, trust, tmp_path):
    path = saved(dict(a=torch.ones(5000)), tmp_path / 'a.pth', _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    path.write_bytes(whole[:int(part * len(whole))])
    with pytest.raises(InputError) as error:
        read_checkpoint(path, trust=trust)
    assert_one_sentence(error, 'a.pth', 'only part of one')


@pytest.mark.parametrize('place', ['absent.pth', 'folder', ''])
def test_no_file(place, tmp_path):
    (tmp_path / 'folder').mkdir()
    with pytest.raises(InputError) as error:
        read_checkpoint(tmp_path / place)
    assert_one_sentence(error, place, 'does not exist')


@pytest.mark.parametrize('content', [torch.ones(3), [torch.ones(3)], 3, None], ids=['tensor', 'list', 'number', 'None'])
def test_no_state_dict(content, tmp_path):
    path = saved(content, tmp_path / 'a.pth')
    with pytest.raises(InputError) as error:
        SwinRPE(**SMALL, init_cfg=dict(type='Pretrained', checkpoint=str(path))).init_weights()
    assert_one_sentence(error, 'a.pth')


# ---- trust ----

@pytest.mark.parametrize('zipped', [True, False])
def test_code_is_not_run(zipped, tmp_path):
    path = saved(dict(a=torch.ones(1), b=Code(tmp_path / 'ran')), tmp_path / 'a.pth',
                 _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError) as error:
        read_checkpoint(path)
    assert_one_sentence(error, 'a.pth', 'open', 'trust=True', '--trust-checkpoint')
    assert not (tmp_path / 'ran').exists()
    assert read_checkpoint(path, trust=True)['a'] == 1
    assert (tmp_path / 'ran').exists()


def test_code_in_a_plain_pickle_is_not_run(tmp_path):
    (tmp_path / 'a.pth').write_bytes(pickle.dumps(Code(tmp_path / 'ran')))
    with pytest.raises(InputError) as error:
        read_checkpoint(tmp_path / 'a.pth')
    assert_one_sentence(error, 'a.pth')
    assert not (tmp_path / 'ran').exists()


class Statistic:
    """What mmengine's log history is saved with: a method of a class, by its name."""

    def __reduce__(self):
        return getattr, (HistoryBuffer, 'mean')


class Planted:
    """Takes that further, to the names that all code sees, and adds one."""

    def __reduce__(self):
        return getattr, (Statistic(), '__builtins__'), None, None, iter([('planted', 1)])


def test_nothing_is_planted(tmp_path):
    """What reads the log history must not lead on to the interpreter."""
    path = saved(dict(a=Planted()), tmp_path / 'a.pth')
    try:
        with pytest.raises(InputError) as error:
            read_checkpoint(path)
        assert_one_sentence(error, 'a.pth')
        assert not hasattr(builtins, 'planted')
    finally:
        vars(builtins).pop('planted', None)


def test_what_others_put_beside_weights(tmp_path):
    """The arguments of a training script, as in many files, name themselves."""
    path = saved(dict(model={}, args=argparse.Namespace(lr=.1)), tmp_path / 'a.pth')
    with pytest.raises(InputError, match='argparse.Namespace') as error:
        read_checkpoint(path)
    assert_one_sentence(error)
    assert read_checkpoint(path, trust=True)['args'].lr == .1


def test_trust_of_init_cfg(tmp_path):
    state = randomise(SwinRPE(**SMALL), 0).state_dict()
    path = saved(dict(model=state, config=argparse.Namespace()), tmp_path / 'a.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(path))
    with pytest.raises(InputError) as error:
        SwinRPE(**SMALL, init_cfg=init_cfg).init_weights()
    assert_one_sentence(error, 'argparse.Namespace', 'trust=True')
    model = SwinRPE(**SMALL, init_cfg=dict(init_cfg, trust=True))
    model.init_weights()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


# ---- downloads ----

@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Where downloads go."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    for name in ('LOCAL_RANK', 'http_proxy', 'HTTP_PROXY'):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / 'torch/hub/checkpoints'


class Server:
    """Files by name; ``requests`` counts what was asked for. ``stop_after`` breaks a connection off there, ``pause`` is
    slept after the first bytes, and ``started`` is set at them."""

    def __init__(self):
        self.files, self.requests, self.stop_after, self.pause = {}, [], None, 0
        self.started, outer = threading.Event(), self

        class Handler(BaseHTTPRequestHandler):

            def do_GET(self):
                name = self.path.partition('?')[0].strip('/')
                outer.requests.append(name)
                if name not in outer.files:
                    self.send_error(404)
                    return
                content = outer.files[name]
                self.send_response(200)
                self.send_header('Content-Length', str(len(content)))
                self.end_headers()
                try:
                    self.wfile.write(content[:100])
                    self.wfile.flush()
                    outer.started.set()
                    time.sleep(outer.pause)
                    self.wfile.write(content[100:outer.stop_after])
                except OSError:  # the other end is gone
                    pass

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.url = f'http://127.0.0.1:{self.http.server_port}'


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs=dict(poll_interval=.01))
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def weights(size: int = 20000) -> bytes:
    content = io.BytesIO()
    torch.save(dict(a=torch.arange(float(size))), content)
    return content.getvalue()


def hashed(content: bytes, digits: int = 8) -> str:
    return f'model-{hashlib.sha256(content).hexdigest()[:digits]}.pth'


@pytest.mark.parametrize('digits', [0, 8, 64])
def test_download_once(digits, server, cache):
    content = weights()
    name = hashed(content, digits) if digits else 'model.pth'
    server.files[name] = content
    for _ in range(2):
        assert torch.equal(read_checkpoint(f'{server.url}/{name}?download=true')['a'], torch.arange(20000.))
    assert server.requests == [name]
    assert os.listdir(cache) == [name]
    assert (cache / name).read_bytes() == content


def test_init_cfg_with_an_address(server, cache):
    state, content = randomise(SwinRPE(**SMALL), 0).state_dict(), io.BytesIO()
    torch.save(dict(state_dict=state), content)
    server.files['swin.pth'] = content.getvalue()
    model = SwinRPE(**SMALL, init_cfg=dict(type='Pretrained', checkpoint=f'{server.url}/swin.pth'))
    model.init_weights()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


def test_the_name_appears_when_the_file_is_complete(server, cache):
    server.files['model.pth'], server.pause = weights(), .3
    thread = threading.Thread(target=download, args=(f'{server.url}/model.pth', ))
    thread.start()
    assert server.started.wait(10)
    assert not (cache / 'model.pth').exists()
    thread.join()
    assert (cache / 'model.pth').read_bytes() == server.files['model.pth']


@pytest.mark.parametrize('with_hash', [True, False])
@pytest.mark.parametrize('stop_after', [50, 5000])
def test_broken_connection(with_hash, stop_after, server, cache):
    """Whether or not a hash would tell."""
    content = weights()
    name = hashed(content) if with_hash else 'model.pth'
    server.files[name], server.stop_after = content, stop_after
    with pytest.raises(InputError) as error:
        download(f'{server.url}/{name}')
    assert_one_sentence(error, f'{server.url}/{name}', 'path of a copy')
    assert not (cache / name).exists()
    server.stop_after = None
    assert download(f'{server.url}/{name}').read_bytes() == content


def test_killed_in_the_middle(server, cache):
    """Nothing stands under the name, and the next one starts anew."""
    server.files['model.pth'], server.pause = weights(), 30
    process = multiprocessing.get_context('fork').Process(target=download, args=(f'{server.url}/model.pth', ))
    process.start()
    assert server.started.wait(10)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not (cache / 'model.pth').exists()
    server.pause = 0
    assert download(f'{server.url}/model.pth').read_bytes() == server.files['model.pth']


def test_wrong_hash(server, cache):
    name = hashed(b'another file')
    server.files[name] = weights()
    with pytest.raises(InputError) as error:
        download(f'{server.url}/{name}')
    assert_one_sentence(error, f'{server.url}/{name}', 'hash in its name')
    assert not list(cache.iterdir())


def test_stale_file_is_replaced(server, cache):
    content = weights()
    name = hashed(content)
    server.files[name] = content
    cache.mkdir(parents=True)
    (cache / name).write_bytes(content[:5000])
    assert download(f'{server.url}/{name}').read_bytes() == content


def test_stale_file_stays_when_it_cannot_be_replaced(server, cache):
    """It is not read all the same."""
    name = hashed(weights())
    cache.mkdir(parents=True)
    (cache / name).write_bytes(b'stale')
    with pytest.raises(InputError, match='Not Found'):
        read_checkpoint(f'{server.url}/{name}')


def test_no_such_page(server, cache):
    with pytest.raises(InputError) as error:
        read_checkpoint(f'{server.url}/absent.pth')
    assert_one_sentence(error, f'{server.url}/absent.pth', 'Not Found', 'path of a copy', str(cache / 'absent.pth'))
    assert not list(cache.iterdir())


def test_nobody_answers(cache):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        url = f'http://127.0.0.1:{free.getsockname()[1]}/model.pth'
        with pytest.raises(InputError) as error:
            read_checkpoint(url)
    assert_one_sentence(error, url, 'refused', 'path of a copy', str(cache / 'model.pth'))


def test_an_address_without_a_file_name(server, cache):
    with pytest.raises(InputError) as error:
        read_checkpoint(f'{server.url}/')
    assert_one_sentence(error, server.url)


def read_in(queue, url: str, rank: int = 0, meeting: str = '') -> None:
    """In a process of its own: what is read, or the error."""
    if meeting:
        os.environ['LOCAL_RANK'] = str(rank)
        torch.distributed.init_process_group('gloo', init_method=f'file://{meeting}', rank=rank, world_size=2)
    try:
        queue.put(float(read_checkpoint(url)['a'].sum()))
    except Exception as error:
        queue.put(repr(error))


@pytest.mark.parametrize('distributed', [False, True])
def test_two_processes(distributed, server, cache, tmp_path):
    """Two that know nothing of one another, and two of one run, of which one downloads."""
    server.files['model.pth'], server.pause = weights(), .3
    context = multiprocessing.get_context('fork')
    queue, meeting = context.Queue(), str(tmp_path / 'meeting') if distributed else ''
    processes = [context.Process(target=read_in, args=(queue, f'{server.url}/model.pth', rank, meeting))
                 for rank in range(2)]
    for process in processes:
        process.start()
    assert [queue.get(timeout=60) for _ in processes] == [float(torch.arange(20000.).sum())] * 2
    for process in processes:
        process.join()
    assert len(server.requests) == (1 if distributed else 2)
    assert os.listdir(cache) == ['model.pth']
