"""What computes the plain model's numbers faster, beside it.

An executor takes a block over only where every module on the way is as its class made it, without hooks, and nobody
looks at single operations; else the plain block runs. Which one it is, and why not the others, is decided here, and is
said once, at the level DEBUG.
"""
import difflib
import logging
from typing import Any, Callable, Dict, Optional, Tuple

from mmengine.logging import print_log
from torch import Tensor, nn

from ..errors import InputError
from ..models import PatchEmbed, PatchMerging, SwinBlock, SwinStage, WindowAttention
from ..windows import zero_outside
from .cpu import inference, layers, patch, stage, training
from .fused import attend_fused
from .tuning import tuning
from .untouched import why_not_now, why_not_untouched

__all__ = ['EXECUTORS', 'Dispatcher', 'tuning']

# by falling speed: the first that can is taken
EXECUTORS: Dict[str, Any] = {'cpu_inference': inference, 'cpu_training': training, 'cpu_layers': layers}


class Dispatcher:
    """Calls a backbone's modules, or executors in their place.

    Args:
        backend (str): ``auto``, ``plain``, or a name in :data:`EXECUTORS`: then no other one is taken, and where it
            cannot run it is said why.

    Raises:
        InputError: If there is no such backend.
    """

    def __init__(self, backend: str = 'auto'):
        allowed = ('auto', 'plain', *EXECUTORS)
        if backend not in allowed:
            close = difflib.get_close_matches(str(backend), allowed, n=1)
            hint = f' (did you mean {close[0]!r}?)' if close else ''
            raise InputError(f'backend must be one of {", ".join(allowed)}; got {backend!r}{hint}')
        self.backend = backend
        self._said = set()

    def run(self, module: nn.Module, *arguments: Any) -> Any:
        """What ``module(*arguments)`` gives."""
        if self.backend == 'plain':
            return module(*arguments)
        reason = why_not_now(arguments[0])
        if reason:  # nothing is said: a compiler would stumble over it
            return module(*arguments)
        reason = self._why_not(module, arguments[0])
        if reason:
            self._say(type(module).__name__, 'plain', reason)
            return module(*arguments)
        if isinstance(module, SwinStage):
            return stage.run(module, *arguments, choose=self._choose, call=self.run)
        return (patch.embed if isinstance(module, PatchEmbed) else patch.merge)(module, *arguments)

    def to_maps(self, norm: nn.Module, x: Tensor, size: Tuple[int, int], extents: Optional[Tensor]) -> Optional[Tensor]:
        """Norm of tokens ``(B, L, C)`` as maps ``(B, C, H, W)``, zero outside the extents; None where the plain model
        has to make them."""
        if self.backend == 'plain' or why_not_now(x) or x.device.type != 'cpu' or why_not_untouched(norm):
            return None
        if inference.wants_gradients(norm, x):
            return None
        maps = patch.to_maps(norm, x, size)
        return maps if extents is None else zero_outside(maps, extents)

    def _why_not(self, module: nn.Module, x: Tensor) -> Optional[str]:
        """Why a module that is no block is called as it is."""
        if type(module) is SwinStage:
            # of the stage itself: what is inside its blocks concerns one block each
            return (why_not_untouched(module, 'stage', recurse=False) or why_not_untouched(module.blocks, recurse=False)
                    or stage.why_not(module, x))
        if type(module) not in (PatchEmbed, PatchMerging):
            return f'it is a {type(module).__name__}'
        if any(tensor.device.type != 'cpu' for tensor in (x, *module.parameters())):
            return 'it is not on the CPU'
        reason = why_not_untouched(module)
        return reason or (patch.why_not_merge(module) if isinstance(module, PatchMerging) else None)

    def _choose(self, block: SwinBlock, x: Tensor) -> Optional[Callable]:
        """What runs a block; None for the block itself."""
        reason = why_not_untouched(block, 'block')
        if reason:
            self._say('SwinBlock', 'plain', reason)
            return None
        reasons = []
        for name, executor in EXECUTORS.items():
            if self.backend not in ('auto', name):
                continue
            reason = executor.why_not(block, x)
            if reason is None:
                self._say('SwinBlock', name, '; '.join(reasons))
                return executor.run
            reasons.append(f'not {name}, since {reason}')
        self._say('SwinBlock', 'plain', '; '.join(reasons))
        return None

    def _say(self, kind: str, name: str, reasons: str) -> None:
        if (kind, name, reasons) in self._said:
            return
        self._said.add((kind, name, reasons))
        forced = self.backend not in ('auto', name)
        print_log(f'SwinRPE: {kind} is computed by {name}' + (f': {reasons}' if reasons else ''), 'current',
                  logging.WARNING if forced else logging.DEBUG)


def fuse_attention(model: nn.Module) -> None:
    """Have the windows' attention in ``model`` computed by PyTorch's fused kernels where these can."""
    for module in model.modules():
        if isinstance(module, WindowAttention):
            module.attend = attend_fused
