"""Whether a module is as its class made it, so that its numbers may be computed without calling it."""
from typing import Optional

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import activation
from torch.nn.modules import module as hooks_of_all

from ..models import (
    FFN,
    DropPath,
    PatchEmbed,
    PatchMerging,
    ShiftedWindowAttention,
    SwinBlock,
    SwinStage,
    WindowAttention,
)
from ..rpe import DynamicRPE, RelativePositionEncoding
from ..rpe.sum import SumRPE

_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')
_OURS = (DropPath, FFN, PatchEmbed, PatchMerging, ShiftedWindowAttention, SwinBlock, SwinStage, WindowAttention)
_KNOWN = {kind: kind.forward for kind in (
    *_OURS, nn.Conv2d, nn.Dropout, nn.Identity, nn.LayerNorm, nn.Linear, nn.ModuleList, nn.ParameterList, nn.Sequential,
    *(getattr(activation, name) for name in activation.__all__ if name != 'MultiheadAttention')
)}
# an encoding of any class may be asked for its bias, if it answers as these do
_LISTS = (nn.ModuleList.forward, nn.Sequential.forward)
_FORWARDS = (RelativePositionEncoding.forward, SumRPE.forward, DynamicRPE.forward)
_peek_transform = getattr(getattr(torch._C, '_functorch', None), 'peek_interpreter_stack', lambda: None)
_active_mode = getattr(getattr(torch.utils, '_python_dispatch', None), '_get_current_dispatch_mode', lambda: None)


def why_not_now(x: Tensor) -> Optional[str]:
    """Why modules must be called on ``x``, whatever they are: someone looks at each operation."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return 'the model is traced'
    if type(x) is not Tensor:
        return f'the input is a {type(x).__name__}, no plain tensor'
    if _peek_transform() is not None or getattr(forward_ad, '_current_level', -1) >= 0:
        return 'a transform of torch.func or forward-mode differentiation is at work'
    if _active_mode() is not None:
        return 'a TorchDispatchMode looks at each operation'
    if any(getattr(hooks_of_all, f'_global{name}', None) for name in _HOOKS):
        return 'there are hooks for all modules'
    return None


def why_not_untouched(module: nn.Module, name: str = '', recurse: bool = True) -> Optional[str]:
    """Why a module, or one inside of it, must be called: it was replaced, wrapped, patched, hooked or sharded.

    Args:
        module (nn.Module): The module.
        name (str): Its own name in the sentence.
        recurse (bool): False looks at the module alone.
    """
    for path, part in module.named_modules(prefix=name) if recurse else [(name, module)]:
        path = path or type(part).__name__
        kind = type(part)
        if not _is_known(part):
            return f'{path} is a {kind.__name__}, which only its own call computes'
        if 'forward' in vars(part):
            return f'{path} has a forward of its own'
        if any(getattr(part, hooks) for hooks in _HOOKS):
            return f'{path} has hooks'
        for leaf, parameter in part._parameters.items():
            if parameter is not None and type(parameter) not in (nn.Parameter, Tensor):
                return f'{path}.{leaf} is a {type(parameter).__name__}, no plain parameter'
    return None


def _is_known(module: nn.Module) -> bool:
    """Whether what it computes is known here: by its class, or by the forward that an encoding or a list inherits."""
    forward = type(module).forward
    if isinstance(module, RelativePositionEncoding):
        return forward in _FORWARDS
    # mmengine's containers are torch's, with weights to draw
    lists = isinstance(module, (nn.ModuleList, nn.Sequential)) and forward in _LISTS
    return lists or _KNOWN.get(type(module)) is forward
