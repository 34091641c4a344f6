"""The picture of what padding does to features."""
import cv2
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from tiny import load_tool

from swin_rpe_mm.errors import InputError


@pytest.fixture
def config_and_checkpoint(task, make_config, tiny_data, tmp_path):
    """A model with random weights, and one image that is smaller than the others."""
    small = tiny_data / 'img_dir/val/0.jpg'
    cv2.imwrite(str(small), cv2.imread(str(small))[:40, :56])
    config = make_config(task)
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    torch.save(model.state_dict(), tmp_path / 'model.pth')
    return config, str(tmp_path / 'model.pth')


def test_numbers_and_picture(config_and_checkpoint, tmp_path, capsys):
    out = tmp_path / 'made/padding.png'
    worst = load_tool('analysis_tools/compare_padding')([*config_and_checkpoint, '--out', str(out)])
    assert worst['SwinRPE'] < 1e-5 < 1e-3 < worst['without padding masks']
    printed = capsys.readouterr().out
    assert f'{worst["SwinRPE"]:.1e}' in printed and str(out) in printed
    picture = cv2.imread(str(out))
    assert min(picture.shape[:2]) > 400 and picture.std() > 10


def test_wrong_suffix(config_and_checkpoint):
    with pytest.raises(InputError, match='--out must end in .png or .svg, got padding.txt'):
        load_tool('analysis_tools/compare_padding')([*config_and_checkpoint, '--out', 'padding.txt'])
