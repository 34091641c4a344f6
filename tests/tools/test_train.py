"""Training and testing of both tasks, from any folder."""
import json
import pickle
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import cv2
import pytest
import torch
from tiny import SIZE, TASKS, draw_data, load_tool, write_config

from swin_rpe_mm.checkpoints import read_checkpoint
from swin_rpe_mm.errors import InputError

pytestmark = pytest.mark.slow
MAIN_METRIC = dict(detection='coco/bbox_mAP', segmentation='mIoU')


@pytest.fixture(scope='module', params=TASKS)
def trained(request, tmp_path_factory) -> SimpleNamespace:
    """Two epochs, started in a folder that has nothing to do with the config or its data."""
    root = tmp_path_factory.mktemp(request.param)
    draw_data(root / 'repo/data/tiny')
    config = write_config(root / f'repo/configs/demo/tiny_{request.param}.py', request.param, 'data/tiny')
    with pytest.MonkeyPatch.context() as patch:
        (root / 'elsewhere').mkdir()
        patch.chdir(root / 'elsewhere')
        load_tool('train')([str(config)])
        work_dir = root / f'elsewhere/work_dirs/tiny_{request.param}'
        yield SimpleNamespace(
            task=request.param,
            root=root,
            config=str(config),
            work_dir=work_dir,
            checkpoint=str(work_dir / 'epoch_2.pth'))


@pytest.fixture
def run_test(trained, test_tool, tmp_path):
    """Evaluate the trained model with further arguments."""

    def run(*args: str) -> dict:
        return test_tool([trained.config, trained.checkpoint, '--work-dir', str(tmp_path / 'work'), *args])

    return run


def load_checkpoint(path: Path) -> dict:
    return read_checkpoint(path)


def test_work_dir(trained):
    names = {path.name for path in trained.work_dir.iterdir()}
    assert {'epoch_1.pth', 'epoch_2.pth', 'last_checkpoint', Path(trained.config).name} <= names
    log = next(trained.work_dir.glob('*/*.log')).read_text()
    assert f'data/tiny is not in the current folder: taking {trained.root}/repo/data/tiny' in log
    assert 'image files are there and whole' in log
    records = [json.loads(line) for line in next(trained.work_dir.glob('*/vis_data/scalars.json')).open()]
    losses = [record['loss'] for record in records if 'loss' in record]
    assert len(losses) == 8
    assert losses[-1] < losses[0]


@pytest.mark.skipif(not find_spec('tensorboard'), reason='TensorBoard is not installed')
def test_tensorboard(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(next(trained.work_dir.glob('*/vis_data'))))
    events.Reload()
    assert len(events.Scalars('loss')) == 8


def test_dumped_config_trains_again(trained, train_tool, tmp_path):
    """The config that a run leaves in its work folder stands for itself."""
    dumped = str(trained.work_dir / Path(trained.config).name)
    train_tool([dumped, '--work-dir', str(tmp_path / 'again'), '--cfg-options', 'train_cfg.max_epochs=1'])
    folders = (trained.work_dir, tmp_path / 'again')
    first, again = (load_checkpoint(folder / 'epoch_1.pth')['state_dict'] for folder in folders)
    torch.testing.assert_close(again, first, rtol=0, atol=0)


def test_metrics_are_those_of_the_last_validation(trained, run_test):
    records = [json.loads(line) for line in next(trained.work_dir.glob('*/vis_data/scalars.json')).open()]
    metrics = run_test()
    assert metrics[MAIN_METRIC[trained.task]] == pytest.approx(records[-1][MAIN_METRIC[trained.task]], abs=1e-6)


def test_predictions_and_pictures(trained, run_test, tmp_path):
    out = tmp_path / ('predictions.pkl' if trained.task == 'detection' else 'predictions')
    run_test('--out', str(out), '--show-dir', str(tmp_path / 'shown'))
    if trained.task == 'detection':
        with out.open('rb') as file:
            samples = pickle.load(file)
        assert sorted(Path(sample['img_path']).name for sample in samples) == [f'{i}.jpg' for i in range(5)]
        instances = [sample['pred_instances'] for sample in samples]
        assert all(len(found['masks']) == len(found['scores']) for found in instances)
    else:
        assert sorted(path.name for path in out.iterdir()) == [f'{i}.png' for i in range(5)]
        for path in out.iterdir():
            labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            assert labels.shape == (SIZE, SIZE)
            assert labels.max() <= 2
    pictures = [path for path in (tmp_path / 'shown').rglob('*') if path.suffix in ('.jpg', '.png')]
    assert len(pictures) == 5
    assert all(cv2.imread(str(path)) is not None for path in pictures)


def test_tta(trained, run_test):
    """MMDetection merges boxes only, so that a detector with masks cannot be tested in this way."""
    if trained.task == 'segmentation':
        assert 0 < run_test('--tta')['mIoU'] <= 100
    else:
        with pytest.raises(InputError, match='predicts masks too'):
            run_test('--tta')


def test_further_epochs(trained, train_tool, tmp_path):
    """``--resume CHECKPOINT`` goes on from there, in another work folder."""
    train_tool([trained.config, '--work-dir', str(tmp_path / 'more'), '--resume', trained.checkpoint, '--cfg-options',
                'train_cfg.max_epochs=3'])
    assert [path.name for path in (tmp_path / 'more').glob('*.pth')] == ['epoch_3.pth']
    checkpoint = load_checkpoint(tmp_path / 'more/epoch_3.pth')
    assert checkpoint['meta']['iter'] == 12
    assert {int(state['step']) for state in checkpoint['optimizer']['state'].values()} == {12}


def test_resume_with_another_window(trained, train_tool, tmp_path):
    """Tables are read for it, and their running averages start anew; those of all else go on."""
    train_tool([trained.config, '--work-dir', str(tmp_path / 'wider'), '--resume', trained.checkpoint, '--cfg-options',
                'train_cfg.max_epochs=3', 'model.backbone.window_size=9'])
    log = next((tmp_path / 'wider').glob('*/*.log')).read_text()
    assert 'parameters of another shape than in the checkpoint, whose running averages start anew: 8' in log
    checkpoint = load_checkpoint(tmp_path / 'wider/epoch_3.pth')
    tables = [key for key in checkpoint['state_dict'] if key.endswith('relative_position_bias_table')]
    assert [len(checkpoint['state_dict'][key]) for key in tables] == [17**2] * 8
    steps = [int(state['step']) for state in checkpoint['optimizer']['state'].values()]
    assert steps.count(4) == 8 and set(steps) == {4, 12}


def test_only_whole_checkpoints_are_kept(trained, train_tool, tmp_path):
    train_tool([trained.config, '--work-dir', str(tmp_path / 'kept'), '--cfg-options',
                'default_hooks.checkpoint.max_keep_ckpts=1', 'default_hooks.checkpoint.save_best=auto'])
    names = sorted(path.name for path in (tmp_path / 'kept').glob('*') if path.is_file() and path.suffix != '.py')
    assert names[1:] == ['epoch_2.pth', 'last_checkpoint']
    assert names[0].startswith('best_')


@pytest.mark.needs_ops
def test_default_tta_of_a_box_detector(tiny_data, make_config, train_tool, test_tool, tmp_path):
    config = make_config('detection', """
model['roi_head'].update(mask_head=None, mask_roi_extractor=None)
test_evaluator = val_evaluator = dict(type='CocoMetric', ann_file=val_evaluator['ann_file'], metric='bbox')
""")
    train_tool([config, '--work-dir', str(tmp_path / 'work'), '--cfg-options', 'train_cfg.max_epochs=1'])
    metrics = test_tool([config, str(tmp_path / 'work/epoch_1.pth'), '--work-dir', str(tmp_path / 'work'), '--tta'])
    assert 0 <= metrics['coco/bbox_mAP'] <= 1
    log = sorted((tmp_path / 'work').glob('*/*.log'))[-1].read_text()
    assert 'the config has no tta_model' in log
