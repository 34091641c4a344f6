"""What attention computes on its way and does not keep: the logits of a few windows, worked out again."""
from typing import List, NamedTuple, Optional

import torch
from torch import Tensor, nn

from ..models import WindowAttention
from ..models.block import mean_neighbours, partition
from ..rpe import DynamicRPE, LogCPB
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


def held_tokens(layout: WindowLayout) -> Tensor:
    """Which slots hold a token that is inside the extent of its image, ``(T, N)`` bool."""
    return (layout.rows < len(layout.rows_back)).view_as(layout.region) & (layout.region >= 0)


def real_windows(layout: WindowLayout) -> Tensor:
    """The windows that hold such a token, ``(T',)`` long: an image has no others if it is alone."""
    return held_tokens(layout).any(1).nonzero().flatten()


def key_tokens(layout: WindowLayout) -> Tensor:
    """The token of each key, ``(T, Nk)`` long; ``B * L`` for window padding, or any where that is not seen."""
    return (layout.rows if layout.key_rows is None else layout.key_rows).view(len(layout.region), -1)


def spread_windows(layout: WindowLayout, count: int) -> Tensor:
    """Up to ``count`` windows of a layout, ``(W,)`` long, always the same ones.

    They lie at equal distances in its order, image by image, row by row, among the windows that hold something real;
    the first and the last of these are among them.
    """
    windows = real_windows(layout)
    places = torch.linspace(0, len(windows) - 1, min(count, len(windows)), device=windows.device)
    return windows[places.round().long()]


@torch.no_grad()
def window_logits(attention: WindowAttention, windows: Tensor, x: Tensor, layout: WindowLayout) -> WindowLogits:
    """The logits that ``attention(x, layout)`` uses in some windows.

    Draws no random numbers and keeps no graph.

    Args:
        attention (WindowAttention): The module.
        windows (Tensor): ``(W,)`` long, which of the layout's windows.
        x, layout: What the module is called with.
    """
    x = torch.cat([x.flatten(0, 1), x.new_zeros(1, x.shape[2])])  # the last row is what window padding holds
    needed = windows if layout.neighbours is None else torch.cat([windows, layout.neighbours[windows].flatten()])
    needed, places = needed.unique(return_inverse=True)
    q, k, v = _in_windows(attention, needed, x, layout)
    own, others, region = places[:len(windows)], places[len(windows):], layout.region[windows]
    pooled = None
    if layout.neighbours is not None:
        pooled = mean_neighbours(k, v, layout.region[needed], others.view(len(windows), -1))
    q, k, v = (part[own] for part in (q, k, v))
    if layout.key_rows is not None:
        keys = key_tokens(layout)[windows].flatten()
        _, k, v = attention.split_heads(_project(attention, x[keys]), len(windows))
    if attention.logit_scale is None:
        q = q * attention.scale
    else:
        q, k = attention.scaled_cosine(q, k)
    queries, bias, sigmoids = held_tokens(layout)[windows], None, []
    if attention.rpe is not None:
        sigmoids += [part.bias(layout.geometry) / 16 for part in attention.rpe.modules() if isinstance(part, LogCPB)]
        with _Scales(attention.rpe) as scales:
            q, k, bias = attention.rpe(q, k, layout.geometry, region)
        sigmoids += [scale.squeeze(-1).transpose(1, 2)[queries] / 2 for scale in scales]
    if pooled is not None:
        k, _, bias = attention.append_pooled(q, k, v, bias, pooled)

    wide = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        content = q.to(wide) @ k.to(wide).transpose(-2, -1)
    return WindowLogits(content, bias, layout.visible[windows], queries, sigmoids)


def _project(attention: WindowAttention, x: Tensor) -> Tensor:
    """q, k and v of tokens ``(K, C)``, side by side."""
    qkv = attention.qkv(x)
    if attention.q_bias is None:
        return qkv
    return qkv + torch.cat([attention.q_bias, torch.zeros_like(attention.q_bias), attention.v_bias]).to(qkv.dtype)


def _in_windows(attention: WindowAttention, windows: Tensor, x: Tensor, layout: WindowLayout):
    """q, k and v of all slots of some windows, ``(W, heads, N, d)`` each."""
    rows = layout.rows.view_as(layout.region)[windows].flatten()
    filled = (rows < len(layout.rows_back)).nonzero().flatten()
    part = layout._replace(region=layout.region[windows], rows_back=filled)
    return partition(_project(attention, torch.cat([x[rows[filled]], x[-1:]])), part, attention.num_heads)


class _Scales:
    """While it is entered, notes what ``DynamicRPE`` in an encoding multiplies with, ``(W, heads, Nq, 1)`` each."""

    def __init__(self, rpe: nn.Module):
        self.rpe, self.found, self.handles = rpe, [], []

    def __enter__(self) -> List[Tensor]:
        parts = [part for part in self.rpe.modules() if isinstance(part, DynamicRPE)]
        self.handles = [part.register_forward_hook(self._note) for part in parts]
        return self.found

    def __exit__(self, *_) -> None:
        for handle in self.handles:
            handle.remove()

    def _note(self, part: DynamicRPE, args: tuple, _) -> None:
        q, _, _, region = args
        self.found.append(part._scale(q, region))
