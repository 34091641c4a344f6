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
from conftest import REPO

pytestmark = pytest.mark.slow
CONFIGS = ('mask-rcnn_swin-rpe-nano_fpn_shapes', 'upernet_swin-rpe-nano_shapes')


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
    for config in CONFIGS:
        log, = (work_dir / config).glob('*/vis_data/scalars.json')
        records[config] = [json.loads(line) for line in log.read_text().splitlines()]
    return SimpleNamespace(text=ended.stdout, work_dir=work_dir, records=records)


@pytest.mark.parametrize('config', CONFIGS)
def test_losses_are_finite_and_fall(demo, config):
    losses = [record['loss'] for record in demo.records[config] if 'loss' in record]
    assert len(losses) >= 10
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-3:]) < sum(losses[:3])


def test_metrics_are_those_of_the_validations(demo):
    detection, segmentation = (demo.records[config][-1] for config in CONFIGS)
    results = json.loads((demo.work_dir / 'results.json').read_text())
    assert results['box AP'] == detection['coco/bbox_mAP']
    assert results['mask AP'] == detection['coco/segm_mAP']
    assert results['mIoU'] == pytest.approx(segmentation['mIoU'] / 100)
    assert all(0 <= results[name] <= 1 for name in ('box AP', 'mask AP', 'mIoU'))
    assert results['mIoU'] > 0


@pytest.mark.parametrize('config', CONFIGS)
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
    for name in ('box AP', 'mask AP', 'mIoU'):
        assert f'{name:10}{results[name]:8.3f}' in table
    assert 'total time' in table
    paths = [Path(word) for word in table.split() if word.startswith(str(demo.work_dir))]
    assert len([path for path in paths if path.suffix == '.pth']) == 3  # two checkpoints, one in the next command
    assert all(path.exists() for path in paths)


def test_progress_and_eta_are_lines_of_text(demo):
    lines = [line for line in demo.text.splitlines() if 'UPerNet' in line and 'Mask R-CNN' in line and 'loss' in line]
    assert lines
    assert '\x1b' not in demo.text
