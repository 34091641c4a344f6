"""A training step of a whole block as one function, a few windows at a time."""
from typing import Optional

import torch
from torch import Tensor, nn

from ...models import SwinBlock
from .block_function import Setting, run_block
from .inference import why_not_dropout, windows_at_once
from .linear import can_recompute
from .packed import PackedLayout
from .parts import cut_into_parts
from .products import autocast_dtype
from .rows import draw_images, fixed_bias, has_halo


def why_not(block: SwinBlock, x: Tensor) -> Optional[str]:
    """Why it cannot run on tokens like ``x``, or None."""
    attention, ((_, activation, _), _, _) = block.attn.w_msa, block.ffn.layers
    if not torch.is_grad_enabled():
        return 'no gradients are wanted'
    if x.dtype != torch.float32 or attention.qkv.weight.dtype != torch.float32 or autocast_dtype(x) is not None:
        return 'it computes in float32 only'
    if block.norm_after or attention.logit_scale is not None:
        return "SwinV2's norms and cosines are not part of it"
    if has_halo(attention) or attention.pooled_neighbours:
        return 'queries see keys of other windows'
    if attention.rpe is not None and not attention.rpe.gives_bias_alone:
        return 'the encoding looks at queries and keys'
    if not (isinstance(activation, nn.GELU) and can_recompute(activation)):
        return 'the activation is no exact GELU'
    if not (can_recompute(block.norm1) and can_recompute(block.norm2)):
        return 'the norms are no layer norms with weight and bias'
    return why_not_dropout(block)


def run(block: SwinBlock, x: Tensor, layout: PackedLayout, mask_padding: bool, scratch: dict) -> Tensor:
    """Packed tokens ``(K, C)`` to ``(K, C)``; arguments as for :func:`.inference.run`."""
    attention, (first, *_), second = block.attn.w_msa, *block.ffn.layers[:2]
    parts, rows = cut_into_parts(layout, windows_at_once(layout, x.shape[1], trained=True))
    setting = Setting(attention.num_heads, attention.scale, (block.norm1.eps, block.norm2.eps), mask_padding, rows)
    layers = (block.norm1, attention.qkv, attention.proj, block.norm2, first, second)
    kept = draw_images(block, x, layout.batch_size)
    return run_block(x, parts, setting, fixed_bias(attention), kept,
                     [parameter for layer in layers for parameter in (layer.weight, layer.bias)])
