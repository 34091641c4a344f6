"""The whole demo on a few images and iterations: all that it promises is there, and its numbers are the trainings'."""
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import pytest
from tiny import REPO

from swin_rpe_mm.mm.configs import has_ops

pytestmark = pytest.mark.slow
DETECTION, SEGMENTATION = 'mask-rcnn_swin-rpe-nano_fpn_shapes', 'upernet_swin-rpe-nano_shapes'
# each config's name in the text, and its metrics: name in the table, name in the log, factor
MODELS = {
    DETECTION: ('Mask R-CNN', [('box AP', 'coco/bbox_mAP', 1), ('mask AP', 'coco/segm_mAP', 1)]),
    SEGMENTATION: ('UPerNet', [('mIoU', 'mIoU', 0.01)]),
}
TRAINED = [config for config in MODELS if config == SEGMENTATION or has_ops()]
METRICS = [metric for config in TRAINED for metric, _, _ in MODELS[config][1]]

every_config = pytest.mark.parametrize('config', [
    pytest.param(DETECTION, marks=pytest.mark.needs_ops), SEGMENTATION])


@pytest.fixture(scope='module')
def demo(tmp_path_factory) -> SimpleNamespace:
    """One smoke run of the demo: its text, its work folder, and what mmengine logged in each training."""
    out = tmp_path_factory.mktemp('demo')
    ended = subprocess.run(
        [sys.executable, str(REPO / 'tools/demo.py'), '--smoke', '--out', str(out)],
        capture_output=True, text=True, timeout=900, cwd=out, env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    work_dir, = out.iterdir()
    records = {}
    for config in TRAINED:
        log, = (work_dir / config).glob('*/vis_data/scalars.json')
        records[config] = [json.loads(line) for line in log.read_text().splitlines()]
    return SimpleNamespace(text=ended.stdout, work_dir=work_dir, records=records)


@every_config
def test_losses_are_finite_and_fall(demo, config):
    losses = [record['loss'] for record in demo.records[config] if 'loss' in record]
    assert len(losses) >= 10
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-3:]) < sum(losses[:3])


def test_metrics_are_those_of_the_validations(demo):
    results = json.loads((demo.work_dir / 'results.json').read_text())
    assert results.keys() == {*METRICS, 'seconds'}
    for config in TRAINED:
        for metric, name, factor in MODELS[config][1]:
            assert results[metric] == demo.records[config][-1][name] * factor
            assert 0 <= results[metric] <= 1
    assert results['mIoU'] > 0


@every_config
def test_pictures_show_truth_beside_prediction(demo, config):
    pictures = sorted((demo.work_dir / 'pictures').glob(f'{config}_*.png'))
    assert len(pictures) >= 4
    for path in pictures:
        plain = cv2.imread(str(demo.work_dir / 'shapes/img_dir/val' / path.name.replace(f'{config}_', '')))
        picture = cv2.imread(str(path))
        scale = picture.shape[0] // plain.shape[0]
        assert picture.shape == (scale * plain.shape[0], 2 * scale * plain.shape[1], 3)
        large = plain.repeat(scale, 0).repeat(scale, 1)
        truth = picture[:, :large.shape[1]]
        assert (truth != large).any(), 'no truth is drawn'
        assert truth.std() > 5, 'the picture is blank'


def test_table_ends_the_run_and_what_it_names_exists(demo):
    table = demo.text[demo.text.index('measured'):]
    results = json.loads((demo.work_dir / 'results.json').read_text())
    for name in METRICS:
        assert f'{name:10}{results[name]:8.3f}' in table
    assert 'total time' in table
    paths = [Path(word) for word in table.split() if word.startswith(str(demo.work_dir))]
    assert len([path for path in paths if path.suffix == '.pth']) == len(TRAINED) + 1  # one more in the next command
    assert all(path.exists() for path in paths)


def test_progress_and_eta_are_lines_of_text(demo):
    names = [MODELS[config][0] for config in TRAINED]
    assert [line for line in demo.text.splitlines() if all(name in line for name in [*names, 'loss'])]
    assert '\x1b' not in demo.text


def test_a_model_is_left_out_only_where_it_cannot_run(demo):
    assert {path.name for path in demo.work_dir.glob('*_shapes')} == set(TRAINED)
    assert ('so Mask R-CNN is left out' in demo.text) is not has_ops()
