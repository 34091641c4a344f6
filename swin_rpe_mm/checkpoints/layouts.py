"""State dicts of other projects in the layout of mm's Swin, which is ours.

A layout is recognised by its keys. What is already in our layout passes through unchanged, so converting twice does
nothing.
"""
import re
from typing import Dict

from torch import Tensor


def to_mm_layout(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Convert a backbone's state dict, its keys without any prefix.

    Understands mm's own layout; mmpretrain's of SwinV2, which merges patches at the start of a stage; and that of
    microsoft/Swin-Transformer and its detection and segmentation repositories, SwinV2's too:
    ``layers.i.blocks.j.{attn,mlp}``, ``patch_embed.proj``, patches merged token by token.

    Args:
        state_dict (dict[str, Tensor]): Weights by name.

    Returns:
        dict[str, Tensor]: The same weights under mm's names, without masks and the classifier's head.
    """
    state_dict = {key: value for key, value in state_dict.items() if not key.endswith('attn_mask')}
    if not any(key.startswith('layers.') and '.blocks.' in key for key in state_dict):
        return _merging_at_the_end(state_dict)
    after_projection = any(key.endswith('.logit_scale') for key in state_dict)  # SwinV2 norms after merging
    return {
        _mm_name(key): _mm_order(key, value, after_projection)
        for key, value in state_dict.items() if not key.startswith(('head.', 'norm.'))
    }


def _merging_at_the_end(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    merging = re.compile(r'stages\.(\d+)\.downsample\.')
    stages = {int(found[1]) for found in map(merging.match, state_dict) if found}
    if not stages or 0 in stages:
        return state_dict
    return {
        merging.sub(lambda found: f'stages.{int(found[1]) - 1}.downsample.', key): value
        for key, value in state_dict.items()
    }


def _mm_name(key: str) -> str:
    for old, new in (('layers.', 'stages.'), ('patch_embed.proj.', 'patch_embed.projection.')):
        if key.startswith(old):
            key = new + key[len(old):]
    for old, new in (('.attn.', '.attn.w_msa.'), ('.mlp.fc1.', '.ffn.layers.0.0.'), ('.mlp.fc2.', '.ffn.layers.1.')):
        key = key.replace(old, new)
    return key


def _mm_order(key: str, value: Tensor, after_projection: bool) -> Tensor:
    """Patch merging joins the tokens (0,0), (1,0), (0,1), (1,1) one after the other; nn.Unfold goes through
    (0,0), (0,1), (1,0), (1,1) for each channel."""
    joined = '.downsample.norm.' in key and not after_projection
    if joined or key.endswith('.downsample.reduction.weight'):
        by_token = value.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :]
        return by_token.transpose(-2, -1).flatten(-2)
    if key == 'absolute_pos_embed' and value.ndim == 4:  # the detection repository keeps a map, (1, C, H, W)
        return value.flatten(2).transpose(1, 2)
    return value
