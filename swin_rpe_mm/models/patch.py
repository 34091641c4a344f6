"""Patch embedding and patch merging (arXiv 2103.14030, section 3.1), for maps of any size."""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..windows.indices import ceil_div, split

Size = Tuple[int, int]


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
        """``(B, C, H, W)`` images to ``(B, H' * W', embed_dims)`` tokens and ``(H', W')``; sides are rounded up."""
        height, width = images.shape[2:]
        size = ceil_div(height, self.patch_size[0]), ceil_div(width, self.patch_size[1])
        bottom, right = size[0] * self.patch_size[0] - height, size[1] * self.patch_size[1] - width
        tokens = self.projection(F.pad(images, (0, right, 0, bottom))).flatten(2).transpose(1, 2)
        return tokens if self.norm is None else self.norm(tokens), size


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
        merged = ceil_div(size[0], self.stride[0]), ceil_div(size[1], self.stride[1])
        joined = self._join(tokens, size, merged)
        if self.norm is None:
            return self.reduction(joined), merged
        return self.norm(self.reduction(joined)) if self.norm_after else self.reduction(self.norm(joined)), merged

    def _join(self, tokens: Tensor, size: Size, merged: Size) -> Tensor:
        """``(B, H * W, C)`` to ``(B, H' * W', 4 * C)``; zeros beyond the map."""
        batch_size, _, channels = tokens.shape
        total = batch_size * merged[0] * merged[1] * 4
        image, y, x, down, right = split(torch.arange(total, device=tokens.device), (*merged, 2, 2))
        y, x = y * self.stride[0] + down, x * self.stride[1] + right
        there = (y < size[0]) & (x < size[1])
        rows = torch.where(there, (image * size[0] + y) * size[1] + x, 0)
        four = torch.where(there[:, None], tokens.flatten(0, 1).index_select(0, rows), 0)
        return four.view(batch_size, merged[0] * merged[1], 4, channels).transpose(2, 3).flatten(2)
