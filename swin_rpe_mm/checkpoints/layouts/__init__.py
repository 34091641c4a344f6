"""State dicts of other projects in the layout of mm's Swin, which is ours.

A layout is recognised by its keys, never by the file's name. What is in our layout already passes through unchanged, so
that converting twice does nothing. One file per family.
"""
from typing import Dict, Tuple

from torch import Tensor

from . import mm, official, timm, torchvision, transformers

FAMILIES = {
    'transformers': transformers,
    'torchvision': torchvision,
    'timm': timm,
    'official': official,
    'mm': mm,
}

# patterns of a key that every state dict of a family has, whatever stands before it
ANCHORS = tuple(family.ANCHOR for family in FAMILIES.values())


def to_mm_layout(state_dict: Dict[str, Tensor]) -> Tuple[Dict[str, Tensor], str]:
    """Convert a backbone's state dict, its keys without any prefix.

    Args:
        state_dict (dict[str, Tensor]): Weights by name.

    Returns:
        tuple: The same weights under mm's names, without masks, decoders and the classifier's head, and the name of the
        family; unchanged, and ``unknown``, if no family has such keys.
    """
    for name, family in FAMILIES.items():
        if family.recognises(state_dict):
            return family.convert(state_dict), name
    return state_dict, 'unknown'
