"""Patch embedding and patch merging (arXiv 2103.14030, section 3.1), for maps of any size."""
from typing import Optional, Tuple

import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

Size = Tuple[int, int]


def _fill_up(maps: Tensor, kernel: Size, stride: Size) -> Tensor:
    """Zeros on the right and at the bottom of ``(B, C, H, W)``, so that a kernel at every stride covers all of it."""
    height, width = ((-(-side // s) - 1) * s + k - side for side, k, s in zip(maps.shape[-2:], kernel, stride))
    return F.pad(maps, (0, max(width, 0), 0, max(height, 0)))


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
        maps = self.projection(_fill_up(images, self.patch_size, self.patch_size))
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
        maps = tokens.transpose(1, 2).unflatten(2, size)
        maps = _fill_up(maps, self.kernel, self.stride)
        merged_size = tuple((side - 2) // s + 1 for side, s in zip(maps.shape[-2:], self.stride))
        if self.stride == self.kernel:  # the same as unfold, without its slow gradient
            blocks = maps.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))  # B, C, H', 2, W', 2
            merged = blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        else:
            merged = F.unfold(maps, self.kernel, stride=self.stride).transpose(1, 2)
        if self.norm is None:
            return self.reduction(merged), merged_size
        if self.norm_after:
            return self.norm(self.reduction(merged)), merged_size
        return self.reduction(self.norm(merged)), merged_size
