"""The table of AP or mIoU by test batch size."""
import json
from pathlib import Path

import cv2
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from tiny import load_tool

from swin_rpe_mm.errors import InputError
from tools.lib.batch_sizes import evaluate, take_mixed_sizes

METRICS = dict(detection=['box AP', 'mask AP'], segmentation=['mIoU'])


@pytest.fixture
def config_and_checkpoint(task, make_config, tiny_data, tmp_path):
    """A model with random weights and images of different sizes."""
    for i, (height, width) in enumerate([(40, 56), (33, 64), (64, 41)]):
        for path in (tiny_data / f'img_dir/val/{i}.jpg', tiny_data / f'ann_dir/val/{i}.png'):
            cv2.imwrite(str(path), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[:height, :width])
    annotations = json.loads((tiny_data / 'val.json').read_text())
    for image in annotations['images']:
        image['height'], image['width'] = cv2.imread(str(tiny_data / 'img_dir/val' / image['file_name'])).shape[:2]
    (tiny_data / 'val.json').write_text(json.dumps(annotations))
    config = make_config(task)
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    torch.save(model.state_dict(), tmp_path / 'model.pth')
    return config, str(tmp_path / 'model.pth')


def test_rows_files_and_print(task, config_and_checkpoint, tmp_path, capsys):
    out = [tmp_path / 'made/table.json', tmp_path / 'made/table.md']
    rows = load_tool('analysis_tools/batch_sizes')(
        [*config_and_checkpoint, '--batch-sizes', '1', '3', '--out', *map(str, out)])
    assert [(row['padding ignored'], row['batch size']) for row in rows] == [
        (False, 1), (False, 3), (True, 1), (True, 3)]
    for name in METRICS[task]:
        values = [row[name] for row in rows]
        assert all(0 <= value <= 1 for value in values)
        assert values[2] == values[3]
    assert all(row['seconds per image'] > 0 for row in rows)
    assert json.loads(out[0].read_text()) == rows
    lines, printed = out[1].read_text().splitlines(), capsys.readouterr().out
    assert len(lines) == 2 + len(rows)
    for name in METRICS[task]:
        assert name in lines[0] and name in printed
        assert f'{rows[0][name]:.4f}' in lines[2] and f'{rows[0][name]:.4f}' in printed


@pytest.mark.parametrize('task', ['segmentation'], indirect=True)
@pytest.mark.parametrize('ignored', [False, True])
def test_as_the_test_tool(ignored, config_and_checkpoint, test_tool, tmp_path):
    rows = load_tool('analysis_tools/batch_sizes')([*config_and_checkpoint, '--batch-sizes', '3'])
    hooks = "[dict(type='swin_rpe_mm.PaddingInvarianceHook')]" if ignored else '[]'
    config = Path(config_and_checkpoint[0])
    config.write_text(f'{config.read_text()}\ntest_dataloader.update(batch_size=3)\ncustom_hooks = {hooks}\n')
    theirs = test_tool([*config_and_checkpoint, '--work-dir', str(tmp_path / 'work')])
    assert rows[ignored]['mIoU'] == pytest.approx(theirs['mIoU'] / 100)


class NearTruth(torch.nn.Module):
    """Finds each object a little beside its place, and one in three with the wrong label."""

    def test_step(self, data: dict) -> list:
        samples = data['data_samples']
        for image, sample in enumerate(samples):
            truth, count = sample.gt_instances, len(sample.gt_instances)
            index = torch.arange(count) + 5 * image
            sample.pred_instances = InstanceData(
                bboxes=truth.bboxes.tensor + index[:, None] % 4, labels=(truth.labels + (index % 3 == 0)) % 2,
                scores=1 / (1 + index), masks=torch.as_tensor(truth.masks.to_ndarray()).roll(int(index[0]) % 3, 2) > 0)
        return samples


@pytest.mark.needs_ops
def test_ap_is_mmdets_before_it_is_rounded(make_config):
    cfg = Config.fromfile(make_config('detection'))
    init_default_scope('mmdet')
    found = evaluate(NearTruth(), cfg, 2)
    loader, theirs = Runner.build_dataloader({**cfg.test_dataloader, 'batch_size': 2}), Evaluator(cfg.test_evaluator)
    theirs.dataset_meta = loader.dataset.metainfo
    for data in loader:
        theirs.process(NearTruth().test_step(data), data)
    theirs = theirs.evaluate(len(loader.dataset))
    for ours, name in (('box AP', 'coco/bbox_mAP'), ('mask AP', 'coco/segm_mAP')):
        assert 0.05 < found[ours] < 0.95
        assert abs(found[ours] - theirs[name]) <= 5.001e-4


@pytest.mark.parametrize('task', ['segmentation'], indirect=True)
@pytest.mark.parametrize('options, sentence', [
    (['--batch-sizes', '0'], '--batch-sizes must be 1 or more, got 0'),
    (['--out', 'table.txt'], '--out must end in .json or .md, got table.txt'),
    (['--limit', '0'], '--limit must be 1 or more, got 0'),
    (['--cfg-options', 'model.decode_head.channels=8'], 'does not fit the model of'),
])
def test_bad_input(options, sentence, config_and_checkpoint):
    with pytest.raises(InputError, match=sentence) as error:
        load_tool('analysis_tools/batch_sizes')([*config_and_checkpoint, *options])
    assert '\n' not in str(error.value)


def test_mmsegs_preprocessor_makes_way(make_config):
    """It would refuse images of different sizes."""
    theirs = "model.update(data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64)))"
    cfg = Config.fromfile(make_config('segmentation', theirs))
    assert len(take_mixed_sizes(cfg)) == 1
    assert cfg.model.data_preprocessor.type == 'swin_rpe_mm.SegDataPreprocessor'
    assert cfg.model.data_preprocessor.size == (64, 64)
    assert take_mixed_sizes(cfg) == []
