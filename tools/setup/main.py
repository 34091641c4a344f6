"""The steps of set-up, in order. Each one looks first whether it is done, so an interrupted set-up goes on."""
from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

from tools.setup import machine as machines
from tools.setup import stamp as stamps
from tools.setup.console import SetupError, duration, last_line, run, say, tail
from tools.setup.mmcv import MMCVBuild
from tools.setup.ops import Choice, Torch, cache_key, choose, jobs

ROOT = Path(__file__).resolve().parents[2]
# What the builds without isolation need; the releases are those of lock.txt.
BUILD_TOOLS = ['setuptools', 'wheel', 'ninja', 'packaging', 'numpy']
ASK_TORCH = """
import json, torch
arch = '.'.join(map(str, torch.cuda.get_device_capability())) if torch.cuda.is_available() else None
print(json.dumps([torch.__version__, torch.version.cuda, arch]))
"""


@dataclass(frozen=True)
class Environment:
    """One of the environments that set-up makes; they differ in their MM packages alone.

    Attributes:
        folder: its place below the repository.
        packages: the file of requirements/ that names its MM packages.
        next: what can be done in it.
    """
    folder: str
    packages: str
    next: str


ENVIRONMENTS = {'onedl': Environment('.venv', 'onedl.txt', 'make demo'),
                'upstream': Environment('.venv-upstream', 'upstream.txt', 'make test-upstream')}


def requirements(file: Path) -> list[str]:
    """The requirements of a file, one a line."""
    return [line for line in file.read_text().split('\n') if line and not line.startswith('#')]


def half_installed(site_packages: Path) -> list[Path]:
    """Records of packages whose installation was cut off; pip would take them for whole ones."""
    return [info for info in site_packages.glob('*.dist-info') if not (info / 'INSTALLER').is_file()]


def clean_environment() -> dict[str, str]:
    """This process's environment without what would lead pip or Python out of the new one."""
    drop = {'PYTHONPATH', 'PYTHONHOME', 'PIP_USER', 'PIP_TARGET', 'PIP_PREFIX', 'PIP_ROOT', 'VIRTUAL_ENV'}
    return {name: value for name, value in os.environ.items() if name not in drop}


class Setup:
    """One run of set-up in the repository ``root``."""

    steps = 6

    def __init__(self, root: Path, machine: machines.Machine, environment: Environment):
        self.root, self.machine = root, machine
        mm = requirements(root / 'requirements' / environment.packages)
        self.mmcv = next(line for line in mm if 'mmcv' in line)
        self.mm = [line for line in mm if line != self.mmcv]
        self.venv = root / environment.folder
        self.python = self.venv / 'bin/python'
        self.log = self.venv / 'setup.log'
        self.env = {**clean_environment(), 'PYTHONNOUSERSITE': '1'}
        self.env['PATH'] = f'{self.venv / "bin"}{os.pathsep}{self.env.get("PATH", "")}'
        if machine.compiler and 'CXX' not in self.env and shutil.which('c++') is None:
            self.env['CXX'] = machine.compiler
        self.step = 0

    def run(self) -> tuple[Choice, Torch]:
        """All steps; which ops there are in the end, and for which torch."""
        self._say('checks')
        for note in machines.check(self.root, self.machine, self._has_environment()):
            say(f'      note: {note}')
        limit = choose(self.machine, None)
        if limit.lost:
            say(f'      note: {limit.lost}')
        self._make_environment()
        torch = self._install_packages()
        choice = self._install_mmcv(torch)
        self._say('swin_rpe_mm: linking this folder into the environment')
        self._pip('install', '--no-deps', '--no-build-isolation', '-e', str(self.root))
        self._install_peers()
        return choice, torch

    def _has_environment(self) -> bool:
        """Whether the folder is an environment of this Python, in this place."""
        if not self.python.exists():
            return False
        ask = 'import pip, sys; print(sys.prefix, *sys.version_info[:2])'
        answer = self._ask(ask)
        return answer.stdout.split('\n')[0] == f'{self.venv} {sys.version_info[0]} {sys.version_info[1]}'

    def _make_environment(self) -> None:
        if self._has_environment():
            self._say(f'{self.venv.name}: there already')
        else:
            self._say(f'{self.venv.name}: making the environment, about 5 s')
            made = subprocess.run([sys.executable, '-m', 'venv', '--clear', self.venv], capture_output=True, text=True,
                                  env=self.env, check=False)
            if made.returncode:
                raise SetupError(f'`{sys.executable} -m venv --clear {self.venv}` failed: {made.stdout}{made.stderr}')
        for info in half_installed(Path(sysconfig.get_path('purelib', 'venv', {'base': str(self.venv)}))):
            shutil.rmtree(info)

    def _install_packages(self) -> Torch:
        """Install torch with what it needs, then every other package, exactly as pinned."""
        folder = self.root / 'requirements'
        torch, lock = requirements(folder / 'torch.txt'), str(folder / 'lock.txt')
        self._say(f'packages: {", ".join(torch)} and the pinned rest, about 2 minutes')
        self._pip('install', '-c', lock, *torch, *BUILD_TOOLS)
        self._pip('install', '--no-deps', '--no-build-isolation', '-r', lock, *self.mm)
        answer = self._ask(ASK_TORCH)
        if answer.returncode:
            raise SetupError(f'torch was installed but cannot be imported: {answer.stderr.strip()}')
        return Torch(*json.loads(answer.stdout.strip().split('\n')[-1]))

    def _install_mmcv(self, torch: Torch) -> Choice:
        """Install mmcv with the best ops this machine can have: as installed, else from the cache, else built."""
        choice = choose(self.machine, torch.cuda)
        key = cache_key(torch, self.mmcv.split('==')[1], f'cp{sys.version_info[0]}{sys.version_info[1]}',
                        f'{sys.platform}-{platform.machine()}', choice.level)
        cache = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache', 'swin_rpe_mm/wheels', key)
        build = MMCVBuild(self.python, self.mmcv, choice.level, torch, cache, self.log, self.env)
        kind = {'none': 'without ops', 'cpu': 'with ops for the CPU', 'cuda': 'with ops for CPU and CUDA'}[choice.level]
        if build.installed_works():
            self._say(f'mmcv {kind}: there already')
        elif build.cached() and self._from_cache(build, kind):
            pass
        else:
            self._say(f'mmcv {kind}: building it, only this once')
            memory = os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9
            wheel = build.build(jobs(machines.cores(), memory))
            if not build.install(wheel):
                wheel.unlink()
                raise SetupError(f'mmcv was built but does not work; the end of {self.log}:\n{tail(self.log)}')
            say(f'      kept for the next clone: {wheel}')
        build.clean()
        return choice

    def _from_cache(self, build: MMCVBuild, kind: str) -> bool:
        self._say(f'mmcv {kind}: installing the wheel that an earlier set-up built')
        if build.install(build.cached()):
            return True
        say('      it does not work here, so it is built anew')
        build.cached().unlink()
        self.step -= 1
        return False

    def _install_peers(self) -> None:
        """Install what tests compare with beside the environment. Everything else works without it."""
        wanted, folder, new = self.root / 'requirements/peers.txt', self.venv / 'peers', self.venv / 'peers.new'
        installed = folder / wanted.name
        if installed.is_file() and installed.read_bytes() == wanted.read_bytes():
            self._say('peers that tests compare with: there already')
            return
        self._say('peers that tests compare with, about 10 s')
        for old in (folder, new):
            shutil.rmtree(old, ignore_errors=True)
        try:
            self._pip('install', '--no-deps', '--no-compile', '--target', str(new), '-r', str(wanted))
        except SetupError:
            say(f'      note: they cannot be installed (see {self.log}), so tests that compare with them are skipped.')
            return
        shutil.copy(wanted, new)
        new.rename(folder)

    def _ask(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.python, '-c', code], capture_output=True, text=True, env=self.env, check=False)

    def _pip(self, *arguments: str) -> None:
        command = [str(self.python), '-m', 'pip', *arguments, '--disable-pip-version-check', '--no-input',
                   '--progress-bar', 'off']
        if not run(command, self.log, self.env, lambda _: last_line(self.log)):
            raise SetupError(f'pip failed (is there a connection?); the end of {self.log}:\n{tail(self.log)}')

    def _say(self, text: str) -> None:
        self.step += 1
        say(f'[{self.step}/{self.steps}] {text}')


def stop(number: int, frame: object) -> None:
    """End like Ctrl-C does, so that the command that is running is ended too."""
    raise KeyboardInterrupt


def main() -> int:
    """Do what is left to do; the exit status."""
    parser = argparse.ArgumentParser(prog='python3.11 -m tools.setup', description=__doc__)
    parser.add_argument('--quiet', action='store_true', help='say nothing when nothing is left to do')
    parser.add_argument('--packages', choices=ENVIRONMENTS, default='onedl',
                        help='whose MM packages: those of the maintained forks in .venv, or upstream in .venv-upstream')
    args = parser.parse_args()
    environment = ENVIRONMENTS[args.packages]
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    machine, key, venv = machines.look(), stamps.key_of(ROOT, stamps.inputs(ROOT)), ROOT / environment.folder
    with open(__file__, 'rb+') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say('Another set-up is running in this folder; waiting for it.')
            fcntl.flock(lock, fcntl.LOCK_EX)
        done = stamps.read(venv)
        if stamps.is_done(done, key, machine):
            lost = choose(machine, done.torch_cuda).lost if done.level != 'cuda' else None
            if lost or not args.quiet:
                say(f'Set-up is done. Note: {lost}' if lost else f'Set-up is done. Next: {environment.next}')
            return 0
        start = time.monotonic()
        say(f'Setting up swin_rpe_mm for Python {platform.python_version()} on {machines.cores()} cores; '
            f'details go to {environment.folder}/setup.log')
        (venv / stamps.NAME).unlink(missing_ok=True)
        try:
            choice, torch = Setup(ROOT, machine, environment).run()
        except SetupError as error:
            say(f'Set-up stopped after {duration(time.monotonic() - start)}: {error}')
            return 1
        except KeyboardInterrupt:
            say('\nSet-up was interrupted; the same command goes on from here.')
            return 130
        stamps.write(venv, stamps.Stamp(key, choice.level, torch.cuda, machine))
        say(f'Set-up is done in {duration(time.monotonic() - start)}. '
            + (f'Note: {choice.lost}' if choice.lost else f'Next: {environment.next}'))
    return 0
