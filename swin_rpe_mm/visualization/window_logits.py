"""What attention computes on its way and does not keep: the logits of a few windows, worked out again."""
from typing import List, NamedTuple, Optional

import torch
from torch import Tensor, nn

from ..models.attention import Shared, WindowAttention
from ..rpe import DynamicRPE, LogCPB, call_rpe
from ..windows import WindowLayout


class WindowLogits(NamedTuple):
    """Logits of W windows, in float32 or wider. Nk counts the pooled neighbours, which come last.

    Attributes:
        content (Tensor): Products of queries and keys with all that is done to these, scaled, ``(W, heads, Nq, Nk)``.
        bias (Tensor, optional): What is added to them, ``(heads, Nq, Nk)`` or ``(W, heads, Nq, Nk)``.
        visible (Tensor): ``(W, Nq, Nk)`` bool, which keys a query sees; at least one.
        queries (Tensor): ``(W, Nq)`` bool, False in padding slots.
        sigmoids (list[Tensor]): Values of the encoding's sigmoids, between 0 and 1: those of ``LogCPB`` for each head
            and pair, those of ``DynamicRPE`` for each window, head and query.
    """
    content: Tensor
    bias: Optional[Tensor]
    visible: Tensor
    queries: Tensor
    sigmoids: List[Tensor]

    @property
    def weights(self) -> Tensor:
        """Attention weights ``(W, heads, Nq, Nk)``."""
        logits = self.content if self.bias is None else self.content + self.bias
        return logits.masked_fill(~self.visible[:, None], float('-inf')).softmax(-1)


def spread_windows(layout: WindowLayout, count: int) -> Tensor:
    """Up to ``count`` windows of a layout, ``(W,)`` long, always the same ones.

    They lie at equal distances in its order: the unmasked windows image by image, then those at seams and borders; the
    first and the last are among them.
    """
    total = len(layout.slots)
    return torch.linspace(0, total - 1, min(count, total), device=layout.slots.device).round().long()


@torch.no_grad()
def window_logits(attention: WindowAttention, windows: Tensor, x: Tensor, layout: WindowLayout, mask_padding: bool,
                  shared: Optional[Shared] = None) -> WindowLogits:
    """The logits that ``attention(x, layout, mask_padding, shared)`` would use in some windows.

    Draws no random numbers and keeps no graph.

    Args:
        attention (WindowAttention): The module.
        windows (Tensor): ``(W,)`` long, which of the layout's windows.
        x, layout, mask_padding, shared: What the module is called with.
    """
    shared = shared or attention.shared()

    def heads(rows: Tensor, valid: Tensor):
        projected = shared.qkv(x[rows.flatten()])
        projected = attention._add_biases(projected, slice(None))
        padding = None if mask_padding else attention._projected_zeros(projected.dtype)
        padding = projected.new_zeros(()) if padding is None else padding
        return attention._heads(torch.where(valid[..., None], projected.unflatten(0, rows.shape), padding))

    def own(windows: Tensor):
        return heads(layout.packed_slots[windows], layout.valid[windows])

    q, k, _ = own(windows)
    if attention.has_halo:
        k = heads(layout.key_rows[windows], layout.key_valid[windows])[1]
    q, k = attention._scaled(q, k)
    bias, sigmoids, valid, region = None, [], layout.valid[windows], layout.region[windows]
    if attention.rpe is not None:
        with _Sigmoids(attention.rpe, valid, sigmoids):
            q, k, bias = call_rpe(attention.rpe, q, k, attention.geometry, region)
    if attention.pooled_neighbours:
        others, places = layout.neighbours[windows].unique(return_inverse=True)
        real = (layout.region[others] >= 0)[:, None, :, None]
        means = ((own(others)[1] * real).sum(2) / real.sum(2)).to(k.dtype)
        pooled = means[places].transpose(1, 2)
        k, _, bias = attention._append(q, k, k, bias, (pooled, pooled))

    wide = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        content = q.to(wide) @ k.to(wide).transpose(-2, -1)
    visible = torch.ones(len(windows), *content.shape[2:], dtype=torch.bool, device=x.device)
    masked = windows >= layout.plain
    visible[masked] = layout.visible[windows[masked] - layout.plain]
    return WindowLogits(content, bias, visible, valid, sigmoids)


class _Sigmoids:
    """While it is entered, notes the values of an encoding's sigmoids when that is called."""

    def __init__(self, rpe: nn.Module, valid: Tensor, found: List[Tensor]):
        self.parts = [part for part in rpe.modules() if isinstance(part, (LogCPB, DynamicRPE))]
        self.valid, self.found = valid, found

    def __enter__(self) -> None:
        self.handles = [part.register_forward_hook(self._note) for part in self.parts]

    def __exit__(self, *_) -> None:
        for handle in self.handles:
            handle.remove()

    def _note(self, part: nn.Module, args: tuple, out: tuple) -> None:
        if isinstance(part, LogCPB):
            self.found.append(out[2] / 16)
        else:
            q, region = args[0], args[3]
            self.found.append(part._scale(q, region).squeeze(-1).transpose(1, 2)[self.valid] / 2)
