"""A whole model that gives an image the same results whatever it is batched with.

What lies after the backbone is run on each image alone, cut to its extent. Then convolutions, poolings, norms,
upsampling, dense heads, RoIAlign and the masks of DETRs see an image's own border by construction, in any model.
"""
import functools
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence, Type

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from ...errors import InputError
from ..extents import attach_extents, get_extents
from .crop import cut_image, cut_sample, known_extents
from .feature_cache import attach_features, cut_features
from .joint_batch_norm import run_side_by_side
from .size_divisor import fill_up, side_multiple

Samples = Sequence[BaseDataElement]

# what is called for each image is compiled, the loop over images is not
_no_compiler = torch.compiler.disable(recursive=False)
_OF_SIZES = ('must match', 'equal size')  # in what PyTorch says of maps that don't fit
_BATCH_NORM = nn.BatchNorm2d.__base__  # of nn.SyncBatchNorm too, and of what mmengine puts in its place


def make_padding_invariant(model: nn.Module) -> nn.Module:
    """Make every detector and segmentor in ``model`` treat what lies outside an image's extent as if it did not exist.

    Its results for an image are then those of the image alone, and a training loss is the mean of the losses of its
    images alone. What a model normalises over the batch, such as the number of positive boxes, it now normalises for
    each image; with several processes, mmdet takes the mean of such numbers over the images of the same place in each
    batch, and every process must hold as many images as the others. Batch norms in training keep their statistics over
    the batch, without its padding. ``mode='tensor'`` stays as it is.

    Extents are read from the batch (:func:`swin_rpe_mm.attach_extents`; our data preprocessors do it), else from
    ``img_shape`` of the samples. Every image is run at its own size, also without what ``pad_size_divisor`` adds; only
    for models with layers that double maps and join them, such as RTMDet's neck or SOLO's head, is it filled up to the
    next multiple of 32, whatever the batch. If other layers don't take a size, this is said in one sentence.

    Args:
        model (nn.Module): A model of MMDetection or MMSegmentation, also one inside a wrapper (DDP, test-time
            augmentation, a teacher and its student). It is changed in place: its weights, names and state dict stay.
            Doing it twice changes nothing.

    Returns:
        nn.Module: ``model`` itself.

    Raises:
        InputError: If there is no detector or segmentor in it.
    """
    found = {module: _mixin(module) for module in model.modules() if _mixin(module) is not None}
    if not found:
        raise InputError('model must hold a detector or segmentor of MMDetection or MMSegmentation, got '
                         f'{type(model).__name__}')
    for module, mixin in found.items():
        if not isinstance(module, mixin):
            module.__class__ = _subclass(type(module), mixin)
    return model


class _Picklable:
    """A copy, or a pickle, is made from the class that can be imported."""

    def __reduce_ex__(self, protocol: int) -> tuple:
        mixin, cls = type(self).__bases__
        return _new, (cls, mixin), self.__dict__


class PaddingInvariant(_Picklable):
    """Mixed into a detector's or segmentor's class: it predicts and learns from each image alone."""

    @_no_compiler
    def predict(self, inputs: Tensor, data_samples: Optional[Samples] = None, *args, **kwargs) -> List[BaseDataElement]:
        """Results of each image, in order; see the model's own ``predict``."""
        _check_images(self, inputs)
        # On a CPU the backbone gains nothing from a batch, and alone its rounding is the same in every batch
        images = _alone(self, inputs, data_samples, self.backbone if inputs.is_cuda else None)
        predict = functools.partial(_call, super().predict)
        if data_samples is None:
            return [result for image in images for result in predict(image, None, *args, **kwargs)]
        for image, sample in zip(images, data_samples):
            cut = _cut(sample, inputs, image)
            given = dict(cut.items())
            (result, ) = predict(image, [cut], *args, **kwargs)
            sample.set_data({key: value for key, value in result.items() if given.get(key) is not value})
        return list(data_samples)

    @_no_compiler
    def loss(self, inputs: Tensor, data_samples: Samples, *args, **kwargs) -> Dict[str, Any]:
        """The mean of the images' losses; see the model's own ``loss``."""
        _check_images(self, inputs)
        loss = super().loss
        return _mean_loss(self, self.backbone, inputs, data_samples,
                          [lambda image, samples: loss(image, samples, *args, **kwargs)] * len(inputs))


class SemiPaddingInvariant(_Picklable):
    """Mixed into a semi-supervised detector's class. Losses with labels are those of its student, which is a detector;
    the others it makes from the layers of teacher and student, so that it takes each image alone itself."""

    @_no_compiler
    def get_pseudo_instances(self, batch_inputs: Tensor, batch_data_samples: Samples) -> tuple:
        """Samples with the teacher's predictions, and what else the loss needs of each image."""
        images = _alone(self, batch_inputs, batch_data_samples,
                        self.teacher.backbone if batch_inputs.is_cuda else None)
        found, infos = [], []
        for image, sample in zip(images, batch_data_samples):
            samples, info = _call(super().get_pseudo_instances, image, [_cut(sample, batch_inputs, image)])
            found.extend(samples)
            infos.append(info)
        return found, infos

    @_no_compiler
    def loss_by_pseudo_instances(self, batch_inputs: Tensor, batch_data_samples: Samples,
                                 batch_info: Optional[List[Any]] = None) -> Dict[str, Any]:
        """The mean of the images' losses; ``batch_info`` is that of :meth:`get_pseudo_instances`."""
        loss, infos = super().loss_by_pseudo_instances, batch_info or [None] * len(batch_inputs)
        return _mean_loss(self, self.student.backbone, batch_inputs, batch_data_samples,
                          [functools.partial(loss, batch_info=info) for info in infos])


def _mixin(module: nn.Module) -> Optional[type]:
    """What a module's class becomes a child of: None if it is no detector or segmentor."""
    if not isinstance(module, BaseModel):
        return None
    if all(hasattr(module, name) for name in ('student', 'teacher', 'get_pseudo_instances')):
        return SemiPaddingInvariant
    # what re-identifies objects in a tracker has a head and compares images: its loss is none of single images
    single = all(hasattr(module, name) for name in ('backbone', 'predict', 'loss')) and not hasattr(module, 'head')
    return PaddingInvariant if single else None


@functools.lru_cache(maxsize=None)
def _subclass(cls: Type[nn.Module], mixin: type) -> Type[nn.Module]:
    # a class and no closures on the instance: a deep copy, such as EMA's, then runs its own layers
    names = dict(__module__=cls.__module__, __qualname__=cls.__qualname__, __doc__=cls.__doc__)
    return type(cls.__name__, (mixin, cls), names)


def _new(cls: Type[nn.Module], mixin: type) -> nn.Module:
    made = _subclass(cls, mixin)
    return made.__new__(made)


def _check_images(model: nn.Module, inputs: Any) -> None:
    if not isinstance(inputs, Tensor) or inputs.ndim != 4:
        raise InputError(f'inputs of {type(model).__name__} must be one tensor of images, (B, C, H, W), for it to '
                         f'ignore padding; got {type(inputs).__name__}')


@torch.compiler.disable
def _cut(sample: BaseDataElement, inputs: Tensor, image: Tensor) -> BaseDataElement:
    return cut_sample(sample, tuple(inputs.shape[-2:]), tuple(image.shape[-2:]))


@torch.compiler.disable
def _alone(model: nn.Module, inputs: Tensor, samples: Optional[Samples],
           backbone: Optional[nn.Module]) -> List[Tensor]:
    """Every image cut to its extent; with the features that ``backbone`` gives for all in one call, if it is one of
    ours, whose features of an image do not depend on the batch."""
    extents, multiple, size = known_extents(inputs, samples), side_multiple(model), tuple(inputs.shape[-2:])
    sizes = [fill_up(extent, multiple, size) for extent in extents]
    images = [cut_image(inputs, i, *each) for i, each in enumerate(zip(extents, sizes))]
    if len(images) > 1 and getattr(getattr(backbone, 'config', None), 'mask_padding', False):
        # on the batch, since what is made of a backbone may take nothing but images
        batch = inputs if get_extents(inputs) else attach_extents(inputs.view_as(inputs), extents)
        for image, maps in zip(images, cut_features(backbone(batch), backbone.output_strides, sizes)):
            attach_features(image, backbone, maps)
    return images


@_no_compiler
def _mean_loss(model: nn.Module, backbone: nn.Module, inputs: Tensor, samples: Samples,
               losses: Sequence[Callable]) -> Dict[str, Any]:
    """Mean over the images of their losses, each a method that takes an image and a list of its sample."""
    images = _alone(model, inputs, samples, backbone)
    tasks = [functools.partial(_call, loss, image, [_cut(sample, inputs, image)])
             for loss, image, sample in zip(losses, images, samples)]
    norms = [module for module in model.modules() if module.training and isinstance(module, _BATCH_NORM)]
    if len(tasks) == 1 or not norms:
        return mean_losses([task() for task in tasks])
    for module in model.modules():
        if getattr(module, 'with_cp', False) and set(norms) & set(module.modules()):
            raise InputError(f'with_cp of {type(module).__name__} must be False for its model to ignore padding in '
                             'training: it holds batch norms, which would see the images again one by one')
    return mean_losses(run_side_by_side(tasks, norms))


def mean_losses(losses: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """Means of what the dicts hold, key by key: tensors, or lists of tensors. What one lacks counts as zero there."""
    keys = {key: None for each in losses for key in each}
    return {key: _mean([each[key] for each in losses if key in each], len(losses)) for key in keys}


def _mean(values: Sequence[Any], count: int) -> Any:
    if isinstance(values[0], Tensor):
        return sum(value.mean() for value in values) / count
    longest = max(map(len, values))
    return [_mean([value[i] for value in values if i < len(value)], count) for i in range(longest)]


@_no_compiler
def _call(method: Callable, image: Tensor, *args, **kwargs) -> Any:
    """Run a model on one image; what an odd size breaks is said in one sentence."""
    try:
        return method(image, *args, **kwargs)
    except (RuntimeError, AssertionError) as error:
        h, w = image.shape[-2:]
        sizes_differ = isinstance(error, AssertionError) or any(words in str(error) for words in _OF_SIZES)
        if not sizes_differ or h % 32 == w % 32 == 0:
            raise
        raise InputError(f'{_innermost_layer(error)} does not take the maps of an image of {h}x{w} pixels: for its '
                         'model to ignore padding, sides of images must be multiples of 32') from error


def _innermost_layer(error: BaseException) -> str:
    layers = [frame.f_locals.get('self') for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [type(layer).__name__ for layer in layers if isinstance(layer, nn.Module)][-1]
