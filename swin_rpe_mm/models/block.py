"""Swin's block, and a stage of blocks."""
import functools
from typing import Callable, Optional, Sequence, Tuple

import torch
import torch.utils.checkpoint as cp
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from ..windows import WindowLayout, cut_into_parts
from .attention import TOKENS_AT_ONCE, Beyond, ShiftedWindowAttention, windows_at_once
from ..executors.block_by_parts import Setting, run_block
from ..executors.linear import by_rows, can_recompute, has_hooks, is_plain, prepared
from .patch import PatchMerging
from ..executors.products import suits_onednn


def draw_images(like: Tensor, batch_size: int, rate: float) -> Optional[Tensor]:
    """Drop path: a factor for each image of a residual branch, 0 with probability ``rate`` and else ``1 / (1 - rate)``.

    Args:
        like (Tensor): Gives dtype and device.
        batch_size (int): Number of images.
        rate (float): Probability in [0, 1).

    Returns:
        Tensor: ``(batch_size, )``, or None where all would be 1.
    """
    return like.new_empty(batch_size).bernoulli_(1 - rate).div_(1 - rate) if rate else None


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

    def forward(self, x: Tensor, layout: WindowLayout, mask_padding: bool, buffers: Optional[dict] = None) -> Tensor:
        """Packed tokens ``(K, C)`` to ``(K, C)``, attending in the windows of ``layout``. What a block needs on its way
        without gradients and the next block may use again stays in ``buffers``."""
        rate = self.drop_path_rate if self.training else 0.
        kept = [draw_images(x, layout.batch_size, rate) for _ in range(2)]
        needs_gradient = x.requires_grad or any(parameter.requires_grad for parameter in self.parameters())
        with torch.set_grad_enabled(torch.is_grad_enabled() and needs_gradient):
            run = self._train if self._trains_by_parts(x) else functools.partial(self._run, buffers=buffers)
            if self.with_cp and torch.is_grad_enabled() and x.requires_grad:
                return cp.checkpoint(run, x, layout, mask_padding, kept, use_reentrant=False)
            return run(x, layout, mask_padding, kept)

    def _trains_by_parts(self, x: Tensor) -> bool:
        """Whether there are gradients, and :func:`~.block_by_parts.run_block` computes what this block does."""
        attention = self.attn.w_msa
        (first, activation, hidden_drop), second, drop = self.ffn.layers
        dropouts = any(module.training and module.p for module in (hidden_drop, drop, attention.proj_drop))
        return (torch.is_grad_enabled() and suits_onednn(x) and not torch.compiler.is_compiling()
                and attention.is_plain and not self.norm_after and not dropouts
                and all(map(is_plain, (attention.qkv, attention.proj, first, second)))
                and all(map(can_recompute, (self.norm1, self.norm2, activation)))
                and not has_hooks(self.attn) and not has_hooks(attention))

    def _train(self, x: Tensor, layout: WindowLayout, mask_padding: bool, kept: Sequence[Optional[Tensor]]) -> Tensor:
        attention, (first, *_), second = self.attn.w_msa, *self.ffn.layers[:2]
        parts, rows = cut_into_parts(layout, windows_at_once(layout, x.shape[1], trained=True))
        setting = Setting(attention.num_heads, attention.scale, (self.norm1.eps, self.norm2.eps), mask_padding, rows)
        layers = (self.norm1, attention.qkv, attention.proj, self.norm2, first, second)
        return run_block(x, parts, setting, attention.fixed_bias(), kept,
                         [parameter for layer in layers for parameter in (layer.weight, layer.bias)])

    def _run(self, x: Tensor, layout: WindowLayout, mask_padding: bool, kept: Sequence[Optional[Tensor]],
             buffers: Optional[dict] = None) -> Tensor:
        attention = self.attn.w_msa
        in_cache = x.device.type == 'cpu' and not torch.is_grad_enabled()
        parts, tokens = (), TOKENS_AT_ONCE if in_cache else 0
        at_once = windows_at_once(layout, x.shape[1])
        if in_cache and not attention.pooled_neighbours:
            parts, tokens = cut_into_parts(layout, at_once)
        in_parts, has_halo = len(parts) > 1, attention.has_halo
        before = (None, None) if self.norm_after else (self.norm1, self.norm2)
        after = (self.norm1, self.norm2) if self.norm_after else (nn.Identity(), nn.Identity())
        shared = attention.shared(before[0], tokens, queries_only=in_parts and has_halo)
        mlp = self._mlp(before[1], tokens)
        if tokens and attention.pooled_neighbours:
            mlp = by_rows(mlp, tokens)

        def scaled(branch: Tensor, keep: Optional[Tensor], images: Tensor) -> Tensor:
            return branch if keep is None else branch * keep[images, None]

        def run(x: Tensor, layout: WindowLayout, beyond: Optional[Beyond] = None) -> Tensor:
            images = layout.image_of_token
            x = x + scaled(after[0](self.attn(x, layout, mask_padding, shared, beyond)), kept[0], images)
            return x + scaled(after[1](mlp(x)), kept[1], images)

        if not in_parts:
            return run(x, layout)
        around = [None] * len(parts)
        if has_halo:
            # the largest tensor of all: to have its memory mapped anew for each block would take longer than filling it
            buffers = {} if buffers is None else buffers
            buffers['kv'] = attention.keys_and_values(x, before[0], tokens, buffers.get('kv'))
            groups, biases = attention.key_groups_of_parts(layout, at_once), {}
            around = [Beyond(buffers['kv'], own, biases) for own in groups]
        out = torch.empty_like(x)
        for part, beyond in zip(parts, around):
            out.index_copy_(0, part.tokens, run(x.index_select(0, part.tokens), part.layout, beyond))
        return out

    def _mlp(self, norm: Optional[nn.Module], tokens: int) -> Callable[[Tensor], Tensor]:
        (first, activation, hidden_drop), second, drop = self.ffn.layers
        if hidden_drop.p and hidden_drop.training:
            activation = nn.Sequential(activation, hidden_drop)
        first, second = prepared(first, norm, tokens), prepared(second, activation, tokens)
        return lambda x: drop(second(first(x)))


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

    def layouts(self, size: Tuple[int, int], extents: Tuple[Tuple[int, int], ...],
                device: torch.device) -> Tuple[WindowLayout, WindowLayout]:
        """The regular and the shifted windows over maps.

        Args:
            size (tuple[int, int]): Height and width of the maps in tokens.
            extents (tuple): Height and width of each image in tokens.
            device (torch.device): Where the tokens live.
        """
        shift = tuple(side // 2 if self.shift_windows else 0 for side in self.window_size)
        return tuple(
            WindowLayout.build(size, self.window_size, by, extents, self.halo, self.mask_padding,
                               self.shift_covered_axes, self.pooled_neighbours, device) for by in ((0, 0), shift))

    def forward(self, tokens: Tensor, layouts: Tuple[WindowLayout, WindowLayout]) -> Tensor:
        """
        Args:
            tokens (Tensor): ``(B, H * W, C)``.
            layouts (tuple[WindowLayout, WindowLayout]): What :meth:`layouts` gave for them.

        Returns:
            Tensor: ``(B, H * W, C)``, zero outside the extents.
        """
        regular = layouts[0]
        x = tokens.flatten(0, 1)
        padded = len(regular.outside) > 0
        x = regular.pack(x) if padded else x
        buffers = {}
        for index, block in enumerate(self.blocks):
            x = block(x, layouts[index % 2], self.mask_padding, buffers=buffers)
        x = regular.pack.inverse(x) if padded else x
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
