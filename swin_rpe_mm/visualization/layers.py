"""Attention layers of a backbone: which there are, which to draw, and what comes into each."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..models import SwinRPE
from ..models import SwinBlock, WindowAttention
from ..models.attention import Shared
from ..windows import WindowLayout
from .window_logits import WindowLogits, window_logits

Size = tuple[int, int]

_PAIRS_AT_ONCE = 2**22  # queries times keys times heads, in one call
_HEADS = 8  # that are drawn of a layer unless more are asked for


class Layer(NamedTuple):
    """A block and its place.

    Attributes:
        stage, index (int): Its stage, and its place in there, from 0.
        block (SwinBlock): The block.
        window (tuple[int, int]): Its window in tokens.
        stride (tuple[int, int]): Height and width of a token in pixels.
        shifted (bool): Whether its windows are shifted.
    """
    stage: int
    index: int
    block: SwinBlock
    window: Size
    stride: Size
    shifted: bool

    @property
    def name(self) -> str:
        """As it is called here and in ``--layers``: ``2.5`` is ``stages.2.blocks.5`` of a state dict."""
        return f'{self.stage}.{self.index}'

    @property
    def attention(self) -> WindowAttention:
        return self.block.attn.w_msa

    @property
    def title(self) -> str:
        """Its name, and what its windows are."""
        kind = 'shifted' if self.shifted else 'regular'
        height, width = self.window
        halo = [-first for first in self.attention.geometry.origin]
        beyond = f', halo {halo[0]}' + f'×{halo[1]}' * (halo[0] != halo[1]) if self.attention.has_halo else ''
        if self.attention.pooled_neighbours:
            beyond += f', pooled neighbours {self.attention.pooled_neighbours}'
        return f'layer {self.name}: {kind} {height}×{width}{beyond}'

    def map_size(self, size: Size) -> Size:
        """Height and width in tokens of something that is ``size`` pixels large."""
        return tuple(-(-side // step) for side, step in zip(size, self.stride))


class LayerInput(NamedTuple):
    """What a layer is called with.

    Attributes:
        layer (Layer): The layer.
        tokens (Tensor): ``(K, C)``, packed, before the block's first norm.
        layout (WindowLayout): Its windows.
        mask_padding (bool): Whether window padding is masked.
        shared (Shared): Norm and projections.
    """
    layer: Layer
    tokens: Tensor
    layout: WindowLayout
    mask_padding: bool
    shared: Shared

    def logits(self, windows: Tensor) -> WindowLogits:
        """Those of some windows, ``(W,)`` long."""
        return window_logits(self.layer.attention, windows, self.tokens, self.layout, self.mask_padding, self.shared)

    def parts(self) -> Iterator[tuple[Tensor, WindowLogits]]:
        """All windows and their logits, a few at a time: all at once may need gigabytes."""
        geometry = self.layer.attention.geometry
        pairs = self.layer.attention.num_heads
        for sides in (geometry.query_size, geometry.key_size):
            pairs *= sides[0] * sides[1]
        windows = torch.arange(len(self.layout.slots), device=self.tokens.device)
        for part in windows.split(max(1, _PAIRS_AT_ONCE // pairs)):
            yield part, self.logits(part)


def layers_of(backbone: SwinRPE) -> list[Layer]:
    """All layers, from the image on."""
    stride, found = backbone.patch_size, []
    for i, stage in enumerate(backbone.stages):
        shifts = stage.shift_windows and max(stage.window_size) > 1
        found += [Layer(i, j, block, stage.window_size, stride, shifts and j % 2 == 1)
                  for j, block in enumerate(stage.blocks)]
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


@torch.no_grad()
def watch(backbone: SwinRPE, images: Tensor, layers: Sequence[Layer], see: Callable[[LayerInput], None]) -> None:
    """Run images through a backbone, and show ``see`` what comes into each of some layers.

    Args:
        backbone (SwinRPE): In evaluation mode.
        images (Tensor): ``(B, C, H, W)``, with or without extents.
        layers (Sequence[Layer]): The layers.
        see (Callable): Called with each layer's input, in order.
    """

    def hook(layer: Layer) -> Callable:

        def show(block: SwinBlock, args: tuple) -> None:
            shared = layer.attention.shared(None if block.norm_after else block.norm1)
            see(LayerInput(layer, *args, shared))

        return show

    handles = [layer.block.register_forward_pre_hook(hook(layer)) for layer in layers]
    try:
        backbone(images)
    finally:
        for handle in handles:
            handle.remove()
