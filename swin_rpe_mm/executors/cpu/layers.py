"""A training step of a block layer by layer, on packed tokens: norms and activations are computed again, not kept."""
from typing import Optional

from torch import Tensor

from ...models import SwinBlock
from .inference import why_not_dropout
from .packed import PackedLayout
from .rows import draw_images, prepare, run_rows


def why_not(block: SwinBlock, x: Tensor) -> Optional[str]:
    """Why it cannot run on tokens like ``x``, or None."""
    return why_not_dropout(block)


def run(block: SwinBlock, x: Tensor, layout: PackedLayout, mask_padding: bool, scratch: dict) -> Tensor:
    """Packed tokens ``(K, C)`` to ``(K, C)``; arguments as for :func:`.inference.run`."""
    return run_rows(block, prepare(block), x, layout, mask_padding, draw_images(block, x, layout.batch_size))
