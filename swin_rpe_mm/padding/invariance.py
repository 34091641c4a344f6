"""A whole model that gives an image the same results whatever it is batched with.

What lies after the backbone is run on each image alone, cut to its extent. Then convolutions, poolings, norms,
upsampling, dense heads, RoIAlign and the masks of DETRs see an image's own border by construction, in any model.
"""
from functools import lru_cache
from typing import List, Optional, Sequence, Type

from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from ..errors import InputError
from .alone import cut_image, cut_sample, known_extents


def make_padding_invariant(model: nn.Module) -> nn.Module:
    """Make every detector and segmentor in ``model`` treat what lies outside an image's extent as if it did not exist.

    Args:
        model (nn.Module): A model of MMDetection or MMSegmentation, also one inside a wrapper (DDP, test-time
            augmentation, a teacher and its student). It is changed in place: its weights, names and state dict stay.
            Doing it twice changes nothing.

    Returns:
        nn.Module: ``model`` itself.

    Raises:
        InputError: If there is no detector or segmentor in it.
    """
    found = [module for module in model.modules() if _takes_images(module)]
    if not found:
        raise InputError(f'model must hold a detector or segmentor of MMDetection or MMSegmentation, got '
                         f'{type(model).__name__}')
    for module in found:
        if not isinstance(module, PaddingInvariant):
            module.__class__ = _invariant_class(type(module))
    return model


class PaddingInvariant:
    """Mixed into a detector's or segmentor's class: it predicts and learns from each image alone."""

    def predict(self, inputs: Tensor, data_samples: Optional[Sequence[BaseDataElement]] = None, *args,
                **kwargs) -> List[BaseDataElement]:
        """Results of each image, in order; see the model's own ``predict``."""
        size = tuple(inputs.shape[-2:])
        results = []
        for i, extent in enumerate(known_extents(inputs, data_samples)):
            image = cut_image(inputs, i, extent)
            if data_samples is None:
                results.extend(super().predict(image, None, *args, **kwargs))
                continue
            cut = cut_sample(data_samples[i], size, extent)
            given = dict(cut.items())
            (result, ) = super().predict(image, [cut], *args, **kwargs)
            written = {key: value for key, value in result.items() if given.get(key) is not value}
            data_samples[i].set_data(written)
            results.append(data_samples[i])
        return results


def _takes_images(module: nn.Module) -> bool:
    return isinstance(module, BaseModel) and all(
        hasattr(module, name) for name in ('extract_feat', 'predict', 'loss')) and not hasattr(module, 'student')


@lru_cache(maxsize=None)
def _invariant_class(cls: Type[nn.Module]) -> Type[nn.Module]:
    # a class and no closures on the instance: a deep copy, such as EMA's, then runs its own layers
    names = dict(__module__=cls.__module__, __qualname__=cls.__qualname__, __doc__=cls.__doc__)
    return type(cls.__name__, (PaddingInvariant, cls), names)
