"""Optimizers go on working when a parameter they hold changes its shape.

An optimizer's running averages have the shape that the parameter had. Those of a parameter that was resized are dropped
right before the optimizer's next step, which starts them anew for this parameter alone.
"""
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

_resized = WeakIdKeyDictionary()


def forget_state_of(parameter: Tensor) -> None:
    """Have every optimizer that holds ``parameter`` drop averages of another shape before its next step."""
    _watch_steps()
    _resized[parameter] = True


@lru_cache(None)
def _watch_steps() -> None:
    register_optimizer_step_pre_hook(_drop_stale_state)


def _drop_stale_state(optimizer: Optimizer, *_: Any) -> None:
    for parameter in list(_resized.keys()):
        state = optimizer.state.get(parameter, {})
        averages = [value for value in state.values() if isinstance(value, torch.Tensor) and value.ndim]
        if any(average.shape != parameter.shape for average in averages):
            del optimizer.state[parameter]
