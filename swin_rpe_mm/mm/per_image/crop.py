"""Each image of a batch alone: cut to its extent, with a sample that tells the truth about what is left."""
from typing import Optional, Sequence

import numpy as np
from mmengine.structures import BaseDataElement
from torch import Tensor

from ..extents import Extents, Size, attach_extents, check_extents, get_extents

# ground truths that the preprocessors fill up together with the image
_PADDED_MAPS = ('gt_sem_seg', 'gt_panoptic_seg', 'gt_edge_map', 'gt_depth_map')


def known_extents(batch: Tensor, samples: Optional[Sequence[BaseDataElement]]) -> Extents:
    """Each image's extent: what the batch carries, else ``img_shape`` of the samples, else the whole image.

    Raises:
        InputError: If an ``img_shape`` exceeds the batch.
    """
    extents = get_extents(batch)
    if extents is None:
        size = tuple(batch.shape[-2:])
        shapes = [size] * len(batch) if samples is None else [sample.get('img_shape', size)[:2] for sample in samples]
        extents = check_extents(shapes, tuple(batch.shape))
    return extents


def cut_image(batch: Tensor, index: int, extent: Size, size: Size) -> Tensor:
    """Image ``index`` as a batch of its own, ``(1, C, *size)``; ``size`` is its extent or a little more."""
    h, w = size
    if len(batch) == 1 and tuple(batch.shape[-2:]) == size:
        return batch if get_extents(batch) else attach_extents(batch.view_as(batch), [extent])
    return attach_extents(batch[index:index + 1, :, :h, :w].contiguous(), [extent])


def cut_sample(sample: BaseDataElement, old: Size, new: Size) -> BaseDataElement:
    """A sample for the image that was cut from ``old`` to ``new``; what both hold is shared, ``sample`` unchanged.

    Sizes in its metainfo are those of the cut image, and ground truths that were filled up to ``old`` are cut too.
    """
    cut = sample.new(metainfo=_told_sizes(sample.metainfo, old, new))
    if old == new:
        return cut
    for name in _PADDED_MAPS:
        if name in cut:
            setattr(cut, name, _cut_maps(cut.get(name), old, new))
    if 'gt_instances' in cut and 'masks' in cut.gt_instances:
        masks = _cut_masks(cut.gt_instances.masks, old, new)
        cut.gt_instances = cut.gt_instances.new()
        cut.gt_instances.masks = masks
        if 'pairwise_masks' in cut.gt_instances:  # BoxInst's, smaller than the image by a whole number
            pairs = cut.gt_instances.pairwise_masks
            step = old[0] // pairs.shape[-2]
            cut.gt_instances.pairwise_masks = pairs[..., :new[0] // step, :new[1] // step]
    return cut


def _told_sizes(metainfo: dict, old: Size, new: Size) -> dict:
    told = dict(metainfo)
    for key in ('padding_size', 'img_padding_size'):  # what mmseg cuts off its results
        if told.get(key) is not None:
            left, right, top, bottom = told[key]
            told[key] = (left, max(right - old[1] + new[1], 0), top, max(bottom - old[0] + new[0], 0))
    if not any(told.get('img_padding_size', (1, ))):
        # as mmseg's preprocessor leaves a sample that it did not fill up
        del told['img_padding_size']
        told.pop('pad_shape', None)
    for key in ('pad_shape', 'batch_input_shape'):
        if key in told:
            told[key] = new
    return told


def _cut_maps(maps: BaseDataElement, old: Size, new: Size) -> BaseDataElement:
    # a test's ground truth has the size of the original image and is left alone
    cut = type(maps)(metainfo=maps.metainfo)
    for name, value in maps.items():
        cut.set_field(value[..., :new[0], :new[1]] if tuple(value.shape[-2:]) == old else value, name)
    return cut


def _cut_masks(masks, old: Size, new: Size):
    h, w = new
    if isinstance(masks, (Tensor, np.ndarray)):
        return masks[..., :h, :w] if tuple(masks.shape[-2:]) == old else masks
    if (masks.height, masks.width) != old:
        return masks
    inside = masks.masks[:, :h, :w] if isinstance(masks.masks, np.ndarray) else masks.masks  # polygons have no padding
    return type(masks)(inside, h, w)
