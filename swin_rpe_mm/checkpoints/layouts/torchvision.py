"""torchvision, Swin and SwinV2."""
from typing import Dict

from torch import Tensor

from .names import final_norm_to_stage, in_order_of_unfold, renamed, without

ANCHOR = r'features\.0\.0\.weight'


def recognises(state_dict: Dict[str, Tensor]) -> bool:
    return any(key.startswith('features.1.') and '.attn.' in key for key in state_dict)


def convert(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """``features`` holds the patch embedding, then stages and patch merging in turn."""
    depth = 1 + max(int(key.split('.')[1]) for key in state_dict if key.startswith('features.'))
    numbers = [(rf'^features\.{i}\.', f'stages.{i // 2}.blocks.' if i % 2 else f'stages.{i // 2 - 1}.downsample.')
               for i in range(1, depth)]
    state_dict = without(
        renamed(state_dict, [
            (r'^features\.0\.0\.', 'patch_embed.projection.'),
            (r'^features\.0\.2\.', 'patch_embed.norm.'),
            *numbers,
            (r'\.attn\.', '.attn.w_msa.'),
            (r'\.mlp\.0\.', '.ffn.layers.0.0.'),
            (r'\.mlp\.3\.', '.ffn.layers.1.'),
        ]), 'head.')
    return in_order_of_unfold(final_norm_to_stage(_with_biases_apart(state_dict), 'norm'))


def _with_biases_apart(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """SwinV2 keeps the biases of q and v alone; torchvision has one for k too, and sets it to zero when it runs."""
    result = {}
    for key, value in state_dict.items():
        attention = key[:-len('qkv.bias')]
        if key.endswith('.w_msa.qkv.bias') and f'{attention}logit_scale' in state_dict:
            result[f'{attention}q_bias'], _, result[f'{attention}v_bias'] = value.chunk(3)
        else:
            result[key] = value
    return result
