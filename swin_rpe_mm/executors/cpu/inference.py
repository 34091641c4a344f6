"""A block without gradients, a few windows at a time: nothing that it makes on its way leaves the cache."""
from typing import Optional

import torch
from torch import Tensor, nn

from ...models import SwinBlock
from ..tuning import current
from .packed import PackedLayout
from .parts import cut_into_parts
from .rows import Beyond, draw_images, has_halo, key_groups_of_parts, keys_and_values, prepare, run_rows


def why_not(block: SwinBlock, x: Tensor) -> Optional[str]:
    """Why it cannot run on tokens like ``x``, or None."""
    return 'gradients are wanted' if wants_gradients(block, x) else why_not_dropout(block)


def wants_gradients(module: nn.Module, x: Tensor) -> bool:
    """Whether what a module makes of ``x`` will be differentiated."""
    return torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in module.parameters()))


def why_not_dropout(block: SwinBlock) -> Optional[str]:
    """Dropout draws its numbers in the order of the plain model."""
    attention, (hidden, _, drop) = block.attn.w_msa, block.ffn.layers
    rates = (attention.attn_drop_rate, attention.proj_drop.p, hidden[2].p, drop.p)
    return 'dropout is on' if block.training and any(rates) else None


@torch.no_grad()
def run(block: SwinBlock, x: Tensor, layout: PackedLayout, mask_padding: bool, scratch: dict) -> Tensor:
    """Packed tokens ``(K, C)`` to ``(K, C)``.

    Args:
        block (SwinBlock): The block.
        x (Tensor): Packed tokens.
        layout (PackedLayout): The windows to attend in.
        mask_padding (bool): False lets window padding take part as zeros that were projected.
        scratch (dict): What the next block of the stage may use again.
    """
    attention, at_once = block.attn.w_msa, windows_at_once(layout, x.shape[1])
    kept = draw_images(block, x, layout.batch_size)
    parts, tokens = (), current().tokens_at_once
    if not attention.pooled_neighbours:
        parts, tokens = cut_into_parts(layout, at_once)
    if len(parts) <= 1:
        return run_rows(block, prepare(block, tokens), x, layout, mask_padding, kept)
    tokens = tokens if len(parts) > current().few_parts else 0
    around = [None] * len(parts)
    if has_halo(attention):
        # the largest tensor of all: to have its memory mapped anew for each block would take longer than filling it
        scratch['kv'] = keys_and_values(block, x, tokens, scratch.get('kv'))
        biases = {}
        around = [Beyond(scratch['kv'], own, biases) for own in key_groups_of_parts(attention, layout, at_once)]
    layers = prepare(block, tokens, queries_only=has_halo(attention))
    # tokens that the block before made here are nobody else's: no window is read once it was written
    out = x if scratch.get('own') is x else torch.empty_like(x)
    for part, beyond in zip(parts, around):
        rows = run_rows(block, layers, x.index_select(0, part.tokens), part.layout, mask_padding, kept, beyond)
        out.index_copy_(0, part.tokens, rows)
    scratch['own'] = out
    return out


def windows_at_once(layout: PackedLayout, channels: int, trained: bool = False) -> int:
    """How many of a layout's windows are taken at a time."""
    values = current().values_at_once * (1 + trained) // channels
    return max(1, min(current().tokens_at_once, values) // layout.slots.shape[1])
