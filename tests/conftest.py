"""Fixtures of all tests, and the table of worst errors at the end of a run."""
from pathlib import Path

import pytest
import torch
from needs import NO_OPS
from oracles.compare import FIGURES, record

from swin_rpe_mm.mm.configs import has_ops


def pytest_configure():
    """One thread, for fixtures of modules too, which are made before those of a test."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """One thread and one seed: a test gives the same numbers alone, in any order and on any machine."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


# what make test-fast leaves out beside tests that are marked themselves: programs, whole models, and long products of
# cases, of which others hold the same property for a few
SLOW = ('tools', 'sharding', 'configs', 'mm', 'visualization', 'real_data', 'checkpoints', 'test_api.py',
        'test_readme.py', 'executors/test_untouched.py', 'executors/test_executors.py', 'executors/test_packed.py',
        'executors/test_key_groups.py', 'models/test_traced.py', 'models/test_inside_models.py',
        'models/test_set_window_size.py', 'models/test_cross_window.py', 'rpe/test_contract.py', 'rpe/test_resample.py')


def pytest_collection_modifyitems(items):
    """Mark what is slow by its place, and skip what needs mmcv's compiled operators where it has none.

    Programs come first: of several processes, none is left with a file of minutes when the others are done.
    """
    folder = Path(__file__).parent
    items.sort(key=lambda item: not item.path.is_relative_to(folder / 'tools'))
    for item in items:
        place = item.path.relative_to(folder).as_posix()
        if any(place == slow or place.startswith(f'{slow}/') for slow in SLOW):
            item.add_marker(pytest.mark.slow)
    if not has_ops():
        for item in items:
            if item.get_closest_marker('needs_ops'):
                item.add_marker(pytest.mark.skip(reason=NO_OPS))


def pytest_sessionfinish(session):
    """Where several processes run the tests, each hands its worst errors to the one that prints them."""
    if hasattr(session.config, 'workeroutput'):
        session.config.workeroutput['figures'] = FIGURES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Take over the worst errors of a process that has ended; one that crashed has none."""
    for name, (error, count) in getattr(node, 'workeroutput', {}).get('figures', {}).items():
        record(name, error, count)


def pytest_terminal_summary(terminalreporter):
    """Print the worst error of each figure that was recorded."""
    if FIGURES:
        terminalreporter.section('worst errors')
        for name, (error, count) in sorted(FIGURES.items()):
            terminalreporter.line(f'{name:<60} {error:9.2e} over {count} comparisons')
