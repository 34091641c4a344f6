"""SwinRPE and its peers, each as a backbone of the same architecture that gives the maps of four stages.

All have random weights. What a peer gives is what its users get from it for dense prediction, and where a peer does
less than others, that is left as it is, to its advantage:

* mmdet, mmseg: ``SwinTransformer`` for any size, with an output norm for each map.
* mmpretrain: ``SwinTransformer`` or ``SwinTransformerV2`` with all four ``out_indices``, hence with output norms, and
  with ``pad_small_map``, without which it refuses maps that are smaller than a window.
* timm: ``forward_intermediates``, without output norms. It is made for the very size of the images (``img_size``), so
  that its masks are ready before the first image; with ``always_partition``, so that its windows stay whole.
* torchvision: the outputs of ``features`` before each patch merging, channels last and without output norms. Any size
  in whole patches.
* transformers: ``SwinBackbone`` or ``Swinv2Backbone`` with all four stages. The first has output norms. Any size; it is
  made for that of the images, since the second cuts its windows to ``image_size``.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from swin_rpe_mm import SwinRPE, attach_extents
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.models.config import ARCHS
from tools.lib import peers
from tools.lib.benchmark.cases import Case, Numbers, Size

ALL = (0, 1, 2, 3)
WITH_CP = ('mmdet', 'mmseg', 'mmpretrain')
SMALL = Case.of_size((64, 64))


@dataclass(frozen=True)
class Architecture:
    """What all contestants share."""
    embed_dims: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window: object
    version: int
    mlp_ratio: float
    drop_path_rate: float
    with_cp: bool

    @classmethod
    def of(cls, backbone: dict) -> Architecture:
        """That of a SwinRPE with these arguments.

        Raises:
            InputError: If it has not four stages with the strides of every Swin.
        """
        arch = backbone.get('arch', 'tiny')
        preset = ARCHS[arch]
        embed_dims, depths, num_heads = (
            value if backbone.get(name) is None else backbone[name]
            for name, value in zip(('embed_dims', 'depths', 'num_heads'), preset))
        version = 2 if arch.startswith('v2-') else 1
        window = backbone.get('window_size')
        for name, only in (('patch_size', 4), ('strides', (4, 2, 2, 2)), ('in_channels', 3), ('out_indices', ALL)):
            given = backbone.get(name, only)
            if (given if isinstance(given, int) else tuple(given)) != only:
                raise InputError(f'{name} must be {only} to be compared with other Swins, got {given}')
        if len(depths) != len(ALL):
            raise InputError(f'depths must be of four stages to be compared with other Swins, got {tuple(depths)}')
        if window is None:
            window = 8 if version == 2 else 7
        return cls(embed_dims, tuple(depths), tuple(num_heads), window, version, backbone.get('mlp_ratio', 4),
                   backbone.get('drop_path_rate', 0.1), backbone.get('with_cp', False))


@dataclass(frozen=True)
class Contestant:
    """One that takes part.

    Attributes:
        name (str): In tables.
        backbone (dict, optional): Arguments of a SwinRPE; None for a peer, whose name is that of its package.
        architecture (Architecture): Of a peer.
    """
    name: str
    backbone: dict | None
    architecture: Architecture

    @property
    def is_peer(self) -> bool:
        return self.backbone is None

    @property
    def takes_any_size(self) -> bool:
        return self.name != 'timm'

    def build(self, case: Case, numbers: Numbers) -> nn.Module:
        """The model for a batch, called with images.

        Raises:
            PeerMissing: If the peer cannot be imported, or has no such architecture.
        """
        if self.is_peer:
            model = PEERS[self.name](self.architecture, case.size)
        else:
            model = SwinRPE(**self.backbone)
            model.init_weights()
        model.to(numbers.device, numbers.stored)
        return torch.compile(model, dynamic=False) if numbers.compiled else model

    def step(self, model: nn.Module, case: Case, numbers: Numbers, mode: str) -> Callable[[], Sequence[Tensor]]:
        """A forward pass, or one with a backward pass, which leaves gradients behind until the next begins."""
        images = case.images(numbers)
        if case.is_padded and not self.is_peer:
            images = attach_extents(images, case.extents)
        model.train(mode == 'training')  # mmdet's returns nothing

        def inference() -> Sequence[Tensor]:
            with torch.no_grad(), numbers.context():
                return model(images)

        def training() -> Sequence[Tensor]:
            model.zero_grad(set_to_none=True)
            with numbers.context():
                maps = model(images)
                loss = sum(stage.mean() for stage in maps)
            loss.backward()
            return maps

        return training if mode == 'training' else inference


def select_peers(names: Sequence[str], architecture: Architecture, numbers: Numbers,
                 modes: Sequence[str]) -> tuple[list[Contestant], dict[str, str]]:
    """The peers that run, by a trial on a small image, and for each of the others the reason in one line."""
    present, absent = [], {}
    eager = replace(numbers, compiled=False)
    for name in names:
        peer = Contestant(name, None, architecture)
        try:
            model = peer.build(SMALL, eager)
            for mode in modes:
                peer.step(model, SMALL, eager, mode)()
        except (ImportError, RuntimeError) as error:  # such as bfloat16 and float32 mixed
            absent[name] = ' '.join(str(error).split())
        else:
            present.append(peer)
    return present, absent


def _check(package: str, architecture: Architecture, versions: tuple[int, ...] = (1, 2)) -> None:
    if architecture.version not in versions:
        raise peers.PeerMissing(f'{package} has no SwinV2')
    if not isinstance(architecture.window, int):
        raise peers.PeerMissing(f'{package} is compared at one square window only, and it is {architecture.window}')
    if architecture.mlp_ratio != 4:
        raise peers.PeerMissing(f'{package} is compared with mlp_ratio 4 only, and it is {architecture.mlp_ratio}')
    if architecture.with_cp and package not in WITH_CP:
        raise peers.PeerMissing(f'{package} has no with_cp')


def _mm(package: str, architecture: Architecture) -> nn.Module:
    _check(package, architecture, versions=(1, ))
    return peers.mm_swin(package)(
        embed_dims=architecture.embed_dims, depths=architecture.depths, num_heads=architecture.num_heads,
        window_size=architecture.window, drop_path_rate=architecture.drop_path_rate, with_cp=architecture.with_cp)


def _mmpretrain(architecture: Architecture, size: Size) -> nn.Module:
    _check('mmpretrain', architecture)
    suffix, kind, extra = '', 'SwinTransformer', {}
    if architecture.version == 2:
        suffix, kind, extra = '_v2', 'SwinTransformerV2', dict(extra_norm_every_n_blocks=0)
    arch = dict(embed_dims=architecture.embed_dims, depths=architecture.depths, num_heads=architecture.num_heads)
    return getattr(peers.mmpretrain(f'models.backbones.swin_transformer{suffix}'), kind)(
        arch=arch | extra, window_size=architecture.window, out_indices=ALL, pad_small_map=True,
        drop_path_rate=architecture.drop_path_rate, with_cp=architecture.with_cp)


class _Timm(nn.Module):

    def __init__(self, architecture: Architecture, size: Size):
        super().__init__()
        _check('timm', architecture)
        name, kind = 'swin_transformer', 'SwinTransformer'
        if architecture.version == 2:
            name, kind = 'swin_transformer_v2', 'SwinTransformerV2'
        self.model = getattr(peers.timm_swin(name), kind)(
            img_size=size, embed_dim=architecture.embed_dims, depths=architecture.depths,
            num_heads=architecture.num_heads, window_size=architecture.window,
            drop_path_rate=architecture.drop_path_rate, always_partition=True, num_classes=0)

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.model.forward_intermediates(images, intermediates_only=True)


class _Torchvision(nn.Module):

    def __init__(self, architecture: Architecture, size: Size):
        super().__init__()
        _check('torchvision', architecture)
        module = peers.torchvision_swin()
        parts = {}
        if architecture.version == 2:
            parts = dict(block=module.SwinTransformerBlockV2, downsample_layer=module.PatchMergingV2)
        self.features = module.SwinTransformer(
            patch_size=[4, 4], embed_dim=architecture.embed_dims, depths=list(architecture.depths),
            num_heads=list(architecture.num_heads), window_size=[architecture.window] * 2,
            stochastic_depth_prob=architecture.drop_path_rate, **parts).features

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = []
        for index, layer in enumerate(self.features):  # patch embedding or merging, and blocks, by turns
            images = layer(images)
            if index % 2:
                maps.append(images.permute(0, 3, 1, 2))
        return maps


class _Transformers(nn.Module):

    def __init__(self, architecture: Architecture, size: Size):
        super().__init__()
        _check('transformers', architecture)
        common = dict(image_size=size, embed_dim=architecture.embed_dims, depths=list(architecture.depths),
                      num_heads=list(architecture.num_heads), window_size=architecture.window,
                      drop_path_rate=architecture.drop_path_rate, out_features=[f'stage{i + 1}' for i in ALL])
        if architecture.version == 2:
            module = peers.transformers_swin_v2()
            common['image_size'] = min(size)
            self.model = module.Swinv2Backbone(module.Swinv2Config(**common))
        else:
            module = peers.transformers_swin()
            self.model = module.SwinBackbone(module.SwinConfig(**common))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.model(images).feature_maps


PEERS: dict[str, Callable[[Architecture, Size], nn.Module]] = {
    'mmdet': lambda architecture, size: _mm('mmdet', architecture),
    'mmseg': lambda architecture, size: _mm('mmseg', architecture),
    'mmpretrain': _mmpretrain,
    'timm': _Timm,
    'torchvision': _Torchvision,
    'transformers': _Transformers,
}
