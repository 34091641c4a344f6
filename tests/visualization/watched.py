"""Small backbones, and what comes into their layers."""
from __future__ import annotations

import torch
from oracles.cases import pixels

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.visualization.layers import LayerInput, layers_of, watch


def tiny(**arguments) -> SwinRPE:
    """A backbone of two stages in float64, whose weights are large enough to tell logits apart."""
    sizes = dict(arch='nano', embed_dims=16, depths=(2, 2), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1),
                 window_size=4)
    backbone = SwinRPE(**{**sizes, **arguments})
    backbone.init_weights()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return backbone.double().eval()


def image(height: int = 46, width: int = 70) -> torch.Tensor:
    """A batch of one image of noise."""
    return pixels(1, 3, height, width).double()


def inputs_of(backbone: SwinRPE, images: torch.Tensor, extent: tuple[int, int] | None = None) -> list[LayerInput]:
    """What comes into each layer."""
    found = []
    watch(backbone, images, layers_of(backbone), found.append, extent and [extent])
    return found


def projected(given: LayerInput) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scaled queries, keys and values of the tokens inside the extent, ``(heads, K, d)``; not of cosine attention."""
    attention, inside = given.layer.attention, (given.layout.region.flatten() >= 0)[given.layout.rows_back]
    x = attention.qkv(given.tokens[0, inside]).detach()
    q, k, v = x.unflatten(1, (3, attention.num_heads, attention.head_dim)).permute(1, 2, 0, 3)
    return q * attention.scale, k, v
