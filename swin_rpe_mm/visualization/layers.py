"""Attention layers of a backbone: which there are, which to draw, and what comes into each."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..models import Swin, SwinBlock, WindowAttention
from ..windows import GlobalWindows, WindowLayout, Windows
from .window_logits import WindowLogits, real_windows, window_logits

Size = tuple[int, int]

_PAIRS_AT_ONCE = 2**22  # queries times keys times heads, in one call
_HEADS = 8  # that are drawn of a layer unless more are asked for


class Layer(NamedTuple):
    """A block and its place.

    Attributes:
        stage, index (int): Its stage, and its place in there, from 0.
        block (SwinBlock): The block.
        windows (Windows): Its kind of windows.
        stride (tuple[int, int]): Height and width of a token in pixels.
    """
    stage: int
    index: int
    block: SwinBlock
    windows: Windows
    stride: Size

    @property
    def name(self) -> str:
        """As it is called here and in ``--layers``: ``2.5`` is ``stages.2.blocks.5`` of a state dict."""
        return f'{self.stage}.{self.index}'

    @property
    def attention(self) -> WindowAttention:
        return self.block.attn.w_msa

    @property
    def shifted(self) -> bool:
        return any(self.windows.shift) and not isinstance(self.windows, GlobalWindows)

    @property
    def looks_beyond(self) -> bool:
        """Whether queries see more than their window."""
        return any(self.windows.halo) or self.attention.pooled_neighbours > 0

    @property
    def kind(self) -> str:
        """What its windows are, in a word."""
        if isinstance(self.windows, GlobalWindows):
            return 'global'
        return 'shifted' if self.shifted else 'regular'

    @property
    def title(self) -> str:
        """Its name, and what its windows are."""
        (height, width), (down, right) = self.windows.window_size, self.windows.halo
        side = '' if isinstance(self.windows, GlobalWindows) else f' {height}×{width}'
        beyond = f', halo {down}' + f'×{right}' * (down != right) if any(self.windows.halo) else ''
        if self.attention.pooled_neighbours:
            beyond += f', pooled neighbours {self.attention.pooled_neighbours}'
        return f'layer {self.name}: {self.kind}{side}{beyond}'

    def map_size(self, size: Size) -> Size:
        """Height and width in tokens of something that is ``size`` pixels large."""
        return tuple(-(-side // step) for side, step in zip(size, self.stride))


class LayerInput(NamedTuple):
    """What the attention of a layer is called with.

    Attributes:
        layer (Layer): The layer.
        tokens (Tensor): ``(B, L, C)``.
        layout (WindowLayout): Its windows.
    """
    layer: Layer
    tokens: Tensor
    layout: WindowLayout

    def logits(self, windows: Tensor) -> WindowLogits:
        """Those of some windows, ``(W,)`` long."""
        return window_logits(self.layer.attention, windows, self.tokens, self.layout)

    def parts(self) -> Iterator[tuple[Tensor, WindowLogits]]:
        """All windows that hold something real and their logits, a few at a time: all at once may need gigabytes."""
        pairs = self.layer.attention.num_heads * self.layout.visible[0].numel()
        for part in real_windows(self.layout).split(max(1, _PAIRS_AT_ONCE // pairs)):
            yield part, self.logits(part)


def layers_of(backbone: Swin) -> list[Layer]:
    """All layers, from the image on."""
    stride, found = backbone.config.patch_size, []
    for i, stage in enumerate(backbone.stages):
        found += [Layer(i, j, block, stage.kinds[j % 2], stride) for j, block in enumerate(stage.blocks)]
        if stage.downsample is not None:
            stride = tuple(a * b for a, b in zip(stride, stage.downsample.stride))
    return found


def pick_layers(layers: Sequence[Layer], names: Sequence[str] | None) -> list[Layer]:
    """Some layers.

    Args:
        layers (Sequence[Layer]): What :func:`layers_of` gave.
        names (Sequence[str], optional): ``2.5`` is block 5 of stage 2, both from 0, ``2`` all of stage 2, and ``all``
            all. None means the last two of each stage: one with regular windows and one with shifted ones.

    Raises:
        InputError: If a name is none of these.
    """
    if names is None:
        last = {layer.stage: layer.index for layer in layers}
        return [layer for layer in layers if layer.index >= last[layer.stage] - 1]
    known = {'all', *(layer.name for layer in layers), *(str(layer.stage) for layer in layers)}
    for name in names:
        if name not in known:
            raise InputError(f"--layers must name layers as STAGE.BLOCK out of {', '.join(x.name for x in layers)}, "
                             f'stages by their number, or all, got {name}')
    return [layer for layer in layers if {'all', layer.name, str(layer.stage)} & set(names)]


def pick_heads(layers: Sequence[Layer], heads: Sequence[int] | None) -> dict[str, list[int]]:
    """The heads to draw of each layer, by its name.

    Args:
        layers (Sequence[Layer]): The layers.
        heads (Sequence[int], optional): Numbers from 0; a layer draws those that it has. None means the first eight.

    Raises:
        InputError: If no layer has one of them.
    """
    most = max(layer.attention.num_heads for layer in layers)
    for head in heads or ():
        if not 0 <= head < most:
            raise InputError(f'--heads must be from 0 to {most - 1}, since these layers have {most} heads, got {head}')
    return {layer.name: [head for head in (range(_HEADS) if heads is None else heads)
                         if head < layer.attention.num_heads] for layer in layers}


def extents_of(backbone: Swin, images: Tensor, extents: Sequence[Size] | None) -> Sequence[Size]:
    """What of each image is content to the backbone, in pixels.

    Args:
        backbone (Swin): The backbone; without masks, padding is content.
        images (Tensor): ``(B, C, H, W)``.
        extents (Sequence[tuple[int, int]], optional): Height and width of each image's content; None means all.
    """
    if extents is None or not backbone.config.mask_padding:
        return [tuple(images.shape[2:])] * len(images)
    return extents


@torch.no_grad()
def watch(backbone: Swin, images: Tensor, layers: Sequence[Layer], see: Callable[[LayerInput], None],
          extents: Sequence[Size] | None = None) -> None:
    """Run images through a backbone, and show ``see`` what comes into the attention of some layers.

    Args:
        backbone (Swin): In evaluation mode.
        images (Tensor): ``(B, C, H, W)``.
        layers (Sequence[Layer]): The layers.
        see (Callable): Called with each layer's input, in order.
        extents (Sequence[tuple[int, int]], optional): Height and width of each image's content in pixels; None for all.
    """

    def hook(layer: Layer) -> Callable:
        return lambda attention, args: see(LayerInput(layer, *args))

    handles = [layer.attention.register_forward_pre_hook(hook(layer)) for layer in layers]
    try:
        run(backbone, images, extents)
    finally:
        for handle in handles:
            handle.remove()


def run(backbone: Swin, images: Tensor, extents: Sequence[Size] | None) -> None:
    """Call a backbone with images and the extents of their content."""
    backbone(images, torch.tensor(extents_of(backbone, images, extents), device=images.device))
