"""Encodings compute in float32 or wider, whatever the dtype of the tokens or their own."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def widened(x: Tensor) -> Tensor:
    """``x`` in float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def wide_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """What ``layer`` makes of ``x``, computed in float32 or wider under autocast too."""
    with torch.autocast(x.device.type, enabled=False):
        weight = widened(layer.weight)
        x = x.to(torch.promote_types(x.dtype, weight.dtype))
        return F.linear(x, weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))
