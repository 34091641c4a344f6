"""Encodings compute in float32 or wider, whatever the dtype of the tokens or their own."""
from typing import Tuple

import torch
from torch import Tensor, nn
from torch.func import functional_call


def widened(x: Tensor) -> Tensor:
    """``x`` in float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def place_of(module: nn.Module) -> Tuple[torch.device, torch.dtype]:
    """Where the parameters of a module lie, and the dtype to compute in; a quantised one has none, and is on a CPU."""
    parameter = next(module.parameters(), torch.empty(0, dtype=torch.float32, device='cpu'))
    return parameter.device, torch.promote_types(parameter.dtype, torch.float32)


def call_wide(module: nn.Module, x: Tensor) -> Tensor:
    """Call a module with ``x`` and its own parameters in float32 or wider, under autocast too."""
    x = x.to(torch.promote_types(x.dtype, place_of(module)[1]))
    narrow = {name: parameter for name, parameter in module.named_parameters()
              if parameter.dtype in (torch.float16, torch.bfloat16)}
    with torch.autocast(x.device.type, enabled=False):
        if not narrow:
            return module(x)
        return functional_call(module, {name: widened(parameter) for name, parameter in narrow.items()}, (x, ))
