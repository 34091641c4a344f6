"""Swin's block, and a stage of blocks."""
from typing import Optional, Sequence, Tuple

import torch.utils.checkpoint as cp
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule, ModuleList
from torch import Tensor

from ...windows import WindowLayout, pack
from .attention import ShiftedWindowAttention
from .patch import PatchMerging


def drop_images(branch: Tensor, image: Tensor, batch_size: int, rate: float) -> Tensor:
    """Drop path: per image, set a residual branch to zero with probability ``rate`` or divide it by ``1 - rate``.

    Args:
        branch (Tensor): Packed tokens ``(K, C)``. All tokens of an image share one draw.
        image (Tensor): ``(K,)`` long, the image each token belongs to.
        batch_size (int): Number of images.
        rate (float): Probability in [0, 1).

    Returns:
        Tensor: ``(K, C)``.
    """
    if rate == 0:
        return branch
    keep = branch.new_empty(batch_size).bernoulli_(1 - rate).div_(1 - rate)
    return branch * keep[image, None]


class SwinBlock(BaseModule):
    """Norm, window attention, residual; norm, MLP, residual. SwinV2 (arXiv 2111.09883) norms after each branch.

    Args:
        embed_dims (int): Channels.
        feedforward_channels (int): Hidden channels of the MLP.
        norm_after (bool): Normalise what a branch gives, not what it gets.
        drop_rate (float): Dropout in the MLP and after attention.
        drop_path_rate (float): Probability of dropping each residual branch of an image.
        act_cfg (dict): Activation of the MLP.
        norm_cfg (dict): Norms.
        with_cp (bool): Recompute the block in the backward pass to save memory.
        **attention: Arguments of :class:`~.attention.WindowAttention`.
    """

    def __init__(self,
                 embed_dims: int,
                 feedforward_channels: int,
                 norm_after: bool = False,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 act_cfg: Optional[dict] = None,
                 norm_cfg: Optional[dict] = None,
                 with_cp: bool = False,
                 **attention):
        super().__init__()
        self.with_cp = with_cp
        self.norm_after = norm_after
        self.drop_path_rate = drop_path_rate
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.attn = ShiftedWindowAttention(embed_dims=embed_dims, proj_drop_rate=drop_rate, **attention)
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn = FFN(embed_dims, feedforward_channels, act_cfg=act_cfg, ffn_drop=drop_rate, add_identity=False)

    def forward(self, x: Tensor, layout: WindowLayout, mask_padding: bool) -> Tensor:
        """Packed tokens ``(K, C)`` to ``(K, C)``, attending in the windows of ``layout``."""
        if self.with_cp and x.requires_grad:
            return cp.checkpoint(self._forward, x, layout, mask_padding, use_reentrant=False)
        return self._forward(x, layout, mask_padding)

    def _forward(self, x: Tensor, layout: WindowLayout, mask_padding: bool) -> Tensor:
        rate = self.drop_path_rate if self.training else 0.
        images = (layout.image_of_token, layout.batch_size)
        if self.norm_after:
            x = x + drop_images(self.norm1(self.attn(x, layout, mask_padding)), *images, rate)
            return x + drop_images(self.norm2(self.ffn(x)), *images, rate)
        x = x + drop_images(self.attn(self.norm1(x), layout, mask_padding), *images, rate)
        return x + drop_images(self.ffn(self.norm2(x)), *images, rate)


class SwinStage(BaseModule):
    """Blocks on regular and shifted windows in turn, then patch merging.

    Between patch merging, tokens are packed: those inside their images' extents, nothing else. Only attention needs
    windows, and a shift is only another layout.

    Args:
        embed_dims (int): Channels.
        window_size (tuple[int, int]): Window in tokens.
        drop_path_rates (Sequence[float]): One per block.
        downsample (PatchMerging, optional): Patch merging after the blocks.
        mask_padding (bool): Whether padding is masked.
        shift_covered_axes (bool): Whether windows shift along an axis that one window covers.
        halo (tuple[int, int]): How many tokens the keys reach beyond the window.
        pooled_neighbours (int): How many windows away the pooled keys lie.
        shift_windows (bool): Whether every second block shifts its windows.
        **block: Arguments of :class:`SwinBlock`.
    """

    def __init__(self, embed_dims: int, window_size: Tuple[int, int], drop_path_rates: Sequence[float],
                 downsample: Optional[PatchMerging], mask_padding: bool, shift_covered_axes: bool,
                 halo: Tuple[int, int] = (0, 0), pooled_neighbours: int = 0, shift_windows: bool = True, **block):
        super().__init__()
        self.window_size = window_size
        self.mask_padding = mask_padding
        self.shift_covered_axes = shift_covered_axes
        self.halo = halo
        self.pooled_neighbours = pooled_neighbours
        self.shift_windows = shift_windows
        self.blocks = ModuleList(
            SwinBlock(embed_dims=embed_dims, window_size=window_size, halo=halo, pooled_neighbours=pooled_neighbours,
                      drop_path_rate=rate, **block) for rate in drop_path_rates)
        self.downsample = downsample

    def forward(self, tokens: Tensor, size: Tuple[int, int], extents: Tuple[Tuple[int, int], ...]) -> Tensor:
        """
        Args:
            tokens (Tensor): ``(B, H * W, C)``.
            size (tuple[int, int]): H and W.
            extents (tuple): Height and width of each image in tokens.

        Returns:
            Tensor: ``(B, H * W, C)``, zero outside the extents.
        """
        shift = tuple(side // 2 if self.shift_windows else 0 for side in self.window_size)
        regular, shifted = (
            WindowLayout.build(size, self.window_size, by, extents, self.halo, self.mask_padding,
                               self.shift_covered_axes, self.pooled_neighbours, tokens.device)
            for by in ((0, 0), shift))
        x = tokens.flatten(0, 1)
        padded = len(regular.outside) > 0
        x = pack(regular)(x) if padded else x
        for index, block in enumerate(self.blocks):
            x = block(x, shifted if index % 2 else regular, self.mask_padding)
        x = pack(regular).inverse(x) if padded else x
        return x.view_as(tokens)

    def check_window(self, window: Tuple[int, int], halo: Tuple[int, int], mode: str) -> None:
        """Raise :class:`~swin_rpe_mm.InputError` if :meth:`set_window` would; changes nothing."""
        for block in self.blocks:
            block.attn.w_msa.check_window(window, halo, mode)

    def set_window(self, window: Tuple[int, int], halo: Tuple[int, int], mode: str) -> None:
        """Change the window and the halo of all blocks, see :meth:`~.attention.WindowAttention.set_window`."""
        self.window_size, self.halo = window, halo
        for block in self.blocks:
            block.attn.w_msa.set_window(window, halo, mode)
