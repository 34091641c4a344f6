"""Swins of other projects with random weights, what they give, and how ours is built to give the same."""
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

import peers
import torch
import torch.nn.functional as F
from torch import nn

from oracles.cases import randomise
from oracles.official_model import MoBY, Official, SimMIM
from oracles.swin_v2 import randomise_v2
from swin_rpe_mm import SwinRPE

ARCH = dict(embed_dims=8, depths=(2, 2, 2, 2), num_heads=(1, 2, 2, 4))
SHORT = (2, 2, 2, 1)  # no shift in the last stage
ALL = (0, 1, 2, 3)


@dataclass
class Peer:
    """A model of another project.

    Attributes:
        model (nn.Module): Called with images.
        taps (dict[int, nn.Module]): The module whose output is the map of a stage.
        normed (tuple[int]): The stages whose map has passed an output norm of theirs, which is in their file.
        arguments (dict): Of a SwinRPE that computes the same.
        state (dict): What their users save.
    """
    model: nn.Module
    taps: dict[int, nn.Module]
    normed: tuple[int, ...]
    arguments: dict
    state: Optional[dict] = None
    maps: dict = field(default_factory=dict, init=False)

    def __post_init__(self):
        self.model.eval()
        self.state = self.model.state_dict() if self.state is None else self.state
        for stage, module in self.taps.items():
            module.register_forward_hook(lambda module, inputs, out, stage=stage: self.maps.update({stage: out}))

    def ours(self, seed: int = 1, **kwargs) -> SwinRPE:
        """Our model of the same shape with weights of its own."""
        arguments = ARCH | dict(mask_padding=False, drop_path_rate=0.) | self.arguments | kwargs
        return randomise_v2(SwinRPE(**arguments), seed).eval()

    def features(self, images: torch.Tensor, norms: SwinRPE, like) -> list[torch.Tensor]:
        """Their maps ``(B, C, H, W)``; those without an output norm of theirs pass that of ``norms``.

        Args:
            like (Sequence[Tensor]): Maps that say the sizes.
        """
        self.model(images)
        maps = []
        for stage in ALL:
            out = self.maps[stage]
            out = (out[0] if isinstance(out, tuple) else out).flatten(1, -2)
            if stage not in self.normed:
                norm = getattr(norms, f'norm{stage}')
                out = F.layer_norm(out, norm.normalized_shape, norm.weight.detach(), norm.bias.detach())
            maps.append(out.transpose(1, 2).unflatten(2, like[stage].shape[2:]))
        return maps


# ---- microsoft ----


def official(image, window: int, version: int = 1, seed: int = 0, **kwargs) -> Peer:
    """Classification of one size of image."""
    model = randomise_v2(Official(image, window, **ARCH, version=version, **kwargs), seed)
    arguments = dict(window_size=[layer.blocks[0].window for layer in model.layers], shift_covered_axes=False)
    if version == 2:
        arguments['arch'] = 'v2-nano'
    if 'position' in kwargs:
        arguments.update(use_abs_pos_embed=True, pretrain_img_size=kwargs['position'])
    taps = {i: model.layers[i].blocks[-1] for i in (0, 1, 2)}
    return Peer(model, taps | {3: model.norm}, (3, ), arguments)


def official_dense(image, window: int, **kwargs) -> Peer:
    """Detection and segmentation, for any image."""
    model = randomise(Official(None, window, **ARCH, **kwargs))
    arguments = dict(window_size=window, shift_covered_axes=True)
    if 'position' in kwargs:
        arguments.update(use_abs_pos_embed=True, pretrain_img_size=kwargs['position'])
    return Peer(model, {i: getattr(model, f'norm{i}') for i in ALL}, ALL, arguments)


def simmim(image, window: int, version: int = 1) -> Peer:
    peer = official(image, window, version, mask_token=True)
    peer.state = randomise(SimMIM(peer.model, 64)).state_dict()
    return peer


def moby(image, window: int) -> Peer:
    peer = official(image, window)
    del peer.model.head
    other = official(image, window)
    del other.model.head
    peer.state = randomise(MoBY(peer.model, other.model, 64)).state_dict()
    return peer


# ---- MM ----


def mm(package: str, image, window: int) -> Peer:
    """mmdet's or mmseg's."""
    if package == 'mmdet':
        from mmdet.models.backbones import SwinTransformer
    else:
        from mmseg.models.backbones import SwinTransformer
    model = randomise(SwinTransformer(**ARCH, window_size=window, drop_path_rate=0.))
    return Peer(model, {i: getattr(model, f'norm{i}') for i in ALL}, ALL,
                dict(window_size=window, shift_covered_axes=True))


def mmpretrain(image, window, version: int = 1, pad_small_map: bool = False, out_indices=ALL, **kwargs) -> Peer:
    """``pad_small_map`` is for dense prediction."""
    name = 'SwinTransformer' if version == 1 else 'SwinTransformerV2'
    module = peers.mmpretrain('models.backbones.swin_transformer' + ('' if version == 1 else '_v2'))
    arch = dict(ARCH) | (dict(extra_norm_every_n_blocks=0) if version == 2 else {})
    model = randomise_v2(getattr(module, name)(arch=arch, window_size=window, out_indices=out_indices,
                                               pad_small_map=pad_small_map, drop_path_rate=0., **kwargs))
    taps = {i: getattr(model, f'norm{i}') if i in out_indices else model.stages[i].blocks[-1] for i in ALL}
    arguments = dict(window_size=window, shift_covered_axes=pad_small_map)
    return Peer(model, taps, out_indices, arguments | (dict(arch='v2-nano') if version == 2 else {}))


# ---- timm ----


def timm(image, window, version: int = 1, features_only: bool = False, **kwargs) -> Peer:
    """Its windows are cut to the map, axis by axis. It pads after rolling, so that maps must be whole windows."""
    name = 'swin_transformer' if version == 1 else 'swin_transformer_v2'
    module = peers.timm_swin(name)
    arguments = dict(img_size=image, window_size=window, drop_path_rate=0., embed_dim=ARCH['embed_dims'],
                     depths=ARCH['depths'], num_heads=ARCH['num_heads'], **kwargs)
    if features_only:
        variant = 'swin_tiny_patch4_window7_224' if version == 1 else 'swinv2_tiny_window8_256'
        model = getattr(module, f'_create_{name}')(variant, features_only=True, **arguments)
        layers = [model[f'layers_{i}'] for i in ALL]
        taps, normed = dict(enumerate(layers)), ()
    else:
        model = getattr(module, 'SwinTransformer' if version == 1 else 'SwinTransformerV2')(**arguments, num_classes=10)
        layers = list(model.layers)
        taps, normed = dict(enumerate(layers[:3])) | {3: model.norm}, (3, )
    arguments = dict(window_size=[layer.blocks[0].window_size for layer in layers], shift_covered_axes=False)
    if version == 2:  # its files do not tell the window of pre-training
        arguments.update(arch='v2-nano', rpe=dict(type='LogCPB', pretrained_window_size=list(
            kwargs.get('pretrained_window_sizes', (0, ) * 4))))
    return Peer(randomise_v2(model), taps, normed, arguments)


def timm_before_0_9(image, window: int, version: int = 1) -> Peer:
    """timm had the official layout, and reads it still: its model, and the file that it read."""
    file = official(image, window, version)
    peer = timm(image, window, version)
    module = peers.timm_swin('swin_transformer' if version == 1 else 'swin_transformer_v2')
    peer.model.load_state_dict(module.checkpoint_filter_fn(dict(file.state), peer.model), strict=True)
    peer.state, peer.arguments = file.state, file.arguments
    return peer


# ---- torchvision ----


def torchvision(image, window, version: int = 1) -> Peer:
    """Its patches drop what is left over of an image, so that images must be whole patches."""
    module = peers.torchvision_swin()
    parts = {} if version == 1 else dict(block=module.SwinTransformerBlockV2, downsample_layer=module.PatchMergingV2)
    model = module.SwinTransformer(
        patch_size=[4, 4], embed_dim=ARCH['embed_dims'], depths=list(ARCH['depths']), window_size=list(window),
        num_heads=list(ARCH['num_heads']), stochastic_depth_prob=0., num_classes=10, **parts)
    taps = {i: model.features[2 * i + 1] for i in (0, 1, 2)} | {3: model.norm}
    arguments = dict(window_size=tuple(window), shift_covered_axes=False)
    return Peer(randomise_v2(model), taps, (3, ), arguments | (dict(arch='v2-nano') if version == 2 else {}))


# ---- transformers ----


def transformers(image, window: int, kind: str, saved: bool = False, depths=ARCH['depths'], made_for=None,
                 pretrained=(0, ) * 4) -> Peer:
    """``kind`` is the name of a class, all of which have a ``Swin`` or ``Swinv2`` in it.

    Args:
        saved (bool): Whether the names are those of the files, which release 5 writes as release 4 did.
        made_for (int): The side of the image that the model is made for; None is that of the image.
    """
    made_for = made_for or image[0]
    common = dict(image_size=made_for, embed_dim=ARCH['embed_dims'], depths=list(depths), window_size=window,
                  num_heads=list(ARCH['num_heads']), drop_path_rate=0., encoder_stride=32,
                  out_features=[f'stage{i + 1}' for i in ALL])
    if kind.startswith('Swinv2'):
        module = peers.transformers_swin_v2()
        config = module.Swinv2Config(**common, pretrained_window_sizes=list(pretrained))
        windows = [min(window, made_for // 4 // 2**i) for i in ALL]
        # its files do not tell the window of pre-training
        arguments = dict(arch='v2-nano', window_size=windows, shift_covered_axes=False,
                         rpe=dict(type='LogCPB', pretrained_window_size=list(pretrained)))
    else:
        module = peers.transformers_swin()
        config = module.SwinConfig(**common)
        arguments = dict(window_size=window, shift_covered_axes=kind == 'SwinBackbone')
    model = randomise_v2(getattr(module, kind)(config))
    inner = getattr(model, 'swin', getattr(model, 'swinv2', model))
    taps, normed = {i: inner.encoder.layers[i].blocks[-1] for i in ALL}, ()
    if hasattr(model, 'hidden_states_norms'):
        taps, normed = dict(enumerate(model.hidden_states_norms.values())), ALL
    elif hasattr(inner, 'layernorm'):
        taps[3], normed = inner.layernorm, (3, )
    state = None
    if saved:
        state = peers.transformers('core_model_loading').revert_weight_conversion(model, model.state_dict())
    return Peer(model, taps, normed, arguments | dict(depths=tuple(depths)), state)


# ---- all of them ----

SQUARE = dict(image=(128, 128), window=4)  # the last map is one window
COVERED = dict(image=(128, 128), window=8)  # the last map is smaller than a window, the one before as large
WIDE = dict(image=(128, 192), window=2)
ODD = [dict(image=(75, 101), window=4), dict(image=(33, 200), window=5), dict(image=(128, 128), window=7),
       dict(image=(6, 9), window=3)]
WHOLE = [dict(image=(64, 64), window=4), COVERED, dict(image=(128, 192), window=[4, 4, 4, (4, 3)]),
         dict(image=(160, 96), window=[(4, 8), (5, 4), (5, 2), (5, 3)]),
         dict(image=(72, 104), window=[(6, 13), (3, 13), (5, 7), (3, 2)])]
TORCHVISION = [dict(image=(128, 128), window=(7, 7)), dict(image=(100, 76), window=(4, 4)),
               dict(image=(36, 200), window=(3, 5))]
HF_SWIN = [SQUARE, dict(image=(117, 95), window=2), dict(image=(160, 96), window=3, depths=SHORT)]
HF_SWIN_V2 = [COVERED, dict(image=(96, 96), window=6, pretrained=(12, 4, 9, 2)),
              dict(image=(96, 160), window=4, made_for=128, depths=SHORT),
              dict(image=(117, 95), window=5, made_for=160, depths=SHORT)]
TRANSFORMERS = {
    'SwinModel': HF_SWIN, 'SwinForImageClassification': HF_SWIN[:1], 'SwinForMaskedImageModeling': HF_SWIN[:1],
    'SwinBackbone': ODD, 'Swinv2Model': HF_SWIN_V2, 'Swinv2ForImageClassification': HF_SWIN_V2[:1],
    'Swinv2ForMaskedImageModeling': HF_SWIN_V2[:1], 'Swinv2Backbone': HF_SWIN_V2}


def _with(cases: list, **kwargs) -> list:
    return [case | kwargs for case in cases]


# name: function, and its arguments for several sizes
FAMILIES: dict[str, tuple[Callable[..., Peer], list[dict]]] = {
    'official': (official, [SQUARE, COVERED, WIDE, dict(image=(224, 224), window=7)]),
    'official, positions': (official, [SQUARE | dict(position=(128, 128))]),
    'official, V2': (official, _with([SQUARE, COVERED, WIDE], version=2) + _with(
        [SQUARE], version=2, pretrained=(12, 12, 12, 6))),
    'official dense': (official_dense, ODD),
    'official dense, positions': (official_dense, _with(ODD[:2], position=(64, 64))),
    'SimMIM': (simmim, [SQUARE, COVERED]),
    'SimMIM, V2': (simmim, _with([SQUARE, COVERED], version=2)),
    'MoBY': (moby, [SQUARE, COVERED]),
    'mmdet': (lambda **case: mm('mmdet', **case), ODD),
    'mmseg': (lambda **case: mm('mmseg', **case), ODD),
    'mmpretrain': (mmpretrain, [SQUARE, dict(image=(117, 95), window=2), SQUARE | dict(out_indices=(3, ))]),
    'mmpretrain, maps padded': (mmpretrain, _with(ODD, pad_small_map=True)),
    'mmpretrain, V2': (mmpretrain, _with([
        SQUARE, dict(image=(128, 128), window=[8, 8, 8, 4], out_indices=(3, )),
        dict(image=(96, 160), window=[4, 4, 3, 2], pretrained_window_sizes=[8, 8, 6, 3]),
        dict(image=(75, 101), window=[7, 4, 5, 3], pretrained_window_sizes=[0, 8, 0, 2], pad_small_map=True),
    ], version=2)),
    'timm': (timm, WHOLE),
    'timm, features_only': (timm, _with(WHOLE, features_only=True)),
    'timm before 0.9': (timm_before_0_9, [SQUARE, COVERED]),
    'timm, V2': (timm, _with([*WHOLE, COVERED | dict(pretrained_window_sizes=(12, 12, 12, 6))], version=2)),
    'timm, V2, features_only': (timm, _with(WHOLE[1:3], version=2, features_only=True)),
    'timm before 0.9, V2': (timm_before_0_9, _with([SQUARE, COVERED], version=2)),
    'torchvision': (torchvision, TORCHVISION),
    'torchvision, V2': (torchvision, _with(TORCHVISION, version=2)),
    **{f'transformers, {kind}': (transformers, _with(cases, kind=kind)) for kind, cases in TRANSFORMERS.items()},
    **{f'transformers 4, {kind}': (transformers, _with(cases, kind=kind, saved=True))
       for kind, cases in TRANSFORMERS.items() if not kind.startswith('Swinv2')},  # its names are the same in both
}
