"""The picture and the numbers of what padding does to features and predictions."""
import cv2
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS
from random_weights import save_random_weights
from tiny import load_tool

from swin_rpe_mm import attach_extents
from swin_rpe_mm.errors import InputError

compare_padding = load_tool('analysis_tools/compare_padding')
NEAR_PX, NEAR_SCORE, SCORE = 1, 0.01, 0.3


@pytest.fixture
def model(task, make_config, tiny_data, tmp_path):
    """Arguments of the tool, with one image that is smaller than the others, and the model behind them."""
    small = tiny_data / 'img_dir/val/0.jpg'
    cv2.imwrite(str(small), cv2.imread(str(small))[:40, :56])
    labels = tiny_data / 'ann_dir/val/0.png'
    cv2.imwrite(str(labels), cv2.imread(str(labels), 0)[:40, :56])
    config = make_config(task)
    return [config, str(tmp_path / 'model.pth')], save_random_weights(config, tmp_path / 'model.pth')


@torch.no_grad()
def share_that_changes(config: str, model: torch.nn.Module) -> float:
    """Of the predictions for the small image, alone and beside another, as the tool defines it."""
    dataset = DATASETS.build(Config.fromfile(config).test_dataloader.dataset)
    if hasattr(model, 'decode_head'):
        small, large = (model.data_preprocessor(pseudo_collate([dataset[index]]))['inputs'] for index in (0, 1))
        padded = attach_extents(torch.cat([F.pad(small, (0, 8, 0, 24)), large]), [(40, 56), (64, 64)])
        alone, together = (F.interpolate(model(batch, mode='tensor'), batch.shape[-2:], mode='bilinear')[0].argmax(0)
                           for batch in (small, padded))
        return (alone != together[:40, :56]).float().mean().item()
    alone, together = (model.test_step(pseudo_collate([dataset[index] for index in indices]))[0]
                       for indices in ([0], [0, 1]))
    boxes = [[(label, score, box) for label, score, box in zip(found.labels, found.scores, found.bboxes)
              if score >= SCORE] for found in (alone.pred_instances, together.pred_instances)]
    lonely = 0
    for mine, theirs in (boxes, boxes[::-1]):
        for label, score, box in mine:
            lonely += not any(label == other_label and abs(score - other_score) <= NEAR_SCORE
                              and (box - other_box).abs().max() <= NEAR_PX
                              for other_label, other_score, other_box in theirs)
    return lonely / max(1, len(boxes[0]) + len(boxes[1]))


def test_numbers_and_picture(model, task, tmp_path, capsys):
    out = tmp_path / 'made/padding.png'
    numbers = compare_padding([*model[0], '--out', str(out), '--num', '1'])
    ours, theirs = numbers['SwinRPE'], numbers['without padding masks']
    assert ours['features'] < 1e-5 < 1e-3 < theirs['features']
    assert ours['predictions'] == pytest.approx(share_that_changes(model[0][0], model[1]), abs=1e-3)
    printed = capsys.readouterr().out
    assert f'{ours["features"]:.1e}' in printed and f'{theirs["predictions"]:.1%}' in printed and str(out) in printed
    picture = cv2.imread(str(out))
    assert min(picture.shape[:2]) > 400 and picture.std() > 10


@pytest.mark.parametrize('task', ['segmentation'], indirect=True)
def test_bad_arguments(model):
    with pytest.raises(InputError, match='--out must end in .png or .svg, got padding.txt'):
        compare_padding([*model[0], '--out', 'padding.txt'])
    with pytest.raises(InputError, match='--num must be at least 1, got 0'):
        compare_padding([*model[0], '--num', '0'])
