"""Patch embedding and patch merging (arXiv 2103.14030, section 3.1), for maps of any size."""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..executors.linear import can_recompute, has_hooks, is_plain, norm_linear, run_in_parts

Size = Tuple[int, int]

_ROWS_AT_ONCE = 2048


def _missing(size: Size, kernel: Size, stride: Size) -> Tuple[int, int]:
    """Rows and columns to add at the end of a map, so that a kernel at every stride covers all of it."""
    return tuple(max((-(-side // s) - 1) * s + k - side, 0) for side, k, s in zip(size, kernel, stride))


class PatchEmbed(BaseModule):
    """Cut images into patches and project each to a token.

    Args:
        in_channels (int): Channels of the images.
        embed_dims (int): Channels of the tokens.
        patch_size (tuple[int, int]): Height and width of a patch in pixels.
        norm_cfg (dict, optional): Norm of the tokens.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: Size, norm_cfg: Optional[dict] = None):
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(in_channels, embed_dims, patch_size, patch_size)
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1] if norm_cfg else None

    def forward(self, images: Tensor) -> Tuple[Tensor, Size]:
        """``(B, C, H, W)`` images to ``(B, H' * W', embed_dims)`` tokens and ``(H', W')``."""
        height, width = _missing(images.shape[-2:], self.patch_size, self.patch_size)
        if height or width:
            images = F.pad(images, (0, width, 0, height))
        conv, norm = self.projection, self.norm or nn.Identity()
        if images.device.type != 'cpu' or type(conv) is not nn.Conv2d or has_hooks(conv):
            maps = conv(images)
            return norm(maps.flatten(2).transpose(1, 2)), tuple(maps.shape[-2:])

        # patches do not overlap: the convolution is a product of their pixels, and on a CPU no map changes its order
        (h, w), weight = self.patch_size, conv.weight.flatten(1)
        patches = images.unflatten(3, (-1, w)).unflatten(2, (-1, h)).permute(0, 2, 4, 1, 3, 5)
        batch_size, *size = patches.shape[:3]
        if torch.is_grad_enabled():
            return norm(F.linear(patches.reshape(batch_size, size[0] * size[1], -1), weight, conv.bias)), tuple(size)
        step = max(1, _ROWS_AT_ONCE // size[1])
        bands = (band.reshape(-1, weight.shape[1]) for image in patches for band in image.split(step))
        tokens = run_in_parts(lambda rows: norm(F.linear(rows, weight, conv.bias)), bands,
                              batch_size * size[0] * size[1])
        return tokens.unflatten(0, (batch_size, -1)), tuple(size)


class PatchMerging(BaseModule):
    """Join the tokens of each 2x2 neighbourhood, normalise, and project them.

    The four tokens are joined channel by channel, in the order of ``nn.Unfold``, as mm does and its checkpoints need.

    Args:
        in_channels (int): Channels before.
        out_channels (int): Channels after.
        stride (tuple[int, int]): Step between neighbourhoods.
        norm_cfg (dict, optional): Norm of the joined tokens.
        norm_after (bool): Normalise the projected tokens instead, as SwinV2's code does.
    """
    kernel = (2, 2)

    def __init__(self,
                 in_channels: int,
                 out_channels: int,
                 stride: Size,
                 norm_cfg: Optional[dict] = None,
                 norm_after: bool = False):
        super().__init__()
        self.stride = stride
        self.norm_after = norm_after
        self.norm = build_norm_layer(norm_cfg, out_channels if norm_after else 4 * in_channels)[1] if norm_cfg else None
        self.reduction = nn.Linear(4 * in_channels, out_channels, bias=False)

    def forward(self, tokens: Tensor, size: Size) -> Tuple[Tensor, Size]:
        """``(B, H * W, in_channels)`` and ``(H, W)`` to ``(B, H' * W', out_channels)`` and ``(H', W')``."""
        maps = tokens.unflatten(1, size)
        height, width = _missing(size, self.kernel, self.stride)
        if height or width:
            maps = F.pad(maps, (0, 0, 0, width, 0, height))
        norm = nn.Identity() if self.norm is None else self.norm
        if self.norm_after or not (can_recompute(norm) and is_plain(self.reduction)):
            joined = self._join(maps)
            tokens = joined.flatten(1, 2).unflatten(-1, (4, -1)).transpose(-1, -2).flatten(-2)
            tokens = norm(self.reduction(tokens)) if self.norm_after else self.reduction(norm(tokens))
            return tokens, tuple(joined.shape[1:3])

        # the joined channels lie token by token in memory; the weights are brought into that order, not the tokens
        def by_token(weight: Tensor) -> Tensor:
            return weight.unflatten(-1, (-1, 4)).transpose(-1, -2).flatten(-2)

        scale, shift, weight = by_token(norm.weight), by_token(norm.bias), by_token(self.reduction.weight)
        if maps.device.type != 'cpu' or torch.is_grad_enabled() or torch.compiler.is_compiling():
            joined = self._join(maps)
            reduced = norm_linear(joined.flatten(0, 2), scale, shift, norm.eps, weight)
            return reduced.unflatten(0, (len(maps), -1)), tuple(joined.shape[1:3])

        size = tuple((side - 2) // s + 1 for side, s in zip(maps.shape[1:3], self.stride))
        step = max(1, _ROWS_AT_ONCE // size[1])
        bands = (self._join(image[None, first * self.stride[0]:(first + step - 1) * self.stride[0] + 2]).flatten(0, 2)
                 for image in maps for first in range(0, size[0], step))
        reduced = run_in_parts(lambda rows: F.linear(F.layer_norm(rows, scale.shape, scale, shift, norm.eps), weight),
                               bands, len(maps) * size[0] * size[1])
        return reduced.unflatten(0, (len(maps), -1)), size

    def _join(self, maps: Tensor) -> Tensor:
        """``(B, H, W, C)`` to ``(B, H', W', 4 * C)``, token by token."""
        rows, cols = ([slice(i, side - 1 + i, s) for i in (0, 1)] for side, s in zip(maps.shape[1:3], self.stride))
        return torch.cat([maps[:, row, col] for row in rows for col in cols], dim=-1)
