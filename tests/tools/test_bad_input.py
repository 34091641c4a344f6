"""Each kind of bad input is one sentence that names what is wrong, before any training step."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from swin_rpe_mm.errors import InputError
from tools.lib.cli import sentence_of


@pytest.fixture
def fails(tmp_path, monkeypatch):
    """``fails(main, *argv)`` gives the sentence that a tool ends with, having trained nothing."""
    monkeypatch.chdir(tmp_path)

    def run(main, *argv: str) -> str:
        with pytest.raises((InputError, KeyError)) as caught:
            main([*argv, '--work-dir', str(tmp_path / 'work')])
        sentence = sentence_of(caught.value)
        assert sentence is not None, caught.value
        assert '\n' not in sentence
        assert not list(tmp_path.glob('work/**/*.pth'))
        assert not list(tmp_path.glob('work/**/scalars.json'))
        return sentence

    return run


def first(data: Path, pattern: str) -> Path:
    return sorted(data.glob(pattern))[0]


def edit_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_program_prints_one_line(command):
    ended = command('train.py', 'absent.py')
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == 'error: config file absent.py does not exist'
    assert 'Traceback' not in ended.stderr


@pytest.mark.parametrize(('damage', 'fault'), [
    (lambda path: path.unlink(), 'does not exist'),
    (lambda path: path.write_bytes(b''), 'is empty'),
    (lambda path: path.write_bytes(path.read_bytes()[:400]), 'is cut short or damaged'),
    (lambda path: path.write_text('<html>not found</html>'), 'is not an image'),
])
def test_image(fails, train_tool, make_config, tiny_data, task, damage, fault):
    path = tiny_data / 'img_dir/train/3.jpg'
    if task == 'segmentation':  # its images are whatever the folder holds: look at the label map
        path = tiny_data / 'ann_dir/train/3.png'
        if fault == 'is cut short or damaged':
            path.write_bytes(path.read_bytes()[:60])
    damage(path)
    assert fails(train_tool, make_config(task)) == f'image {path} of train_dataloader {fault}'


@pytest.mark.needs_ops
def test_several_images_are_counted(fails, train_tool, make_config, tiny_data):
    for path in (tiny_data / 'img_dir/val').iterdir():
        path.unlink()
    assert fails(train_tool, make_config('detection')).endswith(
        'of val_dataloader does not exist, and 4 more of its 13 files are like it')


def test_test_images(fails, test_tool, make_config, tiny_data, tmp_path, task):
    torch.save(dict(state_dict={}), tmp_path / 'a.pth')
    path = tiny_data / 'img_dir/val/2.jpg'
    path.write_bytes(path.read_bytes()[:-300])
    assert fails(test_tool, make_config(task), 'a.pth') == f'image {path} of test_dataloader is cut short or damaged'


@pytest.mark.needs_ops
def test_wrapped_data_sets_are_looked_into(fails, train_tool, make_config, tiny_data):
    extra = """
inner = train_dataloader['dataset']
train_dataloader['dataset'] = dict(type='ClassBalancedDataset', oversample_thr=.1, dataset=dict(
    type='RepeatDataset', times=2, dataset=dict(type='ConcatDataset', datasets=[inner, inner])))
"""
    path = tiny_data / 'img_dir/train/7.jpg'
    path.unlink()
    assert fails(train_tool, make_config('detection', extra)) == f'image {path} of train_dataloader does not exist'


def test_data_paths(fails, train_tool, make_config, tiny_data, task, tmp_path):
    sentence = fails(train_tool, make_config(task, data='data/absent'))
    expected = dict(detection='val_evaluator.ann_file: ', segmentation='train_dataloader.dataset.data_root: ')[task]
    assert sentence.startswith(expected)
    assert f'data/absent{"/val.json" if task == "detection" else ""} does not exist' in sentence
    shutil.rmtree(tiny_data / 'img_dir/val')
    sentence = fails(train_tool, make_config(task))
    assert sentence.startswith('val_dataloader.dataset.data_prefix')
    assert 'img_dir/val does not exist' in sentence


@pytest.mark.needs_ops
def test_class_that_is_not_annotated(fails, train_tool, make_config, tiny_data):
    extra = "metainfo['classes'] = ('disc', 'bax')\n" + ''.join(
        f"{split}_dataloader['dataset']['metainfo'] = metainfo\n" for split in ('train', 'val'))
    assert fails(train_tool, make_config('detection', extra)) == (
        f"train_dataloader: metainfo.classes has 'bax', not among the categories of {tiny_data}/train.json, which are "
        "'disc', 'box'")


@pytest.mark.needs_ops
def test_forgotten_classes(fails, train_tool, make_config, tiny_data):
    """Then they are COCO's 80, none of which is in the file."""
    sentence = fails(train_tool, make_config('detection', "train_dataloader['dataset'].pop('metainfo')\n"))
    assert "metainfo.classes has 'person', 'bicycle'" in sentence
    assert 'and 70 more, not among the categories of' in sentence


def test_class_that_the_data_set_does_not_know(fails, train_tool, make_config):
    extra = "train_dataloader['dataset'].update(type='ADE20KDataset', metainfo=dict(classes=('wall', 'disc')))\n"
    sentence = fails(train_tool, make_config('segmentation', extra))
    assert sentence.startswith("metainfo.classes has 'disc', not among the classes of ADE20KDataset, which are 'wall'")


@pytest.mark.parametrize(('change', 'expected'), [
    (lambda content: content.pop('images'), "lacks the list 'images'"),
    (lambda content: content.pop('categories'), "lacks the list 'categories'"),
    (lambda content: content['images'].clear(), 'lists no images'),
])
@pytest.mark.needs_ops
def test_annotations_lack(fails, train_tool, make_config, tiny_data, change, expected):
    edit_json(tiny_data / 'train.json', change)
    assert fails(train_tool, make_config('detection')).startswith(f'annotation file {tiny_data}/train.json {expected}')


@pytest.mark.needs_ops
def test_annotations_are_not_json(fails, train_tool, make_config, tiny_data):
    (tiny_data / 'val.json').write_text('{"images": [')
    assert fails(train_tool, make_config('detection')).startswith(
        f'annotation file {tiny_data}/val.json is not valid JSON')


@pytest.mark.needs_ops
def test_nothing_left_after_filtering(fails, train_tool, make_config):
    extra = "train_dataloader['dataset']['filter_cfg'] = dict(min_size=1000)\n"
    sentence = fails(train_tool, make_config('detection', extra))
    assert sentence.startswith('no image of train_dataloader is left to use')
    assert "'min_size': 1000" in sentence


def test_suffix_that_no_image_has(fails, train_tool, make_config, tiny_data):
    sentence = fails(train_tool, make_config('segmentation', "train_dataloader['dataset']['img_suffix'] = '.tif'\n"))
    folder = tiny_data / 'img_dir/train'
    assert sentence == f'folder {folder} of train_dataloader has no file that ends in .tif (img_suffix)'


@pytest.mark.parametrize('reduce', [False, True])
def test_label_outside_the_classes(fails, train_tool, make_config, tiny_data, reduce):
    path = tiny_data / 'ann_dir/train/5.png'
    Image.fromarray(np.full((64, 64), 9, np.uint8)).save(path)
    extra = f"train_dataloader['dataset']['reduce_zero_label'] = {reduce}\n"
    sentence = fails(train_tool, make_config('segmentation', extra))
    value = '8 after reduce_zero_label' if reduce else '9'
    assert sentence.startswith(f'label map {path} holds the value {value}: allowed are 0 to 2')


def test_color_label_map(fails, train_tool, make_config, tiny_data):
    path = tiny_data / 'ann_dir/train/5.png'
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(path)
    assert fails(train_tool, make_config('segmentation')).startswith(f'label map {path} has 3 channels')


@pytest.mark.parametrize('option', ['model.backbone.type=NoSuchNet', 'train_dataloader.dataset.type=NoSuchData',
                                    'default_hooks.timer.type=NoSuchHook', 'val_evaluator.type=NoSuchMetric'])
def test_unknown_type(fails, train_tool, make_config, option):
    sentence = fails(train_tool, make_config('segmentation'), '--cfg-options', option)
    assert sentence.startswith(f"the config names the type '{option.partition('=')[2]}', which is not in the registry")


def test_unknown_optimizer(fails, train_tool, make_config):
    sentence = fails(train_tool, make_config('detection'), '--cfg-options', 'optim_wrapper.optimizer.type=NoSuchSGD')
    assert sentence.startswith("optim_wrapper.optimizer has the type 'NoSuchSGD'")


def test_backbone_argument(fails, train_tool, make_config):
    """An ``InputError`` from a constructor, whatever the registry puts around it."""
    sentence = fails(train_tool, make_config('segmentation'), '--cfg-options', 'model.backbone.arch=nanno')
    assert 'nanno' in sentence
    assert not sentence.startswith('class')


def test_checkpoint_that_matches_nothing(fails, test_tool, train_tool, make_config, task):
    torch.save(dict(state_dict=dict(a=torch.zeros(1))), 'a.pth')
    sentence = fails(test_tool, make_config(task), 'a.pth')
    assert sentence.startswith('no key of checkpoint a.pth matches the model')
    sentence = fails(train_tool, make_config(task), '--cfg-options', 'load_from=a.pth')
    assert sentence.startswith('no key of checkpoint a.pth matches the model')


@pytest.mark.needs_ops
def test_checkpoint_paths(fails, test_tool, train_tool, make_config):
    config = make_config('detection')
    assert fails(test_tool, config, 'absent.pth') == 'checkpoint absent.pth does not exist'
    assert fails(train_tool, config, '--resume', 'absent.pth') == 'checkpoint absent.pth does not exist'
    Path('page.pth').write_text('<html>')
    assert fails(train_tool, config, '--cfg-options', 'load_from=page.pth') == (
        'checkpoint page.pth is not a PyTorch checkpoint')
    init = "model['backbone'] = dict(init_cfg=dict(type='Pretrained', checkpoint='absent.pth'))\n"
    assert fails(train_tool, make_config('detection', init)) == 'checkpoint absent.pth does not exist'


@pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU is there, so that --amp and --launcher slurm are fine')
@pytest.mark.needs_ops
def test_what_needs_a_gpu(fails, train_tool, make_config):
    config = make_config('detection')
    assert fails(train_tool, config, '--amp').startswith('--amp needs a GPU')
    assert fails(train_tool, config, '--launcher', 'slurm').startswith('--launcher slurm needs GPUs')


def test_arguments(fails, train_tool, test_tool, make_config, tmp_path, task, monkeypatch):
    monkeypatch.delenv('RANK', raising=False)
    torch.save(dict(state_dict={}), tmp_path / 'a.pth')
    config, out = make_config(task), dict(detection='predictions', segmentation='predictions.pkl')[task]
    assert fails(test_tool, config, 'a.pth', '--out', out).startswith(f'--out {out}: for {task} it is a f')
    assert 'torchrun' in fails(train_tool, config, '--launcher', 'pytorch')
    config = make_config(task, "auto_scale_lr.pop('base_batch_size')\n")
    assert fails(train_tool, config, '--auto-scale-lr').startswith('--auto-scale-lr needs')
    if task == 'segmentation':
        config = make_config(task, 'del tta_pipeline\n')
        assert fails(test_tool, config, 'a.pth', '--tta') == '--tta needs tta_pipeline in the config, which lacks it'
    else:
        assert 'predicts masks too' in fails(test_tool, config, 'a.pth', '--tta')
