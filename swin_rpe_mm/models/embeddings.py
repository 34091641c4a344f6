"""Absolute position embeddings and first convolutions of another size."""
import math
from typing import Optional, Tuple

import torch
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


def cubic_matrix(length: int, extents: Tensor, source: int) -> Tensor:
    """Bicubic interpolation along an axis as a product.

    The weights of ``torch.nn.functional.interpolate(mode='bicubic', align_corners=False)`` (Keys 1981 with a = -0.75),
    for images of different extents at once, and without a shape that depends on them.

    Args:
        length (int): Entries of the result.
        extents (Tensor): ``(B,)``, over how many of them each image's source is stretched; what lies beyond is of no
            account.
        source (int): Entries of the source.

    Returns:
        Tensor: ``(B, length, source)`` float32.
    """
    at = (torch.arange(length, device=extents.device) + 0.5) * (source / extents[:, None]) - 0.5
    first = at.floor()
    t = (at - first)[..., None] + 1 - torch.arange(4, device=at.device)  # distance to the four taps
    t = t.abs()
    near, far = ((1.25 * t - 2.25) * t) * t + 1, ((-0.75 * t + 3.75) * t - 6) * t + 3
    weights = torch.where(t <= 1, near, far)
    taps = (first.long()[..., None] + torch.arange(-1, 3, device=at.device)).clamp(0, source - 1)
    return (weights[..., None] * (taps[..., None] == torch.arange(source, device=at.device))).sum(-2)
