"""Patch embedding, patch merging and output norms on a CPU, band by band."""
from typing import Callable, Iterable, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models import PatchEmbed, PatchMerging
from ..tuning import current
from .linear import can_recompute, norm_linear, run_in_parts

Size = Tuple[int, int]


def embed(module: PatchEmbed, images: Tensor) -> Tuple[Tensor, Size]:
    """As :meth:`~swin_rpe_mm.models.PatchEmbed.forward`: patches do not overlap, so that the convolution is a product
    of their pixels, and no map changes its order."""
    (h, w), conv, norm = module.patch_size, module.projection, module.norm or nn.Identity()
    weight = conv.weight.flatten(1)
    bottom, right = -images.shape[2] % h, -images.shape[3] % w
    images = F.pad(images, (0, right, 0, bottom)) if bottom or right else images
    patches = images.unflatten(3, (-1, w)).unflatten(2, (-1, h)).permute(0, 2, 4, 1, 3, 5)
    batch_size, *size = patches.shape[:3]
    if torch.is_grad_enabled():
        return norm(F.linear(patches.reshape(batch_size, size[0] * size[1], -1), weight, conv.bias)), tuple(size)
    step = max(1, current().rows_at_once // size[1])
    bands = (band.reshape(-1, weight.shape[1]) for image in patches for band in image.split(step))
    return _run(lambda rows: norm(F.linear(rows, weight, conv.bias)), bands, batch_size, size)


def why_not_merge(module: PatchMerging) -> str:
    """Why patch merging is called, or an empty sentence."""
    return 'SwinV2 norms what was merged' if module.norm_after or not can_recompute(module.norm) else ''


def merge(module: PatchMerging, tokens: Tensor, size: Size) -> Tuple[Tensor, Size]:
    """As :meth:`~swin_rpe_mm.models.PatchMerging.forward`: the joined channels lie token by token in memory, and the
    weights are brought into that order, not the tokens."""
    maps, norm = tokens.unflatten(1, size), module.norm
    bottom, right = (max((-(-side // step) - 1) * step + 2 - side, 0) for side, step in zip(size, module.stride))
    maps = F.pad(maps, (0, 0, 0, right, 0, bottom)) if bottom or right else maps

    def by_token(weight: Tensor) -> Tensor:
        return weight.unflatten(-1, (-1, 4)).transpose(-1, -2).flatten(-2)

    weight = by_token(module.reduction.weight)
    scale, shift = (None, None) if norm is None else (by_token(norm.weight), by_token(norm.bias))
    merged = tuple((side - 2) // step + 1 for side, step in zip(maps.shape[1:3], module.stride))
    if torch.is_grad_enabled():
        joined = _join(maps, module.stride).flatten(0, 2)
        reduced = F.linear(joined, weight) if norm is None else norm_linear(joined, scale, shift, norm.eps, weight)
        return reduced.unflatten(0, (len(maps), -1)), merged

    def reduce(rows: Tensor) -> Tensor:
        return F.linear(rows if norm is None else F.layer_norm(rows, scale.shape, scale, shift, norm.eps), weight)

    step = max(1, current().rows_at_once // merged[1])
    down = module.stride[0]
    bands = (_join(image[None, first * down:(first + step - 1) * down + 2], module.stride).flatten(0, 2)
             for image in maps for first in range(0, merged[0], step))
    return _run(reduce, bands, len(maps), merged)


def to_maps(norm: nn.Module, tokens: Tensor, size: Size) -> Tensor:
    """Norm of ``(B, L, C)`` as ``(B, C, H, W)``, without gradients and without a second copy of the tokens."""
    maps = tokens.new_empty(len(tokens), tokens.shape[2], tokens.shape[1])
    step = current().tokens_at_once
    for part, rows in zip(maps.split(step, 2), tokens.split(step, 1)):
        part.copy_(norm(rows).transpose(1, 2))
    return maps.unflatten(2, size)


def _run(function: Callable[[Tensor], Tensor], bands: Iterable[Tensor], batch_size: int,
         size: Size) -> Tuple[Tensor, Size]:
    tokens = run_in_parts(function, bands, batch_size * size[0] * size[1])
    return tokens.unflatten(0, (batch_size, -1)), tuple(size)


def _join(maps: Tensor, stride: Size) -> Tensor:
    """``(B, H, W, C)`` to ``(B, H', W', 4 * C)``, token by token."""
    rows, cols = ([slice(i, side - 1 + i, s) for i in (0, 1)] for side, s in zip(maps.shape[1:3], stride))
    return torch.cat([maps[:, row, col] for row in rows for col in cols], dim=-1)
