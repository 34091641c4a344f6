"""The segmentation preprocessor writes extents, and is mmseg's in all else."""
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.models import SegDataPreProcessor as MMSegDataPreProcessor
from mmseg.structures import SegDataSample

from swin_rpe_mm import InputError, SegDataPreprocessor, get_extents
from swin_rpe_mm.registry import MODELS

NORM = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
SIZES = [(20, 37), (45, 11), (1, 1)]


def batch_of(sizes):
    """Inputs and data samples as a data loader's pseudo_collate gives them."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
    samples = [SegDataSample(metainfo=dict(img_shape=size), gt_sem_seg=PixelData(data=torch.zeros(1, *size)))
               for size in sizes]
    return dict(inputs=inputs, data_samples=samples)


@pytest.mark.parametrize('fill', [dict(size=(64, 64)), dict(size_divisor=32)])
def test_extents_in_training(fill):
    data = SegDataPreprocessor(**NORM, **fill)(batch_of(SIZES), True)
    assert data['inputs'].shape[-2:] == (64, 64)
    assert get_extents(data['inputs']) == tuple(SIZES)
    assert get_extents(data['inputs']) == tuple(sample.img_shape for sample in data['data_samples'])


@pytest.mark.parametrize('test_cfg, shape', [(None, (20, 37)), (dict(size_divisor=32), (32, 64))])
def test_extents_in_testing(test_cfg, shape):
    preprocessor = SegDataPreprocessor(**NORM, size=(64, 64), test_cfg=test_cfg)
    data = preprocessor(batch_of([(20, 37)] * 2), False)
    assert data['inputs'].shape[-2:] == shape
    assert get_extents(data['inputs']) == ((20, 37), ) * 2


@pytest.mark.parametrize('training', [True, False])
def test_same_batch_as_mmseg(training):
    arguments = dict(**NORM, size=(64, 64), pad_val=7, seg_pad_val=255, test_cfg=dict(size_divisor=32))
    ours, theirs = SegDataPreprocessor(**arguments), MMSegDataPreProcessor(**arguments)
    assert isinstance(ours, MMSegDataPreProcessor)
    sizes = SIZES if training else [(20, 37)] * 2
    ours, theirs = ours(batch_of(sizes), training), theirs(batch_of(sizes), training)
    assert torch.equal(ours['inputs'], theirs['inputs'])
    for a, b in zip(ours['data_samples'], theirs['data_samples']):
        assert a.metainfo == b.metainfo
        assert torch.equal(a.gt_sem_seg.data, b.gt_sem_seg.data)


def test_size_zero_image_is_an_input_error():
    with pytest.raises(InputError, match='image 1'):
        SegDataPreprocessor(**NORM, size=(64, 64))(batch_of([(20, 37), (0, 5)]), True)


def test_registered():
    preprocessor = MODELS.build(dict(type='swin_rpe_mm.SegDataPreprocessor', **NORM, size=(64, 64)))
    assert isinstance(preprocessor, SegDataPreprocessor)


@pytest.mark.parametrize('test_cfg, divisor', [(None, 1), (dict(size_divisor=32), 32)])
def test_images_of_different_sizes_in_testing(test_cfg, divisor):
    """Each as it is alone, filled up to the largest, and what is told of it cuts that off again."""
    preprocessor = SegDataPreprocessor(**NORM, size=(64, 64), pad_val=7, test_cfg=test_cfg)
    data = preprocessor(batch_of(SIZES), False)
    height, width = (-(-max(sides) // divisor) * divisor for sides in zip(*SIZES))
    assert data['inputs'].shape == (3, 3, height, width)
    assert get_extents(data['inputs']) == tuple(SIZES)
    images = batch_of(SIZES)['inputs']
    for (h, w), image, filled, sample in zip(SIZES, images, data['inputs'], data['data_samples']):
        alone = preprocessor(dict(inputs=[image], data_samples=[SegDataSample()]), False)['inputs'][0]
        assert torch.equal(filled[:, :h, :w], alone[:, :h, :w])
        assert (filled[:, h:] == 7).all() and (filled[:, :, w:] == 7).all()
        assert sample.img_padding_size == (0, width - w, 0, height - h)
        assert sample.pad_shape == (height, width)


def test_images_of_different_sizes_without_samples():
    data = SegDataPreprocessor(**NORM)(dict(inputs=batch_of(SIZES)['inputs']), False)
    assert data['data_samples'] is None
    assert get_extents(data['inputs']) == tuple(SIZES)
