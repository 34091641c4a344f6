"""Parameters that change their shape: new ones in their place, in modules and in optimizers."""
from typing import List, Tuple

from torch import Tensor, nn
from torch.optim import Optimizer

Replaced = List[Tuple[nn.Parameter, nn.Parameter]]


def replace_parameter(module: nn.Module, name: str, value: Tensor) -> Tuple[nn.Parameter, nn.Parameter]:
    """Put a new parameter in the place of an old one.

    Args:
        module (nn.Module): What holds it, itself or in a submodule.
        name (str): Its path.
        value (Tensor): The new value, of any shape.

    Returns:
        tuple[nn.Parameter, nn.Parameter]: The old one and the new one, which is trained if the old one was.
    """
    path, _, leaf = name.rpartition('.')
    old = module.get_parameter(name)
    new = nn.Parameter(value, requires_grad=old.requires_grad)
    setattr(module.get_submodule(path), leaf, new)
    return old, new


def replace_in_optimizer(optimizer: Optimizer, replaced: Replaced) -> None:
    """Have an optimizer go on with new parameters, whose running averages start anew; those of all others stay."""
    news = {id(old): new for old, new in replaced}
    for group in optimizer.param_groups:
        group['params'] = [news.get(id(parameter), parameter) for parameter in group['params']]
    for old, _ in replaced:
        optimizer.state.pop(old, None)


def drop_stale_averages(optimizer: Optimizer) -> int:
    """Drop running averages that belong to a parameter of another shape, as a file of another window leaves them.

    Returns:
        int: Of how many parameters.
    """
    stale = [parameter for parameter, state in optimizer.state.items()
             if any(_is_stale(value, parameter) for value in state.values() if isinstance(value, Tensor))]
    for parameter in stale:
        del optimizer.state[parameter]
    return len(stale)


def _is_stale(average: Tensor, parameter: Tensor) -> bool:
    """Averages over rows and columns, as Adafactor's, have sides of 1; tables of 8-bit optimizers fewer axes."""
    return average.ndim == parameter.ndim > 1 and any(
        side not in (1, own) for side, own in zip(average.shape, parameter.shape))
