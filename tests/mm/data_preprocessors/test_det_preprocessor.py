"""The detection preprocessor writes extents, and is mmdet's in all else."""
import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.structures import InstanceData
from needs import NO_OPS

from swin_rpe_mm import InputError, get_extents
from swin_rpe_mm.registry import MODELS

pytest.importorskip('mmcv.ops', reason=NO_OPS, exc_type=ImportError)
from mmdet.models.data_preprocessors import DetDataPreprocessor as MMDetDataPreprocessor
from mmdet.structures import DetDataSample

from swin_rpe_mm import DetDataPreprocessor

NORM = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
SIZES = [(20, 37), (45, 11), (1, 1)]


def batch_of(sizes):
    """Inputs and data samples as a data loader's pseudo_collate gives them."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
    samples = [DetDataSample(metainfo=dict(img_shape=size), gt_instances=InstanceData(bboxes=torch.ones(1, 4)))
               for size in sizes]
    return dict(inputs=inputs, data_samples=samples)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('divisor', [1, 32])
def test_extents_are_image_sizes(training, divisor):
    data = DetDataPreprocessor(**NORM, pad_size_divisor=divisor)(batch_of(SIZES), training)
    assert get_extents(data['inputs']) == tuple(SIZES)
    assert get_extents(data['inputs']) == tuple(sample.img_shape for sample in data['data_samples'])
    assert data['inputs'].shape[-2:] == ((64, 64) if divisor == 32 else (45, 37))


@pytest.mark.parametrize('training', [True, False])
def test_same_batch_as_mmdet(training):
    arguments = dict(**NORM, pad_size_divisor=32, pad_value=114, pad_mask=True, pad_seg=True)
    ours = DetDataPreprocessor(**arguments)
    theirs = MMDetDataPreprocessor(**arguments)
    assert isinstance(ours, MMDetDataPreprocessor)
    ours, theirs = ours(batch_of(SIZES), training), theirs(batch_of(SIZES), training)
    assert torch.equal(ours['inputs'], theirs['inputs'])
    for a, b in zip(ours['data_samples'], theirs['data_samples']):
        assert a.metainfo == b.metainfo


@pytest.mark.parametrize('stacked', [True, False])
def test_images_without_samples(stacked):
    sizes = [(20, 37)] * 2 if stacked else SIZES
    inputs = batch_of(sizes)['inputs']
    data = DetDataPreprocessor(**NORM, pad_size_divisor=32)(
        dict(inputs=torch.stack(inputs) if stacked else inputs, data_samples=None), False)
    assert get_extents(data['inputs']) == tuple(sizes)


def test_batch_resize_moves_the_extents():
    MessageHub.get_current_instance().update_info('iter', 0)
    preprocessor = DetDataPreprocessor(**NORM, pad_size_divisor=32, batch_augments=[
        dict(type='mmdet.BatchSyncRandomResize', random_size_range=(96, 160), size_divisor=32, interval=1)])
    shapes = set()
    for _ in range(6):
        data = preprocessor(batch_of([(20, 37), (45, 61)]), True)
        batch = data['inputs']
        shapes.add(tuple(batch.shape[-2:]))
        assert get_extents(batch) == tuple(tuple(sample.img_shape) for sample in data['data_samples'])
        for (h, w), size in zip(get_extents(batch), [(20, 37), (45, 61)]):
            assert h == size[0] * batch.shape[-2] // 64 and w == size[1] * batch.shape[-1] // 64
    assert len(shapes) > 1


def test_batch_filled_up_to_a_fixed_size():
    preprocessor = DetDataPreprocessor(**NORM, batch_augments=[dict(type='mmdet.BatchFixedSizePad', size=(80, 96))])
    batch = preprocessor(batch_of(SIZES), True)['inputs']
    assert batch.shape[-2:] == (80, 96)
    assert get_extents(batch) == tuple(SIZES)


def test_size_zero_image_is_an_input_error():
    with pytest.raises(InputError, match='image 1'):
        DetDataPreprocessor(**NORM)(batch_of([(20, 37), (0, 5)]), False)


def test_registered():
    preprocessor = MODELS.build(dict(type='swin_rpe_mm.DetDataPreprocessor', **NORM))
    assert isinstance(preprocessor, DetDataPreprocessor)
