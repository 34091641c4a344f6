"""Swin Transformer (arXiv 2103.14030, figure 3) for dense prediction."""
from typing import List, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList
from mmengine.model.weight_init import constant_init, trunc_normal_, trunc_normal_init
from torch import Tensor, nn

from ..checkpoints import INPUT_MODES, fit_embedding
from ..errors import InputError
from ..mm import get_extents, get_features, merge_extents, zero_outside
from ..registry import MODELS, register_everywhere
from ..windows import WindowLayout
from . import PatchEmbed, PatchMerging, SwinBlock, SwinStage, WindowAttention
from ..rpe.reshaping import reshape_parameter
from .arguments import check_arguments, per_stage
from .loading import load_pretrained, register_loading

Size = Tuple[int, int]
IntOrPair = Union[int, Size]

_TOKENS_AT_ONCE = 4096  # of each image, in the norms of the outputs


@register_everywhere(MODELS)
class SwinRPE(BaseModule):
    """Swin Transformer with masks that know about padding and a choice of relative position encodings.

    Takes every argument of mmdet's ``SwinTransformer``, has the layout of its state dict and gives outputs of the
    same shapes. With ``mask_padding=False`` it computes the same numbers.

    Args:
        arch (str): ``nano``, ``tiny``, ``small``, ``base`` or ``large``: gives ``embed_dims``, ``depths`` and
            ``num_heads`` where they are None. ``v2-tiny`` and so on are SwinV2 (arXiv 2111.09883): cosine attention,
            the norm after each branch and after patch merging's projection, and ``LogCPB``.
        rpe (dict | list[dict] | str, optional): The relative position encoding, ``dict(type=...)``; a list adds
            several; None for none. An option given as a list has one entry per stage. ``default`` is the arch's own,
            ``TableRPE`` or ``LogCPB``.
        mask_padding (bool): True keeps padding out of attention: neither the zeros that fill a map up to whole
            windows nor those that fill an image up to its batch carry any weight, and an image's features do not
            depend on what it is batched with. Outputs are zero outside an image's extent. The extents are read from
            the batch (:func:`swin_rpe_mm.attach_extents`; our data preprocessors do it). False treats padding as
            content, as mmdet and mmseg do.
        window_size (int | tuple[int, int] | list, optional): Window in tokens: a side, a pair ``(h, w)``, or a list
            with one of these per stage. None means 7, and 8 for SwinV2.
        halo (int | tuple[int, int] | list | str): How many tokens beyond its window a query sees on each side: a
            number, a pair ``(h, w)``, or a list with one of these per stage. ``'window'`` is as wide as the window, so
            that the keys are those of 3x3 windows. What lies outside the image carries no weight.
        pooled_neighbours (int): How many windows away lie those that give a query one more key each, the mean of
            their keys.
        shift_windows (bool): Whether every second block shifts its windows by half.
        shift_covered_axes (bool, optional): Whether windows shift along an axis that one window covers, as mmdet, mmseg
            and the official detection and segmentation code do. timm, torchvision, the official classification code
            and SwinV2 do not. None means True, and False for SwinV2.
        attn_backend (str): ``sdpa`` for PyTorch's fused attention, ``eager`` for the written-out reference.
        pretrain_img_size (int | tuple[int, int]): Image size the absolute position embedding is made for.
        in_channels (int): Channels of the image.
        embed_dims (int, optional): Channels of the first stage; each further stage has twice as many.
        patch_size (int | tuple[int, int]): Patch in pixels.
        mlp_ratio (float): Hidden channels of an MLP per channel.
        depths, num_heads (Sequence[int], optional): Blocks and attention heads per stage.
        strides (Sequence[int]): The patch size, then the step of each patch merging.
        out_indices (Sequence[int]): Stages that are returned. Later stages are not built.
        qkv_bias (bool): Whether q, k and v have a bias.
        qk_scale (float, optional): Scale of the logits; None means ``head_dim ** -0.5``.
        patch_norm (bool): Whether patch embedding and patch merging have a norm.
        drop_rate, attn_drop_rate (float): Dropout of features and of attention weights.
        drop_path_rate (float): Drop path of the last block; rises linearly from 0. Drops whole images.
        use_abs_pos_embed (bool | str): Whether to add an absolute position embedding, interpolated to each image's
            size. ``'window'`` adds a second one that repeats in every window ("window attention is bugged", arXiv
            2311.05613).
        act_cfg, norm_cfg (dict): Activation of the MLPs, and norms; None means GELU and LN.
        input_weights (str, optional): How a checkpoint's first convolution is read for another number of channels:
            ``mean`` gives each the mean of the old ones, ``tile`` repeats them in turn.
        with_cp (bool): Recompute blocks in the backward pass to save memory.
        pretrained (str, optional): Deprecated in mm; the same as a ``Pretrained`` ``init_cfg``.
        convert_weights (bool): Accepted for mm's configs; a checkpoint's layout is recognised by itself.
        frozen_stages (int): 0 freezes the patch embedding, ``i`` also the first ``i`` stages; -1 nothing.
        init_cfg (dict, optional): ``dict(type='Pretrained', checkpoint=FILE_OR_URL)``, or any of mmengine's. A
            checkpoint may be of any project that :mod:`swin_rpe_mm.checkpoints.layouts` knows; ``prefix`` says what
            stands before the names, where that is not plain; ``trust=True`` reads a file that needs full unpickling,
            which runs any code in it.

    Raises:
        InputError: If an argument is mistyped or does not fit the others.
    """

    def __init__(self,
                 pretrain_img_size: IntOrPair = 224,
                 in_channels: int = 3,
                 embed_dims: Optional[int] = None,
                 patch_size: IntOrPair = 4,
                 window_size: Union[IntOrPair, List[IntOrPair], None] = None,
                 mlp_ratio: float = 4,
                 depths: Optional[Sequence[int]] = None,
                 num_heads: Optional[Sequence[int]] = None,
                 strides: Sequence[IntOrPair] = (4, 2, 2, 2),
                 out_indices: Sequence[int] = (0, 1, 2, 3),
                 qkv_bias: bool = True,
                 qk_scale: Optional[float] = None,
                 patch_norm: bool = True,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.1,
                 use_abs_pos_embed: Union[bool, str] = False,
                 act_cfg: Optional[dict] = None,
                 norm_cfg: Optional[dict] = None,
                 with_cp: bool = False,
                 pretrained: Optional[str] = None,
                 convert_weights: bool = False,
                 frozen_stages: int = -1,
                 init_cfg: Optional[dict] = None,
                 *,
                 arch: str = 'tiny',
                 rpe: Union[dict, List[dict], str, None] = 'default',
                 mask_padding: bool = True,
                 halo: Union[IntOrPair, List[IntOrPair], str] = 0,
                 pooled_neighbours: int = 0,
                 shift_windows: bool = True,
                 shift_covered_axes: Optional[bool] = None,
                 attn_backend: str = 'sdpa',
                 input_weights: Optional[str] = None):
        if pretrained is not None:
            if init_cfg is not None:
                raise InputError('pretrained and init_cfg cannot both be given; init_cfg alone is enough')
            init_cfg = dict(type='Pretrained', checkpoint=pretrained)
        super().__init__(init_cfg=init_cfg)
        arguments = check_arguments(arch, embed_dims, depths, num_heads, window_size, patch_size, strides,
                                    pretrain_img_size, out_indices, rpe, attn_backend, drop_path_rate, frozen_stages,
                                    in_channels, mlp_ratio, halo, pooled_neighbours, shift_covered_axes,
                                    use_abs_pos_embed)
        if input_weights not in (None, *INPUT_MODES):
            raise InputError(f'input_weights must be None or one of {", ".join(INPUT_MODES)}, got {input_weights!r}')
        self.input_weights = input_weights
        norm_cfg = norm_cfg or dict(type='LN')
        self.mask_padding = mask_padding
        self.halo = halo
        self.depths = arguments.depths
        self.patch_size = arguments.patch_size
        self.out_indices = arguments.out_indices
        self.num_features = arguments.num_features
        self.frozen_stages = frozen_stages

        self.patch_embed = PatchEmbed(in_channels, arguments.embed_dims, self.patch_size,
                                      norm_cfg if patch_norm else None)
        self.absolute_pos_embed = self.window_pos_embed = None
        if use_abs_pos_embed:
            self.pos_embed_size = tuple(
                side // patch for side, patch in zip(arguments.pretrain_size, self.patch_size))
            tokens = self.pos_embed_size[0] * self.pos_embed_size[1]
            self.absolute_pos_embed = nn.Parameter(torch.zeros(1, tokens, arguments.embed_dims))
        if use_abs_pos_embed == 'window':
            tokens = arguments.window_sizes[0][0] * arguments.window_sizes[0][1]
            self.window_pos_embed = nn.Parameter(torch.zeros(1, tokens, arguments.embed_dims))
        self.drop_after_pos = nn.Dropout(drop_rate)

        # what no output depends on is not built: it would never get a gradient, which DDP takes for a mistake
        depths = arguments.depths
        rates = torch.linspace(0, drop_path_rate, sum(depths)).split(depths)
        self.stages = ModuleList()
        for i, channels in enumerate(self.num_features[:max(self.out_indices) + 1]):
            downsample = None
            if i < max(self.out_indices):
                downsample = PatchMerging(channels, 2 * channels, arguments.merge_strides[i],
                                          norm_cfg if patch_norm else None, norm_after=arguments.swin_v2)
            self.stages.append(
                SwinStage(
                    channels,
                    arguments.window_sizes[i],
                    rates[i].tolist(),
                    downsample,
                    mask_padding,
                    arguments.shift_covered_axes,
                    arguments.halos[i],
                    pooled_neighbours,
                    shift_windows,
                    num_heads=arguments.num_heads[i],
                    feedforward_channels=int(mlp_ratio * channels),
                    norm_after=arguments.swin_v2,
                    cosine=arguments.swin_v2,
                    rpe=arguments.rpes[i],
                    qkv_bias=qkv_bias,
                    qk_scale=qk_scale,
                    drop_rate=drop_rate,
                    attn_drop_rate=attn_drop_rate,
                    attn_backend=attn_backend,
                    act_cfg=act_cfg or dict(type='GELU'),
                    norm_cfg=norm_cfg,
                    with_cp=with_cp))
        for i in self.out_indices:
            self.add_module(f'norm{i}', build_norm_layer(norm_cfg, self.num_features[i])[1])

        register_loading(self)
        self._freeze_stages()

    @torch.compiler.disable  # a size seen for the first time would be compiled for minutes; the model around it is
    def forward(self, images: Tensor) -> Tuple[Tensor, ...]:
        """``torch.compile`` leaves the backbone as it is and compiles what is around it.

        Args:
            images (Tensor): ``(B, in_channels, H, W)``, H and W of any size from 1, with or without extents.

        Returns:
            tuple[Tensor, ...]: For each of ``out_indices`` a map ``(B, C_i, H_i, W_i)``; sides are rounded up at
            every stride.

        Raises:
            InputError: If there are no images, or they have no pixels.
        """
        if images.ndim != 4 or 0 in images.shape:
            raise InputError(f'images must have the shape (B, C, H, W) with no side of 0, got {tuple(images.shape)}')
        features = get_features(images, self)
        if features is not None:
            return features
        extents, layouts = self._lay_out(images)
        images = zero_outside(images, extents[0])
        tokens, size = self.patch_embed(images)
        if self.absolute_pos_embed is not None:
            tokens = tokens + self._position_embedding(size, extents[1])
        tokens = self.drop_after_pos(tokens)

        outs = {}
        for i, stage in enumerate(self.stages):
            tokens = stage(tokens, layouts[i])
            if i in self.out_indices:
                maps = _channels_first(tokens, getattr(self, f'norm{i}')).unflatten(2, size)
                outs[i] = zero_outside(maps, extents[i + 1])
            if stage.downsample is not None:
                tokens, size = stage.downsample(tokens, size)
        return tuple(outs[i] for i in sorted(outs))

    @property
    def output_strides(self) -> List[Size]:
        """Pixels per cell of each output, ``(h, w)``; sides are rounded up."""
        strides, (h, w) = [self.patch_size], self.patch_size
        for stage in self.stages[:-1]:
            h, w = h * stage.downsample.stride[0], w * stage.downsample.stride[1]
            strides.append((h, w))
        return [strides[i] for i in sorted(self.out_indices)]

    def _lay_out(self, images: Tensor) -> Tuple[List[Tuple[Size, ...]], List[Tuple[WindowLayout, WindowLayout]]]:
        """Extents in pixels and in the tokens of each stage, and each stage's windows."""
        size = tuple(images.shape[-2:])
        known = get_extents(images) if self.mask_padding else None
        extents, layouts = [(size, ) * len(images) if known is None else known], []
        strides = [self.patch_size] + [stage.downsample.stride for stage in self.stages[:-1]]
        for stride, stage in zip(strides, self.stages):
            extents.append(merge_extents(extents[-1], stride))
            (size, ) = merge_extents((size, ), stride)
            layouts.append(stage.layouts(size, extents[-1], images.device))
        return extents, layouts

    def _position_embedding(self, size: Size, extents: Tuple[Size, ...]) -> Tensor:
        """The absolute position embedding stretched over each image's extent, ``(B, H * W, C)``, and the one of the
        window laid out from its corner."""
        grid = self.absolute_pos_embed.transpose(1, 2).unflatten(2, self.pos_embed_size)
        by_extent = {}
        for extent in set(extents):
            fitted = grid if extent == self.pos_embed_size else F.interpolate(
                grid, size=extent, mode='bicubic', align_corners=False)
            by_extent[extent] = F.pad(fitted, (0, size[1] - extent[1], 0, size[0] - extent[0]))
        embedding = torch.cat([by_extent[extent] for extent in extents])
        if self.window_pos_embed is not None:
            window = self.stages[0].window_size
            tile = self.window_pos_embed.transpose(1, 2).unflatten(2, window)
            repeats = [-(-side // w) for side, w in zip(size, window)]
            embedding = embedding + tile.repeat(1, 1, *repeats)[..., :size[0], :size[1]]
        return embedding.flatten(2).transpose(1, 2)

    @torch.inference_mode(False)  # embeddings that were made there could not be trained afterwards
    def set_window_size(self, window_size: Union[IntOrPair, List[IntOrPair]], mode: str = 'bicubic') -> None:
        """Change the window of every stage, between two steps of training too: parameter objects stay the same, and an
        optimizer goes on, with fresh averages for the tables that changed their size.

        Args:
            window_size (int | tuple[int, int] | list): As in the constructor. A halo of ``'window'`` follows.
            mode (str): What the encoding's tables are read for the new window by: ``bicubic`` and ``linear`` stretch
                them over it, ``geometric`` and ``crop`` keep the entries of near offsets, see
                :func:`~swin_rpe_mm.rpe.interpolate.resize_table`.

        Raises:
            InputError: If the window or the mode is none, or the mode cannot make that change; nothing is changed then.
        """
        windows = per_stage('window_size', window_size, len(self.depths))
        halos = windows if self.halo == 'window' else tuple(stage.halo for stage in self.stages)
        changes = list(zip(self.stages, windows, halos))
        for stage, window, halo in changes:
            stage.check_window(window, halo, mode)
        old = self.stages[0].window_size
        if self.window_pos_embed is not None and old != windows[0]:
            reshape_parameter(self.window_pos_embed, fit_embedding(self.window_pos_embed.detach(), old, windows[0]))
        for stage, window, halo in changes:
            stage.set_window(window, halo, mode)

    def get_layer_depth(self, param_name: str, prefix: str = '') -> Tuple[int, int]:
        """Depth of a parameter for layer-wise learning rates, as mmpretrain's constructors of optimizers ask for it.

        Args:
            param_name (str): Its name.
            prefix (str): What the name starts with inside a larger model, such as ``backbone.``.

        Returns:
            tuple[int, int]: Its depth and the number of depths: 0 for patch embedding and position embeddings, then one
            for each block (patch merging has that of the block before), the last for output norms and all else.
        """
        number = sum(self.depths) + 2
        if not param_name.startswith(prefix):
            return number - 1, number
        part, *rest = param_name[len(prefix):].split('.')
        if part in ('patch_embed', 'absolute_pos_embed', 'window_pos_embed'):
            return 0, number
        if part != 'stages':
            return number - 1, number
        stage = int(rest[0])
        before = sum(self.depths[:stage])
        return before + (int(rest[2]) + 1 if rest[1] == 'blocks' else self.depths[stage]), number

    def train(self, mode: bool = True) -> 'SwinRPE':
        """Set training mode, but for the frozen stages."""
        super().train(mode)
        self._freeze_stages()
        return self

    def _freeze_stages(self) -> None:
        if self.frozen_stages < 0:
            return
        frozen = [self.patch_embed, self.drop_after_pos, *self.stages[:self.frozen_stages]]
        frozen += [getattr(self, f'norm{i}') for i in self.out_indices if i < self.frozen_stages]
        for module in frozen:
            module.eval().requires_grad_(False)
        for embedding in (self.absolute_pos_embed, self.window_pos_embed):
            if embedding is not None:
                embedding.requires_grad_(False)

    def init_weights(self) -> None:
        """Load ``init_cfg``'s checkpoint, or draw weights as Swin does: normal with 0.02, cut at 2, biases zero.
        SwinV2's branches start at zero.

        Raises:
            InputError: If the checkpoint is not there or none of its keys matches.
        """
        if self.init_cfg is None:
            self._draw_weights()
        elif 'checkpoint' in self.init_cfg:
            load_pretrained(self, **{key: value for key, value in self.init_cfg.items() if key != 'type'})
        else:
            super().init_weights()

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
            if hasattr(rpe, 'init_weights'):
                rpe.init_weights()
        for module in self.modules():
            if isinstance(module, SwinBlock) and module.norm_after:
                for norm in (module.norm1, module.norm2):
                    constant_init(norm, 0.)
        for embedding in (self.absolute_pos_embed, self.window_pos_embed):
            if embedding is not None:
                trunc_normal_(embedding, std=.02)


def _channels_first(tokens: Tensor, norm: nn.Module) -> Tensor:
    """Norm of ``(B, N, C)`` as ``(B, C, N)``; without gradients, no second copy of the tokens is made."""
    if torch.is_grad_enabled():
        return norm(tokens).transpose(1, 2).contiguous()
    maps = tokens.new_empty(len(tokens), tokens.shape[2], tokens.shape[1])
    for part, rows in zip(maps.split(_TOKENS_AT_ONCE, 2), tokens.split(_TOKENS_AT_ONCE, 1)):
        part.copy_(norm(rows).transpose(1, 2))
    return maps
