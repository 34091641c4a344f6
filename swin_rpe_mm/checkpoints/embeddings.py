"""Absolute position embeddings and first convolutions of another size."""
import math
from typing import Optional, Tuple

import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError

Size = Tuple[int, int]
INPUT_MODES = ('mean', 'tile')


def fit_embedding(embedding: Tensor, old: Size, new: Size) -> Tensor:
    """An embedding ``(1, tokens, C)`` of a map of one size, stretched over another (bicubic)."""
    if old == new:
        return embedding
    grid = embedding.transpose(1, 2).unflatten(2, old)
    return F.interpolate(grid, size=new, mode='bicubic', align_corners=False).flatten(2).transpose(1, 2).contiguous()


def size_of_embedding(name: str, tokens: int, likely: Size, argument: str) -> Size:
    """The size of a map of ``tokens``: ``likely`` if it fits, else a square.

    Raises:
        InputError: If it is neither; the sentence names the model's argument to give instead.
    """
    if tokens == likely[0] * likely[1]:
        return likely
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise InputError(f'{name} of the checkpoint has {tokens} tokens, which is no square; build the model with the '
                         f'{argument} it was trained with')
    return side, side


def fit_input_channels(weight: Tensor, channels: int, mode: Optional[str]) -> Tensor:
    """A first convolution for images of another number of channels.

    The weights are scaled by the ratio of the numbers, so that tokens keep their size.

    Args:
        weight (Tensor): ``(C, old channels, h, w)``.
        channels (int): The new number.
        mode (str, optional): ``mean`` gives every channel the mean of the old ones; ``tile`` repeats them in turn.

    Returns:
        Tensor: ``(C, channels, h, w)``; ``weight`` itself if the numbers are equal.

    Raises:
        InputError: If the numbers differ and no mode is given.
    """
    old = weight.shape[1]
    if old == channels:
        return weight
    if mode is None:
        raise InputError(f'the first convolution of the checkpoint takes {old} channels and the model {channels}: '
                         "input_weights='mean' gives each the mean of the old ones, 'tile' repeats them")
    if mode == 'mean':
        fitted = weight.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    else:
        fitted = weight[:, [channel % old for channel in range(channels)]]
    return fitted * (old / channels)
