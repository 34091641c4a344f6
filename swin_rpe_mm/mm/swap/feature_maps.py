"""The maps that a backbone or a neck gives: it is built without weights and run once."""
from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from ...errors import InputError
from ..configs import type_name

# where to run, on images of which size: without storage any costs the same, and SSD's necks need a large one
_TRIALS = (('meta', 512), ('cpu', 128), ('cpu', 512))


@dataclass(frozen=True)
class FeatureMap:
    """Channels of a map, and how many pixels of the image lie between two of its cells."""
    channels: int
    stride: int


def backbone_maps(backbone: dict, scope: str | None) -> list[FeatureMap]:
    """The maps that a backbone gives, in order.

    Args:
        backbone (dict): Its config.
        scope (str, optional): The config's ``default_scope``, in whose registries names are looked up first.

    Raises:
        InputError: If it cannot be built or run here.
    """

    def run(module: nn.Module, size: int) -> list[FeatureMap]:
        with torch.no_grad():
            return _measure(module(torch.zeros(1, image_channels(backbone), size, size)), size)

    return _on_meta_or_cpu(backbone, scope, run)


def neck_maps(neck: dict, maps: Sequence[FeatureMap], scope: str | None) -> tuple[list[FeatureMap], list[int]]:
    """The maps that a neck gives, and which of those before it it makes use of.

    Args:
        neck (dict): Its config.
        maps (Sequence[FeatureMap]): The maps before it.
        scope (str, optional): The config's ``default_scope``.

    Raises:
        InputError: If it cannot be built or run here.
    """

    def run(module: nn.Module, size: int) -> tuple[list[FeatureMap], list[int]]:
        inputs = [torch.zeros(1, item.channels, *[size // item.stride] * 2, requires_grad=True) for item in maps]
        outs = module(tuple(inputs))
        grads = torch.autograd.grad([out.sum() for out in _as_maps(outs)], inputs, allow_unused=True)
        return _measure(outs, size), [i for i, grad in enumerate(grads) if grad is not None]

    return _on_meta_or_cpu(neck, scope, run)


def image_channels(backbone: dict) -> int:
    """Channels of the image that a backbone takes."""
    return backbone.get('in_channels', 3)


def _on_meta_or_cpu(module: dict, scope: str | None, run: Callable):
    """Without storage where that is possible; compiled operators, and ``item()`` in a constructor, need the CPU."""
    for device, size in _TRIALS:
        try:
            # tensors that are made while it runs are to lie there as well
            with torch.device(device), DefaultScope.overwrite_default_scope(scope):
                built = MODELS.build(copy.deepcopy(module))
                built.eval()  # which gives nothing back in mmdet
                return run(built, size)
        except Exception as error:  # modules fail in any way
            if (device, size) == _TRIALS[-1]:
                raise InputError(f'{type_name(module)} cannot be built and run here, which tells the channels of its '
                                 f'maps: {" ".join(str(error).split())}') from error


def _as_maps(outs) -> list[Tensor]:
    """The maps in what a module gives, which may come each with the vector of a class token."""
    if isinstance(outs, Tensor):
        return [outs] if outs.ndim == 4 else []
    return [found for out in outs for found in _as_maps(out)]


def _measure(outs, size: int) -> list[FeatureMap]:
    return [FeatureMap(out.shape[1], round(size / out.shape[-1])) for out in _as_maps(outs)]
