"""A parameter that changes its shape and stays the same object, so that modules and optimizers go on holding it."""
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

# by parameter, the optimizers that have made a step since; None once it was loaded as it is
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
    note_reshaped(parameter)


def note_reshaped(parameter: Tensor) -> None:
    """Have every optimizer drop the running averages that belong to an earlier shape of ``parameter``."""
    _watch_steps()
    _reshaped[parameter] = WeakSet()


def note_loaded(parameter: Tensor) -> None:
    """Averages of the parameter's shape belong to it again: they come from the file that it was loaded from."""
    if parameter in _reshaped:
        _reshaped[parameter] = None


@lru_cache(None)
def _watch_steps() -> None:
    register_optimizer_step_pre_hook(_drop_stale_state)


def _drop_stale_state(optimizer: Optimizer, *_: Any) -> None:
    for parameter, stepped in list(_reshaped.items()):
        averages = [value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, Tensor)]
        other_shape = any(average.ndim and average.shape != parameter.shape for average in averages)
        # two windows may have as many offsets
        if other_shape or (stepped is not None and optimizer not in stepped):
            optimizer.state.pop(parameter, None)
        if stepped is not None:
            stepped.add(optimizer)
