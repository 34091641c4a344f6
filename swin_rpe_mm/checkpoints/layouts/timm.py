"""timm from 0.9 on, its classifiers and its ``features_only`` models. Earlier ones have the official layout."""
import re
from typing import Dict

from torch import Tensor

from .names import final_norm_to_stage, in_order_of_unfold, renamed, stages, without
from .official import ANCHOR, BLOCK_RULES

__all__ = ['ANCHOR', 'convert', 'recognises']

_FLAT = (r'^layers_(\d+)\.', r'layers.\1.')  # the names that features_only gives


def recognises(state_dict: Dict[str, Tensor]) -> bool:
    if any(re.match(r'layers_\d+\.blocks\.', key) for key in state_dict):
        return True
    if not any(key.startswith('layers.') and '.blocks.' in key for key in state_dict):
        return False
    merging = stages(state_dict, r'layers\.(\d+)\.downsample\.')
    return bool(merging) and 0 not in merging


def convert(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """As the official layout, but patches are merged at the start of a stage, not at the end of the one before."""
    state_dict = renamed(state_dict, [_FLAT, *BLOCK_RULES])
    merging = stages(state_dict, r'stages\.(\d+)\.downsample\.')
    state_dict = renamed(state_dict, [(rf'^stages\.{i}\.downsample\.', f'stages.{i - 1}.downsample.') for i in merging])
    return in_order_of_unfold(final_norm_to_stage(without(state_dict, 'head.'), 'norm'))
