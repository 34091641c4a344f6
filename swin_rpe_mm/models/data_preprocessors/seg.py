"""MMSegmentation's data preprocessor, with extents."""
from mmseg.models import SegDataPreProcessor as MMSegDataPreprocessor

from ...padding import attach_extents
from .sizes import image_sizes


class SegDataPreprocessor(MMSegDataPreprocessor):
    """mmseg's ``SegDataPreProcessor``, same arguments; the batch it returns carries each image's extent.

    The extent is the size of the image that came in, before it was filled up to ``size`` or ``size_divisor``.
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """Normalise, pad and stack, in training and testing; see mmseg.

        Raises:
            InputError: If an image has no pixels.
        """
        sizes = image_sizes(data['inputs'])
        data = super().forward(data, training)
        attach_extents(data['inputs'], sizes)
        return data
