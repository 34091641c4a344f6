"""What the tool draws is what the pipeline gives, beside the truth."""
import cv2
import numpy as np
import pytest
from tiny import SIZE, load_tool

from swin_rpe_mm.errors import InputError

TIMES, CAPTION = 10, 26  # a picture's pixels per pixel of an image of 64, and above it
# the image of the pipeline is flipped, and normalised after that
EXTRA = """
steps = train_dataloader['dataset']['pipeline']
steps[2:2] = [dict(type='RandomFlip', prob=1.), dict(type='Normalize', mean=[10., 20., 30.], std=[40., 50., 60.])]
"""
browse = load_tool('analysis_tools/browse_dataset')


def halves(path) -> tuple:
    """The image and the truth in a picture, BGR."""
    picture = cv2.imread(str(path)).astype(int)[CAPTION:]
    assert picture.shape[:2] == (TIMES * SIZE, 2 * TIMES * SIZE + 6)
    return picture[:, :TIMES * SIZE], picture[:, -TIMES * SIZE:]


def test_pictures_show_pipeline_and_truth(make_config, task, tiny_data, tmp_path, capsys):
    out = tmp_path / 'made'
    browse([make_config(task, EXTRA), '--out', str(out), '--num', '2'])
    assert sorted(path.name for path in out.iterdir()) == ['000000_0.png', '000004_4.png']
    assert f'2 pictures of 8 images: {out}' in capsys.readouterr().out
    for index in (0, 4):
        image, truth = halves(out / f'{index:06d}_{index}.png')
        flipped = cv2.imread(str(tiny_data / f'img_dir/train/{index}.jpg'))[:, ::-1]
        assert (image == flipped.repeat(TIMES, 0).repeat(TIMES, 1)).all()
        labels = cv2.imread(str(tiny_data / f'ann_dir/train/{index}.png'), 0)[:, ::-1]
        labels = labels.repeat(TIMES, 0).repeat(TIMES, 1)
        change = np.abs(truth - image).max(-1)
        assert (change[labels > 0] > 8).mean() > 0.9, 'objects are not drawn where they are'
        if task == 'detection':
            assert (change[labels == 0] > 8).mean() < 0.15, 'more than objects is drawn'


@pytest.mark.parametrize('task', ['segmentation'], indirect=True)
def test_other_splits_and_files_that_exist(make_config, task, tmp_path):
    config, out = make_config(task), str(tmp_path / 'made')
    browse([config, '--out', out, '--num', '99', '--split', 'val'])
    assert len(list((tmp_path / 'made').iterdir())) == 5
    with pytest.raises(InputError, match=r'000000_0\.png and 4 more files to be written exists already'):
        browse([config, '--out', out, '--num', '99', '--split', 'val'])
    browse([config, '--out', out, '--num', '1', '--split', 'test', '--overwrite'])


@pytest.mark.parametrize('task', ['segmentation'], indirect=True)
def test_bad_arguments(make_config, task, tmp_path):
    config = make_config(task)
    with pytest.raises(InputError, match='nothing says where the pictures should go'):
        browse([config])
    with pytest.raises(InputError, match='--num must be at least 1, got 0'):
        browse([config, '--out', str(tmp_path), '--num', '0'])
