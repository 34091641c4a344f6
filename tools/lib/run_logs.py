"""Reading the json logs that mmengine writes while a model is trained."""
from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from swin_rpe_mm.errors import InputError

_NOT_FIGURES = ('iter', 'epoch', 'step')


class Series(NamedTuple):
    """A figure in the course of a run.

    Attributes:
        iterations (list[int]): When it was logged, ascending.
        values (list[float]): What it was.
    """
    iterations: list[int]
    values: list[float]


class RunLog(NamedTuple):
    """The figures of a run by the names that they have in its log.

    Attributes:
        path (Path): The file.
        training, validation (dict[str, Series]): What was logged by training iterations and by validations.
    """
    path: Path
    training: dict[str, Series]
    validation: dict[str, Series]

    @property
    def figures(self) -> dict[str, Series]:
        """All of them; a name that training and validation have in common, such as ``time``, is that of training."""
        return {**self.validation, **self.training}


def find_log(path: str | Path) -> Path:
    """The json log of a run.

    Args:
        path (str | Path): The log itself, the folder of a run, or a ``work_dir``: then that of its latest run that
            trained.

    Raises:
        InputError: If there is none.
    """
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f'{path} does not exist: give a json log of a training, or the folder it was trained in')
    # runs are in folders named after the time they started; tests and validations beside them leave other records
    for pattern in ('scalars.json', 'vis_data/scalars.json', '*/vis_data/scalars.json'):
        for log in sorted(path.glob(pattern), reverse=True):
            if any('lr' in record for record in _records(log)):
                return log
    raise InputError(f'{path} holds no json log of a training: neither scalars.json nor vis_data/scalars.json nor '
                     'TIME/vis_data/scalars.json has a learning rate in it')


def read_log(path: str | Path) -> RunLog:
    """Read a json log of :class:`mmengine.visualization.LocalVisBackend`, ``scalars.json``.

    A validation is put where the training before it had come to: what its record has as ``step`` may be an epoch.

    Args:
        path (str | Path): See :func:`find_log`.

    Raises:
        InputError: If there is no such file, or it is no such log.
    """
    path = find_log(path)
    training, validation = {}, {}
    reached = 0
    for record in _records(path):
        if 'iter' in record:
            reached, series = int(record['iter']), training
        else:
            reached, series = max(reached, int(record.get('step', 0))), validation
        for key, value in record.items():
            if key not in _NOT_FIGURES and isinstance(value, (int, float)):
                iterations, values = series.setdefault(key, Series([], []))
                iterations.append(reached)
                values.append(float(value))
    return RunLog(path, training, validation)


def _records(path: Path) -> list[dict]:
    records = []
    lines = path.read_text(errors='replace').splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines) and records:  # a training is writing it, or was killed while it did
                break
            raise InputError(f'{path} is no json log of a training: line {number} is not json') from error
        if not isinstance(record, dict):
            raise InputError(f'{path} is no json log of a training: line {number} holds no names and values')
        records.append(record)
    return records
