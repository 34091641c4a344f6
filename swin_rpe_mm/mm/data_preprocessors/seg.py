"""MMSegmentation's data preprocessor, with extents."""
from typing import List, Sequence

import torch
import torch.nn.functional as F
from mmseg.models import SegDataPreProcessor as MMSegDataPreprocessor

from ..extents import attach_extents
from .sizes import image_sizes


class SegDataPreprocessor(MMSegDataPreprocessor):
    """mmseg's ``SegDataPreProcessor``, same arguments; the batch it returns carries each image's extent.

    The extent is the size of the image that came in, before it was filled up to ``size`` or ``size_divisor``. In
    testing it takes images of different sizes too, which mmseg refuses.
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """Normalise, pad and stack, in training and testing; see mmseg.

        Raises:
            InputError: If an image has no pixels.
        """
        sizes = image_sizes(data['inputs'])
        if training or len(set(sizes)) == 1:
            data = super().forward(data, training)
        else:
            data = self._stack([super(SegDataPreprocessor, self).forward(one, training) for one in _one_by_one(data)])
        data['inputs'] = attach_extents(data['inputs'], sizes)
        return data

    def _stack(self, batches: Sequence[dict]) -> dict:
        """One batch from several of one image each; what fills an image up is cut off its results again."""
        height, width = (max(batch['inputs'].shape[axis] for batch in batches) for axis in (2, 3))
        images, samples = [], []
        for batch in batches:
            image = batch['inputs']
            right, bottom = width - image.shape[3], height - image.shape[2]
            images.append(F.pad(image, (0, right, 0, bottom), value=self.pad_val))
            for sample in batch['data_samples'] or ():
                filled = sample.get('img_padding_size', sample.get('padding_size', (0, 0, 0, 0)))
                filled = (filled[0], filled[1] + right, filled[2], filled[3] + bottom)
                sample.set_metainfo(dict(img_padding_size=filled, pad_shape=(height, width)))
                samples.append(sample)
        return dict(inputs=torch.cat(images), data_samples=samples or None)


def _one_by_one(data: dict) -> List[dict]:
    samples = data.get('data_samples')
    return [dict(inputs=[image], data_samples=samples and [samples[i]]) for i, image in enumerate(data['inputs'])]
