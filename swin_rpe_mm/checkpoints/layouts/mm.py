"""MMDetection, MMSegmentation and MMPretrain, and our own files."""
from typing import Dict

from torch import Tensor

from .names import renamed, stages, without

ANCHOR = r'patch_embed\.projection\.weight'


def recognises(state_dict: Dict[str, Tensor]) -> bool:
    return any(key.startswith('stages.') and '.attn.w_msa.' in key for key in state_dict)


def convert(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """mmpretrain's SwinV2 merges patches at the start of a stage, all others do at the end."""
    state_dict = without(renamed(state_dict, []), 'head.')
    merging = stages(state_dict, r'stages\.(\d+)\.downsample\.')
    if not merging or 0 in merging:
        return state_dict
    return renamed(state_dict, [(rf'^stages\.{i}\.downsample\.', f'stages.{i - 1}.downsample.') for i in merging])
