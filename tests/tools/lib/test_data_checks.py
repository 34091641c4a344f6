"""Which files count as whole images. Whole data sets are tested with the tools."""
import cv2
import numpy as np
import pytest

from tools.lib.data_checks import fault_of_image

IMAGE = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)


@pytest.mark.parametrize('suffix', ['.jpg', '.png', '.bmp'])
def test_whole_images_pass(tmp_path, suffix):
    path = tmp_path / f'a{suffix}'
    cv2.imwrite(str(path), IMAGE)
    assert fault_of_image(str(path)) is None


@pytest.mark.parametrize('suffix', ['.jpg', '.png'])
@pytest.mark.parametrize('share', [0.3, 0.9, 0.99])
def test_cut_images_do_not(tmp_path, suffix, share):
    path = tmp_path / f'a{suffix}'
    cv2.imwrite(str(path), IMAGE)
    content = path.read_bytes()
    path.write_bytes(content[:int(len(content) * share)])
    assert fault_of_image(str(path)) == 'is cut short or damaged'


@pytest.mark.parametrize('suffix', ['.jpg', '.png'])
def test_bytes_after_the_end_are_harmless(tmp_path, suffix):
    """Some cameras and editors append their own data."""
    path = tmp_path / f'a{suffix}'
    cv2.imwrite(str(path), IMAGE)
    path.write_bytes(path.read_bytes() + bytes(1000))
    assert fault_of_image(str(path)) is None


def test_a_png_named_jpg_passes(tmp_path):
    cv2.imwrite(str(tmp_path / 'a.png'), IMAGE)
    (tmp_path / 'a.png').rename(tmp_path / 'a.jpg')
    assert fault_of_image(str(tmp_path / 'a.jpg')) is None


def test_what_is_no_image(tmp_path):
    path = tmp_path / 'a.jpg'
    assert fault_of_image(str(path)) == 'does not exist'
    path.touch()
    assert fault_of_image(str(path)) == 'is empty'
    path.write_text('version https://git-lfs.github.com/spec/v1')
    assert fault_of_image(str(path)) == 'is not an image'
    assert fault_of_image(str(tmp_path)).startswith('cannot be read')
