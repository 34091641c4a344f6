"""Set-up: what it decides from the facts of a machine, and when it counts as done. Nothing is built here."""
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.setup import machine as machines
from tools.setup import ops, stamp
from tools.setup.console import SetupError, duration, remaining, run
from tools.setup.main import ENVIRONMENTS, Environment, Setup, clean_environment, half_installed, requirements

ROOT = Path(__file__).resolve().parents[2]
BARE = machines.Machine(compiler=None, python_headers=False, nvcc=None, gpu=False)
CPU = machines.Machine(compiler='/usr/bin/c++', python_headers=True, nvcc=None, gpu=False)
GPU = dataclasses.replace(CPU, gpu=True)
TOOLKIT = dataclasses.replace(GPU, nvcc='13.0')
TORCH = ops.Torch(version='2.13.0+cu130', cuda='13.0', arch='9.0')


class TestChoice:

    @pytest.mark.parametrize(('machine', 'torch_cuda', 'level', 'hints'), [
        (BARE, None, 'none', ('g++', 'python3-dev')),
        (dataclasses.replace(CPU, compiler=None), None, 'none', ('g++',)),
        (dataclasses.replace(TOOLKIT, python_headers=False), '13.0', 'none', ('python3-dev',)),
        (CPU, None, 'cpu', ()),
        (CPU, '13.0', 'cpu', ()),
        (TOOLKIT, None, 'cpu', ()),
        (GPU, '13.0', 'cpu', ('nvcc', '13.0')),
        (dataclasses.replace(GPU, nvcc='12.8'), '13.0', 'cpu', ('12.8', '13.0')),
        (dataclasses.replace(GPU, nvcc='13.2'), '13.0', 'cuda', ()),
        (TOOLKIT, '13.0', 'cuda', ()),
    ])
    def test_level_and_what_to_install(self, machine, torch_cuda, level, hints):
        choice = ops.choose(machine, torch_cuda)
        assert choice.level == level
        assert (choice.lost is not None) == bool(hints)
        for hint in hints:
            assert hint in choice.lost

    def test_only_what_is_missing_is_asked_for(self):
        lost = ops.choose(dataclasses.replace(CPU, compiler=None), None).lost
        assert 'python3-dev' not in lost

    def test_a_sentence_ends_once(self):
        for machine in (BARE, GPU, dataclasses.replace(GPU, nvcc='12.8')):
            lost = ops.choose(machine, '13.0').lost
            assert lost.endswith('.')
            assert lost.count('. ') == 0


class TestBuild:

    def test_the_build_for_the_cpu_never_sees_a_gpu(self):
        env = ops.build_environment('cpu', TORCH, 4, Path('/b/header.hpp'))
        assert env['CUDA_VISIBLE_DEVICES'] == ''
        assert (env['MMCV_WITH_OPS'], env['FORCE_CUDA'], env['MAX_JOBS']) == ('1', '0', '4')
        assert '-I/b -include /b/header.hpp' in env['CFLAGS']

    def test_the_build_for_cuda_is_for_the_gpu_that_is_there(self, monkeypatch):
        monkeypatch.delenv('TORCH_CUDA_ARCH_LIST', raising=False)
        env = ops.build_environment('cuda', TORCH, 4, None)
        assert (env['MMCV_WITH_OPS'], env['FORCE_CUDA']) == ('1', '1')
        assert env['TORCH_CUDA_ARCH_LIST'] == '9.0'
        assert 'CUDA_VISIBLE_DEVICES' not in env
        assert 'include' not in env['CFLAGS']

    def test_the_architectures_that_were_asked_for_are_kept(self, monkeypatch):
        monkeypatch.setenv('TORCH_CUDA_ARCH_LIST', '8.0;9.0')
        assert ops.build_environment('cuda', TORCH, 4, None)['TORCH_CUDA_ARCH_LIST'] == '8.0;9.0'

    def test_without_ops(self):
        assert ops.build_environment('none', TORCH, 1, None)['MMCV_WITH_OPS'] == '0'

    def test_everything_that_a_binary_depends_on_is_in_its_key(self):
        base = dict(torch=TORCH, mmcv_version='2.3.6', python='cp311', platform='linux-x86_64', level='cpu')
        others = [dict(torch=dataclasses.replace(TORCH, version='2.13.0+cpu')), dict(mmcv_version='2.3.7'),
                  dict(python='cp312'), dict(platform='linux-aarch64'), dict(level='none'), dict(level='cuda')]
        keys = {ops.cache_key(**{**base, **other}) for other in [{}, *others]}
        assert len(keys) == 7
        assert all('/' not in key for key in keys)

    def test_a_cuda_wheel_is_kept_per_gpu(self):
        keys = {ops.cache_key(dataclasses.replace(TORCH, arch=arch), '2.3.6', 'cp311', 'linux-x86_64', level)
                for arch in ('8.0', '9.0') for level in ('cpu', 'cuda')}
        assert len(keys) == 3

    @pytest.mark.parametrize(('cores', 'memory', 'jobs'), [(2, 24, 2), (64, 12, 8), (8, 0.5, 1)])
    def test_compilers_fit_into_memory(self, cores, memory, jobs):
        assert ops.jobs(cores, memory) == jobs


class TestStamp:

    @pytest.fixture()
    def root(self, tmp_path):
        (tmp_path / 'requirements').mkdir()
        (tmp_path / 'tools/setup').mkdir(parents=True)
        (tmp_path / 'requirements/lock.txt').write_text('a==1\n')
        (tmp_path / 'tools/setup/main.py').write_text('pass\n')
        return tmp_path

    def key(self, root):
        return stamp.key_of(root, stamp.inputs(root))

    def test_what_was_written_is_read(self, tmp_path):
        written = stamp.Stamp('k', 'cpu', None, CPU)
        stamp.write(tmp_path, written)
        assert stamp.read(tmp_path) == written
        assert [file.name for file in tmp_path.iterdir()] == [stamp.NAME]

    @pytest.mark.parametrize('text', ['', '{', '[]', '{"key": "k"}', '{"key": "k", "level": "cpu", "machine": 1}'])
    def test_a_broken_stamp_is_none(self, tmp_path, text):
        (tmp_path / stamp.NAME).write_text(text)
        assert stamp.read(tmp_path) is None
        assert not stamp.is_done(stamp.read(tmp_path), 'k', CPU)

    def test_a_stamp_of_an_older_layout_is_none(self, tmp_path):
        fields = {**dataclasses.asdict(stamp.Stamp('k', 'cpu', None, CPU)), 'gone': 1}
        (tmp_path / stamp.NAME).write_text(json.dumps(fields))
        assert stamp.read(tmp_path) is None

    @pytest.mark.parametrize('file', ['requirements/lock.txt', 'requirements/new.txt', 'tools/setup/main.py'])
    def test_a_changed_input_is_not_done(self, root, file):
        before = self.key(root)
        assert self.key(root) == before
        (root / file).write_text('b==2\n')
        assert self.key(root) != before
        assert not stamp.is_done(stamp.Stamp(before, 'cpu', None, CPU), self.key(root), CPU)

    def test_a_moved_folder_is_not_done(self, root, tmp_path_factory):
        moved = tmp_path_factory.mktemp('moved') / 'repo'
        shutil.copytree(root, moved)
        assert self.key(moved) != self.key(root)

    @pytest.mark.parametrize(('level', 'cuda', 'then', 'now', 'done'), [
        ('cpu', None, CPU, CPU, True),
        ('none', None, BARE, BARE, True),
        ('none', None, BARE, CPU, False),  # a compiler has appeared
        ('none', None, BARE, dataclasses.replace(BARE, compiler='/usr/bin/c++'), True),  # but not Python.h
        ('cpu', '13.0', GPU, TOOLKIT, False),  # nvcc has appeared
        ('cpu', '13.0', CPU, GPU, True),
        ('cpu', None, CPU, TOOLKIT, True),  # torch is not built for CUDA
        ('cuda', '13.0', TOOLKIT, CPU, True),  # the GPU is elsewhere today
        ('cpu', None, CPU, BARE, True),
    ])
    def test_done_until_better_ops_are_possible(self, level, cuda, then, now, done):
        assert stamp.is_done(stamp.Stamp('k', level, cuda, then), 'k', now) is done


class TestMachine:

    def test_little_disk_is_refused_in_one_sentence(self):
        with pytest.raises(SetupError, match=r'^Set-up needs 4 GB of free disk here, but 1\.5 GB are free\.$'):
            machines.refuse(has_venv=True, free=1.5)

    def test_python_without_venv_is_refused(self):
        with pytest.raises(SetupError, match='python3.11-venv'):
            machines.refuse(has_venv=False, free=100)

    def test_no_compiler_on_path(self, monkeypatch, tmp_path):
        monkeypatch.setenv('PATH', str(tmp_path))
        monkeypatch.delenv('CXX', raising=False)
        assert machines.look().compiler is None

    @pytest.mark.parametrize('name', ['c++', 'g++', 'clang++'])
    def test_any_of_three_compilers_will_do(self, monkeypatch, tmp_path, name):
        (tmp_path / name).touch(mode=0o755)
        monkeypatch.setenv('PATH', str(tmp_path))
        monkeypatch.delenv('CXX', raising=False)
        assert machines.look().compiler == str(tmp_path / name)

    def test_release_of_nvcc(self, monkeypatch, tmp_path):
        nvcc = tmp_path / 'bin/nvcc'
        nvcc.parent.mkdir()
        nvcc.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.8, V12.8.93"\n')
        nvcc.chmod(0o755)
        monkeypatch.setenv('CUDA_HOME', str(tmp_path))
        assert machines.find_nvcc() == '12.8'

    def test_a_cuda_home_without_nvcc(self, monkeypatch, tmp_path):
        monkeypatch.setenv('CUDA_HOME', str(tmp_path))
        assert machines.find_nvcc() is None


class TestPackages:

    def test_every_requirement_is_pinned(self):
        for file in (ROOT / 'requirements').glob('*.txt'):
            lines = [line for line in file.read_text().split('\n') if line and not line.startswith('#')]
            assert lines
            assert all(line.count('==') == 1 for line in lines), file

    def test_one_cv2(self):
        lock = (ROOT / 'requirements/lock.txt').read_text().split('\n')
        assert [line.split('==')[0] for line in lines_of(lock, 'opencv')] == ['opencv-python-headless']

    def test_the_requirements_of_a_file(self, tmp_path):
        (tmp_path / 'a.txt').write_text('# why\n\na==1\nb==2\n')
        assert requirements(tmp_path / 'a.txt') == ['a==1', 'b==2']

    def test_environments_share_all_but_the_mm_packages(self):
        setups = [Setup(ROOT, CPU, environment) for environment in ENVIRONMENTS.values()]
        for setup, prefix in zip(setups, ('onedl-', '')):
            names = [line.split('==')[0] for line in (setup.mmcv, *setup.mm)]
            assert names[0] == f'{prefix}mmcv'
            assert {f'{prefix}mmengine', f'{prefix}mmsegmentation'} < set(names)
        assert len({setup.venv for setup in setups}) == 2
        assert not any('mm' in line for line in requirements(ROOT / 'requirements/lock.txt'))

    def test_a_cut_off_installation_is_found(self, tmp_path):
        for name, complete in (('whole-1.dist-info', True), ('half-1.dist-info', False)):
            (tmp_path / name).mkdir()
            (tmp_path / name / 'METADATA').touch()
            if complete:
                (tmp_path / name / 'INSTALLER').touch()
        assert [info.name for info in half_installed(tmp_path)] == ['half-1.dist-info']

    def test_nothing_leads_out_of_the_environment(self, monkeypatch):
        monkeypatch.setenv('PYTHONPATH', '/elsewhere')
        monkeypatch.setenv('PIP_USER', '1')
        monkeypatch.setenv('PIP_CERT', '/cert')
        env = clean_environment()
        assert not {'PYTHONPATH', 'PIP_USER'} & set(env)
        assert env['PIP_CERT'] == '/cert'


class TestPeers:

    @pytest.fixture()
    def setup(self, tmp_path, monkeypatch):
        """A set-up whose pip only makes the target folder, or fails."""
        (tmp_path / 'requirements').mkdir()
        (tmp_path / 'requirements/peers.txt').write_text('peer==1\n')
        (tmp_path / 'requirements/mm.txt').write_text('mmcv==1\n')
        setup = Setup(tmp_path, CPU, Environment('.venv', 'mm.txt', 'make demo'))
        setup.commands, setup.works = [], True

        def pip(command, *_):
            setup.commands.append(command)
            Path(command[command.index('--target') + 1]).mkdir(parents=True)
            setup.log.touch()
            return setup.works

        monkeypatch.setattr('tools.setup.main.run', pip)
        return setup

    def test_installed_once_beside_the_environment(self, setup, capsys):
        for _ in range(2):
            setup._install_peers()
        assert len(setup.commands) == 1
        assert '--no-deps' in setup.commands[0]
        assert [folder.name for folder in setup.venv.iterdir() if folder.is_dir()] == ['peers']
        assert 'there already' in capsys.readouterr().out

    def test_another_list_is_installed_anew(self, setup):
        setup._install_peers()
        (setup.venv / 'peers/gone').mkdir()
        (setup.root / 'requirements/peers.txt').write_text('peer==2\n')
        setup._install_peers()
        assert len(setup.commands) == 2
        assert [file.name for file in (setup.venv / 'peers').iterdir()] == ['peers.txt']

    def test_set_up_goes_on_without_them(self, setup, capsys):
        setup.works = False
        setup._install_peers()
        assert 'are skipped' in capsys.readouterr().out
        assert not (setup.venv / 'peers').exists()
        setup.works = True
        setup._install_peers()
        assert (setup.venv / 'peers').exists()


def lines_of(lines, word):
    return [line for line in lines if line.startswith(word)]


class TestConsole:

    @pytest.mark.parametrize(('seconds', 'text'), [(0.4, '0 s'), (59.4, '59 s'), (59.6, '1 min 0 s'), (75, '1 min 15 s')
                                                   ])
    def test_duration(self, seconds, text):
        assert duration(seconds) == text

    def test_remaining(self):
        assert remaining(2, 78, 10) == '2 of 78 files'
        assert remaining(26, 78, 40) == '26 of 78 files, about 1 min 20 s left'
        assert remaining(26, 78, 40, before=6) == '26 of 78 files, about 1 min 44 s left'
        assert remaining(78, 78, 40) == '78 of 78 files'

    def test_success_failure_and_log(self, tmp_path):
        log = tmp_path / 'log'
        assert run([sys.executable, '-c', 'print("fine")'], log, os.environ)
        assert not run([sys.executable, '-c', 'import sys; print("bad"); sys.exit(3)'], log, os.environ)
        assert 'fine' in log.read_text()
        assert 'bad' in log.read_text()


def test_finished_set_up_is_quick_and_says_so():
    """This environment's own set-up, where set-up made it."""
    packages = {ROOT / environment.folder: name for name, environment in ENVIRONMENTS.items()}.get(Path(sys.prefix))
    done = stamp.read(Path(sys.prefix))
    if packages is None or not stamp.is_done(done, stamp.key_of(ROOT, stamp.inputs(ROOT)), machines.look()):
        pytest.skip('the environment was not made by the set-up in its present state')
    command = [shutil.which('python3.11') or sys.executable, '-m', 'tools.setup', '--packages', packages]
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith('Set-up is done.')
    assert result.stdout.count('\n') == 1
