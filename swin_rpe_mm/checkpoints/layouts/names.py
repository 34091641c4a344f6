"""What the conversions of all families share."""
import re
from typing import Dict, Iterable, Tuple

from torch import Tensor

_MASKS = ('attn_mask', )  # buffers that follow from the map


def renamed(state_dict: Dict[str, Tensor], rules: Iterable[Tuple[str, str]]) -> Dict[str, Tensor]:
    """Apply every rule, pattern and replacement, to every key, in order; drop masks."""
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in rules]
    result = {}
    for key, value in state_dict.items():
        if key.rsplit('.', 1)[-1] in _MASKS:
            continue
        for pattern, replacement in compiled:
            key = pattern.sub(replacement, key)
        result[key] = value
    return result


def without(state_dict: Dict[str, Tensor], *prefixes: str) -> Dict[str, Tensor]:
    """Leave out what no backbone has, such as a classifier's head."""
    return {key: value for key, value in state_dict.items() if not key.startswith(prefixes)}


def stages(state_dict: Dict[str, Tensor], pattern: str) -> Iterable[int]:
    """The numbers that the first group of a pattern takes in the keys, in order."""
    found = (re.match(pattern, key) for key in state_dict)
    return sorted({int(match[1]) for match in found if match})


def final_norm_to_stage(state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
    """Give the norm after the last stage the name of that stage's output norm: ``norm.weight`` to ``norm3.weight``."""
    last = max(stages(state_dict, r'stages\.(\d+)\.'), default=0)
    return renamed(state_dict, [(rf'^{re.escape(name)}\.(weight|bias)$', rf'norm{last}.\1')])


def in_order_of_unfold(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Bring patch merging into mm's order of channels.

    Others join the tokens (0,0), (1,0), (0,1), (1,1) one after the other; mm uses nn.Unfold, which goes through (0,0),
    (0,1), (1,0), (1,1) for each channel.
    """
    result = dict(state_dict)
    for key, value in state_dict.items():
        if not key.endswith('.downsample.reduction.weight'):
            continue
        result[key] = _unfolded(value)
        for norm in (key.replace('reduction.weight', 'norm.weight'), key.replace('reduction.weight', 'norm.bias')):
            # SwinV2 norms what the projection gives, which has no such order
            if norm in result and len(result[norm]) == value.shape[1]:
                result[norm] = _unfolded(result[norm])
    return result


def _unfolded(value: Tensor) -> Tensor:
    by_token = value.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :]
    return by_token.transpose(-2, -1).flatten(-2)
