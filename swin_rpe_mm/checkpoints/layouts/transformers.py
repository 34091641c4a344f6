"""HF transformers, ``SwinModel``, ``SwinBackbone``, and those of SwinV2, before and after release 5."""
from typing import Dict

import torch
from torch import Tensor

from .names import final_norm_to_stage, in_order_of_unfold, renamed, without

# a backbone's output norms stand beside its `swin`, so that is no part of the prefix
ANCHOR = r'(?:swin\.|swinv2\.)?embeddings\.patch_embeddings\.projection\.weight'

_RULES = (
    (r'^(swin|swinv2)\.', ''),
    (r'^embeddings\.patch_embeddings\.projection\.', 'patch_embed.projection.'),
    (r'^embeddings\.norm\.', 'patch_embed.norm.'),
    (r'^embeddings\.position_embeddings$', 'absolute_pos_embed'),
    (r'^encoder\.layers\.(\d+)\.', r'stages.\1.'),
    (r'\.layernorm_before\.', '.norm1.'),
    (r'\.layernorm_after\.', '.norm2.'),
    (r'\.attention\.(output\.dense|o_proj)\.', '.attn.w_msa.proj.'),
    (r'\.attention\.(self\.query|q_proj)\.', '.attn.w_msa.q.'),
    (r'\.attention\.(self\.key|k_proj)\.', '.attn.w_msa.k.'),
    (r'\.attention\.(self\.value|v_proj)\.', '.attn.w_msa.v.'),
    (r'\.attention\.(self\.|relative_position_bias\.)*', '.attn.w_msa.'),
    (r'\.continuous_position_bias_mlp\.', '.cpb_mlp.'),
    (r'\.(intermediate\.dense|mlp\.fc1)\.', '.ffn.layers.0.0.'),
    (r'(\.blocks\.\d+)\.(output\.dense|mlp\.fc2)\.', r'\1.ffn.layers.1.'),
)


def recognises(state_dict: Dict[str, Tensor]) -> bool:
    return any('encoder.layers.' in key and '.blocks.' in key and '.layernorm_before.' in key for key in state_dict)


def convert(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Rename, and join the projections of q, k and v."""
    norms = [(rf'^hidden_states_norms\.stage{i + 1}\.', f'norm{i}.') for i in range(8)]
    state_dict = renamed(state_dict, [*_RULES, *norms])
    state_dict = without(state_dict, 'classifier.', 'pooler.', 'embeddings.mask_token', 'decoder.')
    state_dict = _joined(state_dict)
    if any(key.startswith('norm') for key in state_dict):  # a backbone's output norms take the place of the last one
        state_dict = without(state_dict, 'layernorm.')
    return in_order_of_unfold(final_norm_to_stage(state_dict, 'layernorm'))


def _joined(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    result = {}
    for key, value in state_dict.items():
        attention, _, part = key.partition('.attn.w_msa.')
        place = f'{attention}.attn.w_msa.'
        if part == 'q.weight':
            result[f'{place}qkv.weight'] = torch.cat([state_dict[f'{place}{name}.weight'] for name in 'qkv'])
        elif part == 'q.bias' and f'{place}k.bias' in state_dict:
            result[f'{place}qkv.bias'] = torch.cat([state_dict[f'{place}{name}.bias'] for name in 'qkv'])
        elif part in ('q.bias', 'v.bias') and f'{place}k.bias' not in state_dict:  # SwinV2 has none for k
            result[f'{place}{part[0]}_bias'] = value
        elif part not in ('k.weight', 'v.weight', 'k.bias', 'v.bias'):
            result[key] = value
    return result
