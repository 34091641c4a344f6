"""A stage on packed tokens, block by block: each by an executor, or called as it is."""
from typing import Callable, Optional, Tuple

import torch
import torch.utils.checkpoint as cp
from torch import Tensor

from ...models import SwinBlock, SwinStage
from ...windows import Windows, tokens_inside
from .packed import Extents, PackedLayout

Size = Tuple[int, int]
Run = Callable[..., Tensor]


def why_not(stage: SwinStage, x: Tensor) -> Optional[str]:
    """Why its blocks cannot run on packed tokens, or None."""
    if x.device.type != 'cpu' or any(parameter.device.type != 'cpu' for parameter in stage.parameters()):
        return f'tokens are on {x.device.type}, or weights are not on the CPU'
    if any(type(kind).geometry is not Windows.geometry for kind in stage.kinds):
        return 'its windows depend on the size of the map'
    return None


def run(stage: SwinStage, x: Tensor, size: Size, extents: Optional[Tensor],
        choose: Callable[[SwinBlock, Tensor], Optional[Run]], call: Callable) -> Tuple[Tensor, Tensor, Size]:
    """As :meth:`~swin_rpe_mm.models.SwinStage.forward`.

    Args:
        stage (SwinStage): The stage.
        x (Tensor): Tokens ``(B, H * W, C)``.
        size (tuple[int, int]): H and W.
        extents (Tensor, optional): ``(B, 2)``.
        choose (Callable): What runs a block, or None for the block itself.
        call (Callable): What calls patch merging, or has it computed.
    """
    x = _run_blocks(stage, x, size, extents, choose)
    return (x, x, size) if stage.downsample is None else (x, *call(stage.downsample, x, size))


def _run_blocks(stage: SwinStage, x: Tensor, size: Size, extents: Optional[Tensor],
                choose: Callable[[SwinBlock, Tensor], Optional[Run]]) -> Tensor:
    shape = x.shape
    known = _as_tuples(extents, shape[0], size)
    layouts = [PackedLayout.build(kind, size, known, stage.mask_padding, stage.pooled_neighbours)
               for kind in stage.kinds]
    pack, plain_layouts, scratch = layouts[0].pack, None, {}
    padded, packed = len(layouts[0].outside) > 0, False

    for index, block in enumerate(stage.blocks):
        execute = choose(block, x)
        if (execute is not None) != packed:
            packed = not packed
            x = x.flatten(0, 1) if packed else _unpacked(x, pack, padded).view(shape)
            x = pack(x) if packed and padded else x
        if execute is None:
            if plain_layouts is None:
                plain_layouts = stage.layouts(shape[0], size, extents, x.device)
            arguments = (block, x, plain_layouts[index % 2])
        else:
            arguments = (execute, block, x, layouts[index % 2], stage.mask_padding, scratch)
        if stage.with_cp and x.requires_grad and torch.is_grad_enabled():
            x = cp.checkpoint(*arguments, use_reentrant=False)
        else:
            x = arguments[0](*arguments[1:])
    if packed:
        return _unpacked(x, pack, padded).view(shape)
    return torch.where(tokens_inside(extents, size), x, 0) if padded else x


def _unpacked(x: Tensor, pack, padded: bool) -> Tensor:
    return pack.inverse(x) if padded else x


def _as_tuples(extents: Optional[Tensor], batch_size: int, size: Size) -> Extents:
    if extents is None:
        return (tuple(size), ) * batch_size
    return tuple(map(tuple, extents.tolist()))
