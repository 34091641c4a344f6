"""The Shapes data set: the same for the same seed, both kinds of labels agree, and a folder is complete or absent."""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO
from tiny import MMCV_LITE, REPO

from swin_rpe_mm.errors import InputError

SCRIPT = REPO / 'tools/dataset_converters/shapes.py'
COUNTS = dict(train=12, val=6)


@pytest.fixture(scope='module')
def shapes():
    """The generator as a module."""
    spec = importlib.util.spec_from_file_location('shapes_tool', SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def data(shapes, tmp_path_factory) -> Path:
    """A small data set."""
    out = tmp_path_factory.mktemp('shapes') / 'data'
    assert shapes.generate(out, seed=3, **COUNTS)
    return out


def content(root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob('*')) if path.is_file()}


def label_map(data: Path, split: str, name: str) -> np.ndarray:
    return cv2.imread(str(data / 'ann_dir' / split / name), cv2.IMREAD_UNCHANGED)


@pytest.fixture(params=['train', 'val'])
def split(request, data) -> tuple[str, COCO]:
    """A split's name and its COCO annotations."""
    return request.param, COCO(str(data / f'annotations/instances_{request.param}.json'))


class TestSeed:

    def test_same_seed_same_files(self, shapes, data, tmp_path):
        shapes.generate(tmp_path / 'again', seed=3, **COUNTS)
        assert content(tmp_path / 'again') == content(data)

    def test_another_seed_another_image(self, shapes, data, tmp_path):
        shapes.generate(tmp_path / 'other', seed=4, train=1, val=1)
        name = 'img_dir/train/000000.png'
        assert (tmp_path / 'other' / name).read_bytes() != (data / name).read_bytes()

    def test_more_images_leave_the_first_as_they_are(self, shapes, data, tmp_path):
        shapes.generate(tmp_path / 'fewer', seed=3, train=4, val=2)
        fewer, all_files = content(tmp_path / 'fewer'), content(data)
        pictures = [name for name in fewer if name.endswith('.png')]
        assert len(pictures) == 2 * (4 + 2)
        assert all(fewer[name] == all_files[name] for name in pictures)

    def test_splits_share_no_image(self, data):
        pictures = [cv2.imread(str(path)).tobytes() for path in sorted(data.glob('img_dir/*/*.png'))]
        assert len(set(pictures)) == sum(COUNTS.values())


class TestLabels:

    def test_polygons_give_exactly_the_label_map(self, data, split):
        name, coco = split
        assert len(coco.imgs) == COUNTS[name]
        for image in coco.imgs.values():
            drawn = np.zeros((image['height'], image['width']), np.uint8)
            for annotation in coco.loadAnns(coco.getAnnIds(image['id'])):
                mask = coco.annToMask(annotation).astype(bool)
                assert not drawn[mask].any(), 'visible parts of two instances overlap'
                drawn[mask] = annotation['category_id']
            np.testing.assert_array_equal(drawn, label_map(data, name, image['file_name']))

    def test_boxes_and_areas_are_those_of_the_visible_pixels(self, split):
        for annotation in split[1].anns.values():
            mask = split[1].annToMask(annotation)
            x, y, w, h = annotation['bbox']
            inside = mask[y:y + h, x:x + w]
            assert annotation['area'] == mask.sum() == inside.sum() > 0
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()

    def test_all_shapes_and_the_background_are_there(self, shapes, data):
        labels = np.concatenate([label_map(data, 'train', p.name).ravel() for p in data.glob('ann_dir/train/*.png')])
        assert set(np.unique(labels)) == set(range(len(shapes.SHAPES) + 1))

    def test_some_shapes_are_seen_in_two_parts_and_none_is_hidden(self, shapes):
        hidden = 0
        for seed in range(60):
            _, owner, classes = shapes.draw_scene(np.random.default_rng(seed))
            assert set(np.unique(owner)) == set(range(len(classes) + 1))
            hidden += sum(len(shapes.polygons(owner == index + 1)) > 1 for index in range(len(classes)))
        assert hidden > 0, 'no instance has two visible parts'

    def test_sizes_are_mixed(self, split):
        sides = [(image['height'], image['width']) for image in split[1].imgs.values()]
        assert len(set(sides)) > len(sides) // 2
        assert any(h > w for h, w in sides) and any(w > h for h, w in sides)

    def test_images_have_the_size_that_is_written(self, data, split):
        name, coco = split
        for image in coco.imgs.values():
            size = (image['height'], image['width'])
            assert cv2.imread(str(data / 'img_dir' / name / image['file_name'])).shape == (*size, 3)
            assert label_map(data, name, image['file_name']).shape == size


class TestFolder:

    def test_nothing_to_do_when_it_is_there(self, shapes, data):
        before = {path: path.stat().st_mtime_ns for path in data.rglob('*')}
        assert not shapes.generate(data, seed=3, **COUNTS)
        assert {path: path.stat().st_mtime_ns for path in data.rglob('*')} == before

    def test_another_set_is_not_overwritten(self, shapes, data):
        before = content(data)
        with pytest.raises(InputError, match='already holds another Shapes data set'):
            shapes.generate(data, seed=5, **COUNTS)
        assert content(data) == before

    def test_foreign_files_are_not_touched(self, shapes, tmp_path):
        (tmp_path / 'mine.txt').write_text('mine')
        with pytest.raises(InputError, match='is not a Shapes data set'):
            shapes.generate(tmp_path, seed=0, train=1, val=1)
        assert [path.name for path in tmp_path.iterdir()] == ['mine.txt']

    def test_a_failure_leaves_nothing(self, shapes, tmp_path, monkeypatch):
        calls = []

        def fail_late(path, pixels):
            calls.append(path)
            if len(calls) == 3:
                raise InputError('the disk is full')

        monkeypatch.setattr(shapes, 'write_png', fail_late)
        with pytest.raises(InputError, match='the disk is full'):
            shapes.generate(tmp_path / 'data', seed=0, train=2, val=1)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize('wrong', [dict(seed=-1), dict(train=0), dict(val=-3)])
    def test_wrong_numbers(self, shapes, tmp_path, wrong):
        with pytest.raises(InputError, match='must be at least'):
            shapes.generate(tmp_path / 'data', **{**dict(seed=0, train=1, val=1), **wrong})
        assert not list(tmp_path.iterdir())


class TestCommand:

    def run(self, *args: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, '-W', MMCV_LITE, str(SCRIPT), *args], capture_output=True, text=True, timeout=120)

    def test_help_names_every_argument(self):
        text = self.run('--help').stdout
        assert all(name in text for name in ('--out', '--seed', '--train', '--val'))

    def test_writes_says_so_and_then_says_that_it_is_there(self, tmp_path):
        args = ('--out', str(tmp_path / 'deep/data'), '--train', '2', '--val', '1')
        first, second = self.run(*args), self.run(*args)
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        assert f'wrote {tmp_path}' in first.stdout
        assert 'nothing to do' in second.stdout
        manifest = json.loads((tmp_path / 'deep/data/shapes.json').read_text())
        assert (manifest['seed'], manifest['train'], manifest['val']) == (0, 2, 1)

    def test_wrong_input_is_one_sentence(self, tmp_path):
        (tmp_path / 'file').write_text('')
        ended = self.run('--out', str(tmp_path / 'file/data'), '--train', '1', '--val', '1')
        assert ended.returncode == 2
        assert ended.stderr.startswith('error: ') and ended.stderr.count('\n') == 1
