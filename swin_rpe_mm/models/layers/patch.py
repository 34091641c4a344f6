"""Patch embedding and patch merging (arXiv 2103.14030, section 3.1), for maps of any size."""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from .linear import can_recompute, is_plain, norm_linear

Size = Tuple[int, int]


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
        maps = self.projection(images)
        tokens = maps.flatten(2).transpose(1, 2)
        return tokens if self.norm is None else self.norm(tokens), tuple(maps.shape[-2:])


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
        merged_size = tuple((side - 2) // s + 1 for side, s in zip(maps.shape[1:3], self.stride))
        rows, cols = ([slice(i, i + (side - 1) * s + 1, s) for i in (0, 1)]
                      for side, s in zip(merged_size, self.stride))
        merged = torch.cat([maps[:, row, col] for row in rows for col in cols], dim=-1).flatten(1, 2)

        norm = nn.Identity() if self.norm is None else self.norm
        if self.norm_after or not (can_recompute(norm) and is_plain(self.reduction)):
            merged = merged.unflatten(-1, (4, -1)).transpose(-1, -2).flatten(-2)
            return norm(self.reduction(merged)) if self.norm_after else self.reduction(norm(merged)), merged_size

        # the joined channels lie token by token in memory; the weights are brought into that order, not the tokens
        def by_token(weight: Tensor) -> Tensor:
            return weight.unflatten(-1, (-1, 4)).transpose(-1, -2).flatten(-2)

        reduced = norm_linear(merged.flatten(0, 1), by_token(norm.weight), by_token(norm.bias), norm.eps,
                              by_token(self.reduction.weight))
        return reduced.unflatten(0, merged.shape[:2]), merged_size
