"""The tool that draws what encodings and attention do, on detectors, segmentors and backbones alone."""
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from tiny import load_tool

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.errors import InputError
from tools.lib.inputs import build_subject, samples_of_data

FIGURES = ('bias', 'attention', 'windows', 'distance', 'receptive_field')


@pytest.fixture
def visualize():
    return load_tool('analysis_tools/visualize_rpe')


@pytest.fixture
def backbone_config(tmp_path):
    """A config of a backbone and nothing else."""
    path = tmp_path / 'alone.py'
    path.write_text("model = dict(type='swin_rpe_mm.SwinRPE', arch='nano', out_indices=(0, 1))\n")
    return path


def axes_in(svg: Path) -> int:
    """How many axes a figure has."""
    return len(re.findall(r'<g id="axes_\d+"', svg.read_text()))


def test_all_figures_and_the_page(task, make_config, tmp_path, visualize, capsys):
    config = make_config(task)
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model.init_weights()
    checkpoint = tmp_path / 'model.pth'
    torch.save(dict(state_dict=model.state_dict()), checkpoint)
    options = ['--layers', '0.1', '3.1', '--heads', '0', '2', '--samples', '2']
    files = visualize([config, str(checkpoint), '--out', str(tmp_path / 'made'), *options])
    page, *pictures = files
    assert pictures == [tmp_path / f'made/{name}.{kind}' for name in FIGURES for kind in ('png', 'svg')]
    text = page.read_text()
    assert 'model.pth' in text and config in text and '64x64 px as the model gets it' in text
    for path in pictures[::2]:
        picture = cv2.imread(str(path))
        assert min(picture.shape[:2]) > 300 and picture.std() > 10, path
        assert f'src="{path.name}"' in text and f'href="{path.stem}.svg"' in text
    # one head and two, and a scale of colours for each layer; with the image, and the mean of several heads; two rows
    # of four stages; pixels and tokens; four stages, the curves and a scale
    assert [axes_in(path) for path in pictures[1::2]] == [3 + 2, 3 + 2 + 1 + 2, 8, 2, 6]
    for path in pictures[1::2]:
        assert 'weights of model.pth' in path.read_text()
    assert not list((tmp_path / 'made').glob('*.partial'))
    printed = capsys.readouterr().out
    assert all(str(path) in printed for path in files)


def test_backbone_alone_says_that_its_weights_are_random(backbone_config, tmp_path, visualize, capsys):
    image = np.random.default_rng(0).integers(0, 255, (30, 44, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / 'image.png'), image)
    arguments = [str(backbone_config), '--image', str(tmp_path / 'image.png'), '--figures', 'windows', '--out']
    page, _, svg = visualize([*arguments, str(tmp_path / 'made')])
    for text in (page.read_text(), svg.read_text(), capsys.readouterr().out):
        assert 'no checkpoint: initial, random weights' in text
    assert axes_in(svg) == 4
    again = visualize([*arguments, str(tmp_path / 'again')])
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in (page, page.parent / 'windows.png',
                                                                                    svg)]


def test_picture_is_the_image_and_extents_are_its_own(task, make_config, tiny_data):
    small = tiny_data / 'img_dir/val/0.jpg'
    cv2.imwrite(str(small), cv2.imread(str(small))[:40, :64])
    extra = {'detection': 'model = dict(data_preprocessor=dict(pad_size_divisor=32))\n',
             'segmentation': 'model = dict(data_preprocessor=dict(size=None, size_divisor=32, '
                             'test_cfg=dict(size_divisor=32)))\n'}[task]
    cfg = Config.fromfile(make_config(task))
    cfg.merge_from_dict(Config.fromstring(extra, '.py').to_dict())
    subject = build_subject(cfg, None)
    sample = next(samples_of_data(cfg, subject.model, 1))
    assert np.array_equal(sample.picture, cv2.imread(str(small))[..., ::-1])
    assert sample.images.shape[-2:] == (64, 64) and sample.file_size == (40, 64)
    assert sample.place_of((39, 63)) == (39, 63)


def test_bad_input(backbone_config, make_config, tiny_data, tmp_path, visualize):
    image = str(tiny_data / 'img_dir/val/0.jpg')
    alone = str(backbone_config)
    segmentor = make_config('segmentation', data='nowhere')
    other = tmp_path / 'other.py'
    other.write_text("model = dict(type='mmseg.ResNet', depth=18)\ndefault_scope = 'mmseg'\n")
    text = tmp_path / 'text.jpg'
    text.write_text('no image')
    for arguments, sentence in (
        ([alone], 'alone.py names no data set to take an image from: name one with --image'),
        ([segmentor], 'the val data set of .* is not there .*: name an image with --image'),
        ([alone, '--image', 'absent.jpg'], '--image must name an image file, and absent.jpg does not exist'),
        ([alone, '--image', str(text)], '--image must name an image file, and .* holds none that can be read'),
        ([alone, '--image', image, '--point', '64', '0'], '--point must lie inside the image, which is 64x64 px'),
        ([alone, '--image', image, '--layers', '2.0'], '--layers must name layers'),
        ([alone, '--image', image, '--samples', '0'], '--samples must be 1 or more, got 0'),
        ([alone, 'absent.pth', '--image', image], 'checkpoint absent.pth does not exist'),
        ([str(other), '--image', image], 'has the backbone ResNet; this tool needs SwinRPE'),
    ):
        with pytest.raises(InputError, match=sentence):
            visualize([*arguments, '--out', str(tmp_path / 'made')])
    assert not (tmp_path / 'made').exists()


def test_checkpoint_of_a_backbone_alone_fits_a_whole_model(make_config, tmp_path):
    cfg = Config.fromfile(make_config('segmentation'))
    torch.manual_seed(5)
    backbone = SwinRPE(arch='nano')
    torch.save(backbone.state_dict(), tmp_path / 'backbone.pth')
    subject = build_subject(cfg, str(tmp_path / 'backbone.pth'))
    assert subject.weights == 'weights of backbone.pth'
    name = 'stages.0.blocks.0.attn.w_msa.qkv.weight'
    assert torch.equal(subject.backbone.state_dict()[name], backbone.state_dict()[name])
