"""SwinRPE: the plain Swin for MMDetection and MMSegmentation, with executors, checkpoints and extents beside it."""
import logging
from dataclasses import fields
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from mmengine.logging import print_log
from mmengine.model import PretrainedInit, initialize
from mmengine.registry import WEIGHT_INITIALIZERS
from torch import Tensor, nn

from ..checkpoints import load_pretrained, register_loading
from ..errors import InputError
from ..executors import Dispatcher, fuse_attention
from ..models import Swin, SwinConfig
from ..models.config import IntOrPair, one_of
from ..registry import MODELS, register_everywhere
from .extents import Batch, Extents, check_extents, get_extents, plain
from .per_image.feature_cache import get_features

_OPTIONS = ('type', 'checkpoint', 'prefix', 'trust', 'map_location')


@register_everywhere(MODELS)
class SwinRPE(Swin):
    """Swin Transformer with masks that know about padding and a choice of relative position encodings.

    Takes every argument of mmdet's ``SwinTransformer``, loads its checkpoints and gives outputs of the same shapes.
    With ``mask_padding=False`` it computes the same numbers.

    Args:
        arch (str): ``nano``, ``tiny``, ``small``, ``base`` or ``large``: gives ``embed_dims``, ``depths`` and
            ``num_heads`` where they are None. ``v2-tiny`` and so on are SwinV2 (arXiv 2111.09883): cosine attention,
            the norm after each branch and after patch merging's projection, and ``LogCPB``.
        rpe (dict | list[dict] | str, optional): The relative position encoding, ``dict(type=...)``; a list adds
            several; None for none. An option given as a list has one entry per stage. ``default`` is the arch's own,
            ``TableRPE`` or ``LogCPB``.
        mask_padding (bool): True keeps padding out of attention: neither the zeros that fill a map up to whole
            windows nor those that fill an image up to its batch carry any weight, and an image's features do not
            depend on what it is batched with. Outputs are zero outside an image's extent. The extents are an argument
            of :meth:`forward`; our data preprocessors hand them over. False treats padding as content, as mmdet and
            mmseg do.
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
        windows (dict | list, optional): The kind of windows, ``dict(type=...)``, or a list with one per stage:
            ``ShiftedWindows``, ``PaddedWindows``, ``GlobalWindows``, or any that is registered. None means Swin's.
        backend (str): What computes the blocks: ``auto`` takes the fastest executor that can, ``plain`` none, and a
            name of :data:`swin_rpe_mm.executors.EXECUTORS` that one wherever it can.
        attn_backend (str): ``sdpa`` lets PyTorch's fused attention compute on GPUs, ``eager`` does not.
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
                 windows: Union[dict, List[Optional[dict]], None] = None,
                 backend: str = 'auto',
                 attn_backend: str = 'sdpa',
                 input_weights: Optional[str] = None):
        given = locals()
        if pretrained is not None:
            if init_cfg is not None:
                raise InputError('pretrained and init_cfg cannot both be given; init_cfg alone is enough')
            init_cfg = dict(type='Pretrained', checkpoint=pretrained)
        config = SwinConfig(**{field.name: given[field.name] for field in fields(SwinConfig) if field.init})
        super().__init__(config, init_cfg)
        self._dispatcher = Dispatcher(backend)
        if config.attn_backend == 'sdpa' and backend != 'plain':
            fuse_attention(self)
        self._had_extents = False
        register_loading(self)

    def forward(self, images: Tensor, extents: Union[Extents, Tensor, None] = None) -> Tuple[Tensor, ...]:
        """
        Args:
            images (Tensor): ``(B, in_channels, H, W)``, H and W of any size from 1.
            extents (Sequence[tuple[int, int]] | Tensor, optional): Height and width of each image's content in pixels,
                one pair per image or ``(B, 2)``; a tensor's values are not checked. None takes those that the batch
                carries (:func:`swin_rpe_mm.attach_extents`); without any, each image fills the batch.

        Returns:
            tuple[Tensor, ...]: For each of ``out_indices`` a map ``(B, C_i, H_i, W_i)``; sides are rounded up at
            every stride.

        Raises:
            InputError: If there are no images, they have no pixels, or ``extents`` does not fit them.
        """
        features = get_features(images, self)
        if features is not None:
            return features
        extents = get_extents(images) if extents is None else extents
        if isinstance(images, Batch):
            images = plain(images)
        return super().forward(images, self._as_tensor(images, extents))

    def _as_tensor(self, images: Tensor, extents: Union[Extents, Tensor, None]) -> Optional[Tensor]:
        """Extents on the images' device; None where nothing lies outside of them, or padding is content."""
        if not self.config.mask_padding:
            return None
        if extents is None:
            if self._had_extents and images.shape[0] > 1:
                self._had_extents = False
                print_log('SwinRPE: a batch of several images came without their extents, though earlier ones had them:'
                          ' what it is filled up with is taken for content. Operations that change a batch drop them; '
                          'hand them over as backbone(images, extents)', 'current', logging.WARNING)
            return None
        self._had_extents = True
        if isinstance(extents, Tensor):
            if extents.ndim != 2 or extents.shape[1] != 2 or extents.shape[0] != images.shape[0]:
                raise InputError(f'extents must have the shape ({images.shape[0]}, 2), one pair per image, got '
                                 f' {tuple(extents.shape)}')
            return extents.to(images.device)
        extents = check_extents(extents, tuple(images.shape))
        if all(extent == tuple(images.shape[2:]) for extent in extents):
            return None
        return torch.tensor(extents, device=images.device)

    @property
    def num_features(self) -> Tuple[int, ...]:
        """Channels of each stage; this and those below have the names that mm's Swin gives them."""
        return self.config.num_features

    @property
    def out_indices(self) -> Tuple[int, ...]:
        return self.config.out_indices

    @property
    def frozen_stages(self) -> int:
        return self.config.frozen_stages

    def run(self, module: nn.Module, *arguments: Any) -> Any:
        """Call a module, or have an executor compute its numbers."""
        return self._dispatcher.run(module, *arguments)

    def to_maps(self, norm: nn.Module, x: Tensor, size: Tuple[int, int], extents: Optional[Tensor]) -> Tensor:
        """Norm of tokens ``(B, L, C)`` as maps ``(B, C, H, W)``, zero outside the extents."""
        maps = self._dispatcher.to_maps(norm, x, size, extents)
        return super().to_maps(norm, x, size, extents) if maps is None else maps

    def init_weights(self) -> None:
        """Load ``init_cfg``'s checkpoint, or draw weights as Swin does: normal with 0.02, cut at 2, biases zero.
        SwinV2's branches start at zero. Any other ``init_cfg`` of mmengine's changes what it names afterwards.

        Raises:
            InputError: If the checkpoint is not there or none of its keys matches, or ``init_cfg`` is none.
        """
        files, others = _files_and_others(self.init_cfg)
        if others or not files:
            self._draw_weights()
            initialize(self, others)
        for options in files:
            load_pretrained(self, **options)


def _files_and_others(init_cfg: Any) -> Tuple[List[dict], List[dict]]:
    """The checkpoints that an ``init_cfg`` names, and what else it asks for.

    Raises:
        InputError: If something is mistyped.
    """
    given = [] if init_cfg is None else list(init_cfg) if isinstance(init_cfg, (list, tuple)) else [init_cfg]
    files, others = [], []
    for entry in given:
        if not isinstance(entry, dict):
            raise InputError(f'init_cfg must be None, a dict with a type, or a list of such dicts, got {init_cfg!r}')
        kind = entry.get('type')
        if not isinstance(kind, type):
            one_of('type of init_cfg', kind, sorted(WEIGHT_INITIALIZERS.module_dict))
        if kind not in ('Pretrained', PretrainedInit):
            others.append(entry)
            continue
        for option in entry:
            one_of('option of init_cfg', option, _OPTIONS)
        files.append({key: value for key, value in entry.items() if key != 'type'})
    return files, others
