"""microsoft/Swin-Transformer, SwinV2 too, and what came of it: its dense prediction, SimMIM, MoBY, timm before 0.9."""
from typing import Dict

from torch import Tensor

from .names import final_norm_to_stage, in_order_of_unfold, renamed, without

ANCHOR = r'patch_embed\.proj\.weight'

BLOCK_RULES = (
    (r'^patch_embed\.proj\.', 'patch_embed.projection.'),
    (r'^layers\.(\d+)\.', r'stages.\1.'),
    (r'\.attn\.', '.attn.w_msa.'),
    (r'\.mlp\.fc1\.', '.ffn.layers.0.0.'),
    (r'\.mlp\.fc2\.', '.ffn.layers.1.'),
)


def recognises(state_dict: Dict[str, Tensor]) -> bool:
    return any(key.startswith('layers.') and '.blocks.' in key for key in state_dict)


def convert(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Rename, and reorder patch merging."""
    state_dict = without(renamed(state_dict, BLOCK_RULES), 'head.', 'mask_token', 'decoder.')
    state_dict = in_order_of_unfold(final_norm_to_stage(state_dict, 'norm'))
    embedding = state_dict.get('absolute_pos_embed')
    if embedding is not None and embedding.ndim == 4:  # the detection repository keeps a map, (1, C, H, W)
        state_dict['absolute_pos_embed'] = embedding.flatten(2).transpose(1, 2)
    return state_dict
