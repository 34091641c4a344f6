"""Reading the json logs of trainings."""
import json
import math
from pathlib import Path

import pytest

from swin_rpe_mm.errors import InputError
from tools.lib.run_logs import Series, find_log, read_log


def write(path: Path, *records: dict, end: str = '') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(json.dumps(record) for record in records) + end)
    return path


def iteration(number: int, **figures: float) -> dict:
    return dict(lr=0.1, **figures, iter=number, step=number)


def test_training_and_validation(tmp_path):
    """A validation's step is an epoch or an iteration; its place is where training had come to."""
    log = read_log(write(
        tmp_path / 'scalars.json', iteration(50, loss=2.), iteration(100, loss=math.nan),
        dict({'coco/bbox_mAP': .25, 'time': .5}, step=1), {'rpe/a/ratio': 3., 'iter': 150, 'step': 150},
        iteration(150, loss=1., time=.1), dict({'coco/bbox_mAP': .5}, step=200)))
    assert log.training['loss'].iterations == [50, 100, 150]
    assert log.training['loss'].values[::2] == [2., 1.] and math.isnan(log.training['loss'].values[1])
    assert log.training['rpe/a/ratio'] == Series([150], [3.])
    assert log.validation['coco/bbox_mAP'] == Series([100, 200], [.25, .5])
    assert log.figures['time'] == Series([150], [.1])
    assert set(log.figures) == {'lr', 'loss', 'rpe/a/ratio', 'coco/bbox_mAP', 'time'}


def test_log_that_is_being_written(tmp_path):
    log = read_log(write(tmp_path / 'a.json', iteration(1, loss=2.), iteration(2, loss=1.), end='\n{"loss": 0.'))
    assert log.training['loss'] == Series([1, 2], [2., 1.])


def test_latest_training_of_a_work_dir(tmp_path):
    write(tmp_path / '20260101_000000/vis_data/scalars.json', iteration(1, loss=1.))
    latest = write(tmp_path / '20260102_000000/vis_data/scalars.json', iteration(1, loss=2.))
    write(tmp_path / '20260103_000000/vis_data/scalars.json', dict(mIoU=70., step=0))  # a test
    for path in (tmp_path, latest.parent.parent, latest.parent, latest):
        assert find_log(path) == latest
    assert find_log(tmp_path / '20260101_000000').parts[-3] == '20260101_000000'


@pytest.mark.parametrize('make, sentence', [
    (lambda path: path, 'does not exist: give a json log of a training, or the folder it was trained in'),
    (lambda path: write(path / 'b/c.json').parent, 'holds no json log of a training: neither scalars.json nor'),
    (lambda path: write(path / 'a.json', end='lr 0.1'), 'is no json log of a training: line 1 is not json'),
    (lambda path: write(path / 'a.json', [1]), 'is no json log of a training: line 1 holds no names and values'),
])
def test_what_is_no_log(tmp_path, make, sentence):
    with pytest.raises(InputError) as error:
        read_log(make(tmp_path / 'run'))
    assert sentence in str(error.value) and str(tmp_path / 'run') in str(error.value)
