"""Fixtures for the tests of the tools."""
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import REPO, TASKS, draw_data, load_tool, write_config


@pytest.fixture(params=TASKS)
def task(request) -> str:
    """Both tasks."""
    return request.param


@pytest.fixture
def tiny_data(tmp_path: Path) -> Path:
    """A data set of its own for each test, which may spoil it."""
    return draw_data(tmp_path / 'data')


@pytest.fixture
def make_config(tmp_path: Path, tiny_data: Path) -> Callable[..., str]:
    """``make_config(task, extra='', data=..., name=...)`` writes a config for the tiny data and returns its path."""

    def make(task: str, extra: str = '', data: Path | str = tiny_data, name: str = 'tiny') -> str:
        return str(write_config(tmp_path / 'configs' / f'{name}_{task}.py', task, data, extra))

    return make


@pytest.fixture(scope='session')
def train_tool() -> Callable:
    """``main`` of ``tools/train.py``."""
    return load_tool('train')


@pytest.fixture(scope='session')
def test_tool() -> Callable:
    """``main`` of ``tools/test.py``."""
    return load_tool('test')


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """``command(tool, *args, **environment)`` runs a script of ``tools/`` elsewhere and returns how it ended."""

    def run(tool: str, *args: str, **environment: str) -> subprocess.CompletedProcess:
        program = sys.executable if tool.endswith('.py') else 'bash'
        (tmp_path / 'elsewhere').mkdir(exist_ok=True)
        path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'  # the scripts call plain python
        env = {**os.environ, 'PATH': path, 'OMP_NUM_THREADS': '1', **environment}
        return subprocess.run(
            [program, str(REPO / 'tools' / tool), *args],
            cwd=tmp_path / 'elsewhere', env=env, capture_output=True, text=True, timeout=300)

    return run
