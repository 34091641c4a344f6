"""A parameter that changes its shape and stays the same object, so that modules and optimizers go on holding it."""
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

_reshaped = WeakIdKeyDictionary()


def reshape_parameter(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter a value of another shape.

    Its gradient is dropped. An optimizer's running averages have the shape that the parameter had: those of this
    parameter alone are dropped right before the optimizer's next step, which starts them anew.

    Args:
        parameter (nn.Parameter): Any shape.
        value (Tensor): The new value, of the same dtype and on the same device.
    """
    # while the graph of an earlier step is alive, autograd keeps the node that expects gradients of the old shape; a
    # change of the dtype makes it let go
    parameter.data = value.to(torch.float32 if value.dtype == torch.float64 else torch.float64)
    parameter.data = value
    parameter.grad = None
    _watch_steps()
    _reshaped[parameter] = True


@lru_cache(None)
def _watch_steps() -> None:
    register_optimizer_step_pre_hook(_drop_stale_state)


def _drop_stale_state(optimizer: Optimizer, *_: Any) -> None:
    for parameter in list(_reshaped.keys()):
        averages = [value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, Tensor)]
        if any(average.ndim and average.shape != parameter.shape for average in averages):
            del optimizer.state[parameter]
