"""Swin Transformer (arXiv 2103.14030, figure 3) for dense prediction."""
from typing import Any, List, Optional, Tuple

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, initialize
from mmengine.model.weight_init import constant_init, trunc_normal_, trunc_normal_init
from torch import Tensor, nn

from ..errors import InputError
from ..rpe.replacing import Replaced, replace_in_optimizer, replace_parameter
from ..windows import merge_extents, tokens_inside, zero_outside
from ..windows.indices import split
from .block import SwinBlock, WindowAttention
from .config import IntOrPair, SwinConfig, per_stage
from .embeddings import cubic_matrix, fit_embedding
from .patch import PatchEmbed, PatchMerging
from .stage import SwinStage

Size = Tuple[int, int]


class Swin(BaseModule):
    """The plain model: patch embedding, stages of blocks, patch merging between them, and norms of the outputs.

    Args:
        config (SwinConfig): What it is built from.
        init_cfg (dict | list[dict], optional): How its weights are made, see :meth:`init_weights`.
    """

    def __init__(self, config: SwinConfig, init_cfg: Any = None):
        super().__init__(init_cfg=init_cfg)
        self.config = config
        norm_cfg = config.norm_cfg
        patch_norm = norm_cfg if config.patch_norm else None
        self.patch_embed = PatchEmbed(config.in_channels, config.embed_dims, config.patch_size, patch_norm)
        self.absolute_pos_embed = self.window_pos_embed = None
        if config.use_abs_pos_embed:
            self.absolute_pos_embed = _embedding(config.pos_embed_size, config.embed_dims)
        if config.use_abs_pos_embed == 'window':
            self.window_pos_embed = _embedding(config.window_size[0], config.embed_dims)
        self.drop_after_pos = nn.Dropout(config.drop_rate)

        # what no output depends on is not built: it would never get a gradient, which DDP takes for a mistake
        last, blocks = max(config.out_indices), sum(config.depths)
        rates = iter([config.drop_path_rate * block / max(blocks - 1, 1) for block in range(blocks)])
        self.stages = ModuleList()
        for i, channels in enumerate(config.num_features[:last + 1]):
            downsample = None
            if i < last:
                downsample = PatchMerging(channels, 2 * channels, config.strides[i + 1], patch_norm, config.is_v2)
            self.stages.append(
                SwinStage(
                    channels,
                    config.window_size[i],
                    [next(rates) for _ in range(config.depths[i])],
                    downsample,
                    config.windows[i],
                    mask_padding=config.mask_padding,
                    shift_covered_axes=config.shift_covered_axes,
                    halo=config.halo[i],
                    pooled_neighbours=config.pooled_neighbours,
                    shift_windows=config.shift_windows,
                    with_cp=config.with_cp,
                    num_heads=config.num_heads[i],
                    feedforward_channels=int(config.mlp_ratio * channels),
                    norm_after=config.is_v2,
                    cosine=config.is_v2,
                    rpe=config.rpe[i],
                    qkv_bias=config.qkv_bias,
                    qk_scale=config.qk_scale,
                    drop_rate=config.drop_rate,
                    attn_drop_rate=config.attn_drop_rate,
                    act_cfg=config.act_cfg,
                    norm_cfg=norm_cfg))
        for i in config.out_indices:
            self.add_module(f'norm{i}', build_norm_layer(norm_cfg, config.num_features[i])[1])
        self._freeze_stages()

    def forward(self, images: Tensor, extents: Optional[Tensor] = None) -> Tuple[Tensor, ...]:
        """
        Args:
            images (Tensor): ``(B, in_channels, H, W)``, H and W of any size from 1.
            extents (Tensor, optional): ``(B, 2)`` long, height and width of each image's content in pixels, on the
                images' device. None means that each fills the batch.

        Returns:
            tuple[Tensor, ...]: For each of ``out_indices`` a map ``(B, C_i, H_i, W_i)``, zero outside the extents;
            sides are rounded up at every stride.

        Raises:
            InputError: If there are no images, or they have no pixels.
        """
        if images.ndim != 4 or 0 in images.shape:
            raise InputError(f'images must have the shape (B, C, H, W) with no side of 0, got {tuple(images.shape)}')
        if extents is not None:
            images, extents = zero_outside(images, extents), merge_extents(extents, self.config.patch_size)
        x, size = self.run(self.patch_embed, images)
        if self.absolute_pos_embed is not None:
            x = x + self._position_embedding(self.absolute_pos_embed, size, extents)
        x = self.drop_after_pos(x)
        outs = []
        for i, stage in enumerate(self.stages):
            out, x, merged = self.run(stage, x, size, extents)
            if i in self.config.out_indices:
                outs.append(self.to_maps(getattr(self, f'norm{i}'), out, size, extents))
            del out  # as large as all of the next stage needs
            if extents is not None and i + 1 < len(self.stages):
                extents = merge_extents(extents, self.config.strides[i + 1])
            size = merged
        return tuple(outs)

    def run(self, module: nn.Module, *arguments: Any) -> Any:
        """Call a module. An executor beside the model may compute the same numbers in its place."""
        return module(*arguments)

    def to_maps(self, norm: nn.Module, x: Tensor, size: Size, extents: Optional[Tensor]) -> Tensor:
        """Norm of tokens ``(B, L, C)`` as maps ``(B, C, H, W)``, zero outside the extents."""
        x = norm(x)
        if extents is not None:
            x = torch.where(tokens_inside(extents, size), x, 0)
        return x.transpose(1, 2).unflatten(2, size).contiguous()

    @property
    def output_strides(self) -> List[Size]:
        """Pixels per cell of each output, ``(h, w)``; sides are rounded up."""
        strides, (h, w) = [self.config.patch_size], self.config.patch_size
        for stage in self.stages[:-1]:
            h, w = h * stage.downsample.stride[0], w * stage.downsample.stride[1]
            strides.append((h, w))
        return [strides[i] for i in sorted(self.config.out_indices)]

    def _position_embedding(self, grid: Tensor, size: Size, extents: Optional[Tensor]) -> Tensor:
        """The absolute position embedding ``grid`` stretched over each image's extent, ``(B or 1, H * W, C)``, and the
        one of the window laid out from its corner."""
        if extents is None:
            extents = torch.stack([torch.full((1, ), side, device=grid.device) for side in size], dim=1)
        h, w = self.config.pos_embed_size
        down, across = cubic_matrix(size[0], extents[:, 0], h), cubic_matrix(size[1], extents[:, 1], w)
        rows = down.to(grid.dtype) @ grid.view(h, w * grid.shape[2])
        columns = rows.unflatten(2, (w, -1)).transpose(1, 2).flatten(2)
        embedding = (across.to(grid.dtype) @ columns).unflatten(2, (size[0], -1)).transpose(1, 2).flatten(1, 2)
        if self.window_pos_embed is not None:
            _, y, x = split(torch.arange(size[0] * size[1], device=grid.device), size)
            h, w = self.stages[0].window_size
            embedding = embedding + self.window_pos_embed.index_select(1, y % h * w + x % w)
        return embedding

    @torch.inference_mode(False)  # embeddings that were made there could not be trained afterwards
    def set_window_size(self,
                        window_size: IntOrPair,
                        mode: str = 'bicubic',
                        optimizer: Optional[torch.optim.Optimizer] = None) -> Replaced:
        """Change the window of every stage, between two steps of training too.

        Tables that change their size become new parameters. The optimizer of a training must be given, so that it goes
        on with these, whose running averages start anew; wrap the model in DDP anew, and call this on averaged copies
        of the model (EMA) too.

        Args:
            window_size (int | tuple[int, int] | list): As in the constructor. A halo of ``'window'`` follows.
            mode (str): What the encoding's tables are read for the new window by: ``bicubic`` and ``linear`` stretch
                them over it, ``geometric`` and ``crop`` keep the entries of near offsets, see
                :func:`~swin_rpe_mm.rpe.interpolate.resize_table`.
            optimizer (Optimizer, optional): What trains the model.

        Returns:
            list[tuple[nn.Parameter, nn.Parameter]]: Old and new parameters.

        Raises:
            InputError: If the window or the mode is none, or the mode cannot make that change; nothing is changed then.
        """
        windows = per_stage('window_size', window_size, self.config.stages)
        halos = tuple(window if self.config.halo_follows else stage.halo
                      for stage, window in zip(self.stages, windows))
        changes = list(zip(self.stages, windows, halos))
        for stage, window, halo in changes:
            stage.check_window(window, halo, mode)
        replaced, old = [], self.stages[0].window_size
        if self.window_pos_embed is not None and old != windows[0]:
            value = fit_embedding(self.window_pos_embed.detach(), old, windows[0])
            replaced.append(replace_parameter(self, 'window_pos_embed', value))
        for stage, window, halo in changes:
            replaced += stage.set_window(window, halo, mode)
        if optimizer is not None:
            replace_in_optimizer(optimizer, replaced)
        return replaced

    def get_layer_depth(self, param_name: str, prefix: str = '') -> Tuple[int, int]:
        """Depth of a parameter for layer-wise learning rates, as mmpretrain's constructors of optimizers ask for it.

        Args:
            param_name (str): Its name.
            prefix (str): What the name starts with inside a larger model, such as ``backbone.``.

        Returns:
            tuple[int, int]: Its depth and the number of depths: 0 for patch embedding and position embeddings, then one
            for each block (patch merging has that of the block before), the last for output norms and all else.
        """
        depths = self.config.depths
        number = sum(depths) + 2
        if not param_name.startswith(prefix):
            return number - 1, number
        part, *rest = param_name[len(prefix):].split('.')
        if part in ('patch_embed', 'absolute_pos_embed', 'window_pos_embed'):
            return 0, number
        if part != 'stages':
            return number - 1, number
        stage = int(rest[0])
        before = sum(depths[:stage])
        return before + (int(rest[2]) + 1 if rest[1] == 'blocks' else depths[stage]), number

    def train(self, mode: bool = True) -> 'Swin':
        """Set training mode, but for the frozen stages."""
        super().train(mode)
        self._freeze_stages()
        return self

    def _freeze_stages(self) -> None:
        frozen_stages = self.config.frozen_stages
        if frozen_stages < 0:
            return
        frozen = [self.patch_embed, self.drop_after_pos, *self.stages[:frozen_stages]]
        frozen += [getattr(self, f'norm{i}') for i in self.config.out_indices if i < frozen_stages]
        for module in frozen:
            module.eval().requires_grad_(False)
        for embedding in (self.absolute_pos_embed, self.window_pos_embed):
            if embedding is not None:
                embedding.requires_grad_(False)

    def init_weights(self) -> None:
        """Draw weights as Swin does: normal with 0.02, cut at 2, biases zero; SwinV2's branches start at zero. An
        ``init_cfg`` changes those that it names afterwards."""
        self._draw_weights()
        if self.init_cfg is not None:
            initialize(self, self.init_cfg)

    def _draw_weights(self) -> None:
        attentions = [module for module in self.modules() if isinstance(module, WindowAttention)]
        encodings = [rpe for module in attentions for rpe in (module.rpe, module.pooled_rpe) if rpe is not None]
        theirs = {part for rpe in encodings for part in rpe.modules()}
        for module in self.modules():
            if isinstance(module, nn.Linear) and module not in theirs:
                trunc_normal_init(module, std=.02, bias=0.)
            elif isinstance(module, nn.LayerNorm) and module not in theirs:
                constant_init(module, 1.)
        for rpe in encodings:
            rpe.init_weights()
        for module in self.modules():
            if isinstance(module, SwinBlock) and module.norm_after:
                for norm in (module.norm1, module.norm2):
                    constant_init(norm, 0.)
        for embedding in (self.absolute_pos_embed, self.window_pos_embed):
            if embedding is not None:
                trunc_normal_(embedding, std=.02)


def _embedding(size: Size, channels: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(1, size[0] * size[1], channels))
