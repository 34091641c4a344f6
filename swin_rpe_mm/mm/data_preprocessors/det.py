"""MMDetection's data preprocessor, with extents."""
from mmdet.models.data_preprocessors import DetDataPreprocessor as MMDetDataPreprocessor

from ..extents import attach_extents
from .sizes import image_sizes


class DetDataPreprocessor(MMDetDataPreprocessor):
    """mmdet's ``DetDataPreprocessor``, same arguments; the batch it returns carries each image's extent.

    The extent is ``img_shape`` of the data sample: what the pipeline and the batch augmentations call the image, before
    the batch and ``pad_size_divisor`` are filled up. Without data samples it is the size of the tensor that came in.
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """Normalise, pad and stack, in training and testing; see mmdet.

        Raises:
            InputError: If an image has no pixels, or its ``img_shape`` exceeds the batch.
        """
        sizes = image_sizes(data['inputs'])
        data = super().forward(data, training)
        samples = data['data_samples']
        if samples is not None:
            sizes = [sample.get('img_shape', size)[:2] for sample, size in zip(samples, sizes)]
        data['inputs'] = attach_extents(data['inputs'], sizes)
        return data
