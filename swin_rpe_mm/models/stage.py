"""A stage: blocks on regular and shifted windows in turn."""
from typing import Optional, Sequence, Tuple

import torch
import torch.utils.checkpoint as cp
from mmengine.model import BaseModule, ModuleList
from torch import Tensor

from ..registry import WINDOWS
from ..rpe.replacing import Replaced
from ..windows import WindowLayout, Windows, tokens_inside
from .block import SwinBlock
from .patch import PatchMerging

Size = Tuple[int, int]


class SwinStage(BaseModule):
    """Blocks on regular and shifted windows in turn, then patch merging.

    Args:
        embed_dims (int): Channels.
        window_size (tuple[int, int]): Window in tokens.
        drop_path_rates (Sequence[float]): One per block.
        downsample (PatchMerging, optional): Patch merging after the blocks.
        windows (dict): The kind of windows, a config of the registry ``WINDOWS``.
        mask_padding (bool): Whether padding is masked.
        shift_covered_axes (bool): Whether windows shift along an axis that one window covers.
        halo (tuple[int, int]): How many tokens the keys reach beyond the window.
        pooled_neighbours (int): How many windows away the pooled keys lie.
        shift_windows (bool): Whether every second block shifts its windows.
        with_cp (bool): Recompute blocks in the backward pass to save memory.
        **block: Arguments of :class:`~.block.SwinBlock`.
    """

    def __init__(self,
                 embed_dims: int,
                 window_size: Size,
                 drop_path_rates: Sequence[float],
                 downsample: Optional[PatchMerging],
                 windows: dict,
                 mask_padding: bool = True,
                 shift_covered_axes: bool = True,
                 halo: Size = (0, 0),
                 pooled_neighbours: int = 0,
                 shift_windows: bool = True,
                 with_cp: bool = False,
                 **block):
        super().__init__()
        self.window_size = window_size
        self.windows = windows
        self.mask_padding = mask_padding
        self.shift_covered_axes = shift_covered_axes
        self.halo = halo
        self.pooled_neighbours = pooled_neighbours
        self.shift_windows = shift_windows
        self.with_cp = with_cp
        self.blocks = ModuleList(
            SwinBlock(embed_dims=embed_dims, window_size=window_size, halo=halo, pooled_neighbours=pooled_neighbours,
                      drop_path_rate=rate, **block) for rate in drop_path_rates)
        self.downsample = downsample
        self._build_kinds()

    def _build_kinds(self) -> None:
        """The regular windows and the shifted ones; a stage of one block has the former only."""
        half = tuple(side // 2 if self.shift_windows else 0 for side in self.window_size)
        self.kinds: Tuple[Windows, ...] = tuple(
            WINDOWS.build(dict(window_size=self.window_size, halo=self.halo, shift=shift,
                               shift_covered_axes=self.shift_covered_axes, **self.windows))
            for shift in ((0, 0), half)[:len(self.blocks)])

    def layouts(self, batch_size: int, size: Size, extents: Optional[Tensor],
                device: torch.device) -> Tuple[WindowLayout, ...]:
        """How they lie over maps; arguments as for :meth:`~swin_rpe_mm.windows.WindowLayout.build`."""
        return tuple(
            WindowLayout.build(kind, batch_size, size, extents, self.mask_padding, self.pooled_neighbours, device)
            for kind in self.kinds)

    def forward(self, x: Tensor, size: Size, extents: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Size]:
        """
        Args:
            x (Tensor): Tokens ``(B, H * W, C)``, row by row.
            size (tuple[int, int]): H and W.
            extents (Tensor, optional): ``(B, 2)``, height and width of each image's content in tokens; None for all.

        Returns:
            tuple: Tokens ``(B, H * W, C)``, zero outside the extents; these after patch merging,
            ``(B, H' * W', C')``, and ``(H', W')``; without patch merging, the same again.
        """
        layouts = self.layouts(x.shape[0], size, extents, x.device)
        for index, block in enumerate(self.blocks):
            layout = layouts[index % 2]
            if self.with_cp and x.requires_grad:
                x = cp.checkpoint(block, x, layout, use_reentrant=False)
            else:
                x = block(x, layout)
        x = x if extents is None else torch.where(tokens_inside(extents, size), x, 0)
        return (x, x, size) if self.downsample is None else (x, *self.downsample(x, size))

    def check_window(self, window: Size, halo: Size, mode: str) -> None:
        """Raise :class:`~swin_rpe_mm.InputError` if :meth:`set_window` would; changes nothing."""
        for block in self.blocks:
            block.attn.w_msa.check_window(window, halo, mode)

    def set_window(self, window: Size, halo: Size, mode: str) -> Replaced:
        """Change the window and the halo of all blocks, see :meth:`~.block.WindowAttention.set_window`."""
        self.window_size, self.halo = window, halo
        self._build_kinds()
        return [pair for block in self.blocks for pair in block.attn.w_msa.set_window(window, halo, mode)]
