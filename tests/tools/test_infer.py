"""Inference on files, folders and patterns: what is written is what the model predicts."""
import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS
from pycocotools import mask as coco_masks
from random_weights import save_random_weights
from tiny import SIZE, load_tool

from swin_rpe_mm.errors import InputError

infer = load_tool('infer')


@pytest.fixture
def model(task, make_config, tmp_path):
    """Arguments of the tool, and the model behind them."""
    config = make_config(task)
    return [config, str(tmp_path / 'model.pth')], save_random_weights(config, tmp_path / 'model.pth')


@torch.no_grad()
def predictions(config: str, model: torch.nn.Module) -> list:
    """What the model predicts for the images of its test set, each alone."""
    dataset = DATASETS.build(Config.fromfile(config).test_dataloader.dataset)
    return [model.test_step(pseudo_collate([dataset[index]]))[0] for index in range(len(dataset))]


def test_results_are_the_models(model, task, tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples = predictions(model[0][0], model[1])
    folder, threshold = tiny_data / 'img_dir/val', 0.35
    (folder / 'more').mkdir()
    (folder / '4.jpg').rename(folder / 'more/4.jpg')
    infer([*model[0], str(folder), str(folder / '[0-2].jpg'), '--out', 'made', '--batch-size', '2', '--score-thr',
           str(threshold)])
    names = [str(index) for index in range(5)]
    assert sorted(path.stem for path in (tmp_path / 'made').glob('*.png')) == names
    assert sorted(path.stem for path in (tmp_path / 'made').glob('*.json')) == names
    for index, sample in enumerate(samples):
        found = json.loads((tmp_path / f'made/{index}.json').read_text())
        picture = cv2.imread(str(tmp_path / f'made/{index}.png'))
        assert picture.shape == (10 * SIZE, 10 * SIZE, 3) and picture.std() > 5
        assert (found['height'], found['width']) == (SIZE, SIZE)
        if task == 'detection':
            check_instances(found['instances'], sample.pred_instances, threshold)
        else:
            check_labels(found, tmp_path / 'made', sample.pred_sem_seg.data[0].numpy())


def check_instances(found, expected, threshold):
    expected = expected[expected.scores >= threshold]
    order = expected.scores.argsort(descending=True).tolist()
    assert len(found) == len(order)
    np.testing.assert_allclose([one['score'] for one in found], expected.scores[order], atol=1e-5)
    by_score = {round(float(score), 4): index for index, score in enumerate(expected.scores)}
    for one in found:
        index = by_score.get(round(one['score'], 4))
        if index is None or len(by_score) < len(order):
            continue  # scores so close that they do not tell which is which
        assert one['class'] == ('disc', 'box')[expected.labels[index]] == ('disc', 'box')[one['label']]
        np.testing.assert_allclose(one['bbox'], expected.bboxes[index], atol=1e-2)
        assert (coco_masks.decode(one['mask']) != expected.masks[index].numpy()).mean() < 1e-3


def check_labels(found, out, expected):
    labels = cv2.imread(str(out / found['label_map']), cv2.IMREAD_UNCHANGED)
    assert (labels == expected).all()
    assert {one['class']: one['share'] for one in found['classes']} == {
        ('ground', 'disc', 'box')[label]: (expected == label).mean() for label in np.unique(expected)}


@pytest.mark.parametrize('task', ['segmentation'], indirect=True)
def test_unreadable_images_are_named_and_the_rest_goes_on(model, tiny_data, tmp_path, capsys):
    folder, out = tiny_data / 'img_dir/val', tmp_path / 'made'
    (folder / '1.jpg').write_bytes((folder / '1.jpg').read_bytes()[:300])
    (folder / '3.png').write_bytes(b'<html>')
    with pytest.raises(InputError, match=r'^2 of 6 images cannot be read and were left out: .*1\.jpg, .*3\.png$'):
        infer([*model[0], str(folder), '--out', str(out)])
    # two images are called 3, so that suffixes stay
    assert sorted(path.name for path in out.glob('*.json')) == [f'{name}.jpg.json' for name in (0, 2, 3, 4)]
    assert f'image {folder / "1.jpg"} is cut short or damaged: left out' in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in out.rglob('*')}
    with pytest.raises(InputError, match='exists already: choose another folder with --out, or add --overwrite'):
        infer([*model[0], str(folder / '0.jpg'), str(folder / '3.*'), '--out', str(out)])
    assert {path: path.stat().st_mtime_ns for path in out.rglob('*')} == before


@pytest.mark.parametrize('task', ['segmentation'], indirect=True)
def test_bad_arguments(model, tiny_data, tmp_path):
    image, out = str(tiny_data / 'img_dir/val/0.jpg'), ['--out', str(tmp_path / 'made')]
    for arguments, sentence in [
        ([image, '--batch-size', '0'], '--batch-size must be at least 1, got 0'),
        ([image, '--score-thr', '30'], '--score-thr must lie between 0 and 1, got 30.0'),
        ([image, '--device', 'warp'], '--device warp cannot be used here'),
        (['absent.jpg'], 'IMAGES: absent.jpg does not exist'),
        ([f'{tmp_path}/*.gif'], r'IMAGES: .*\.gif matches no file'),
        ([str(tmp_path / 'configs')], 'IMAGES: .*configs holds no file that ends in .bmp'),
    ]:
        with pytest.raises(InputError, match=sentence):
            infer([*model[0], *arguments, *out])
    torch.save(dict(state_dict=dict(a=torch.zeros(1))), tmp_path / 'other.pth')
    with pytest.raises(InputError, match='no key of .*matches'):
        infer([model[0][0], str(tmp_path / 'other.pth'), image, *out])
    assert not (tmp_path / 'made').exists()
