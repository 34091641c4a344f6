"""A bias that the content of each window turns up or down."""
from typing import Optional, Tuple

import torch
from mmengine.model import constant_init, trunc_normal_init
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding
from .build import RPEConfig, build_rpe
from .precision import call_wide, widened

_REGIONS = 5  # -1 of padding, and up to four on either side of the seams
_DEFAULT = dict(type='TableRPE')


@MODELS.register_module()
class DynamicRPE(RelativePositionEncoding):
    """Another encoding's bias, times a number between 0 and 2 per window and head.

    The number is ``2 * sigmoid(W2 relu(W1 m))``, where m is the mean query, the heads side by side, over those slots of
    the window that the query may see: those of its own region. It starts at 1. What the other encoding does to
    queries, keys and values is kept.

    Args:
        rpe (dict | list[dict]): Config of the other encoding.
        hidden_dims (int): Hidden channels of the network.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`; ``head_dim`` is required.

    Raises:
        InputError: If the other encoding has no bias, or a value is not allowed.
    """

    def __init__(self, rpe: RPEConfig = _DEFAULT, hidden_dims: int = 32, **window):
        super().__init__(**window)
        if not isinstance(hidden_dims, int) or isinstance(hidden_dims, bool) or hidden_dims < 1:
            raise InputError(f'hidden_dims must be a whole number from 1, got {hidden_dims!r}')
        if self.head_dim is None:
            raise InputError('head_dim must be given for DynamicRPE, got None')
        inner = build_rpe(rpe, num_heads=self.num_heads, window_size=self.window_size, key_size=self.key_size,
                          head_dim=self.head_dim)
        if inner is None or not (inner.gives('bias') or inner.gives('scores')):
            raise InputError(f'rpe of DynamicRPE must be an encoding with a bias to scale, got {rpe!r}')
        self.inner = inner
        self.scale_mlp = nn.Sequential(
            nn.Linear(self.num_heads * self.head_dim, hidden_dims), nn.ReLU(), nn.Linear(hidden_dims, self.num_heads))
        self._init_scale()

    def gives(self, method: str) -> bool:
        """What the other encoding gives, but that its bias depends on queries here."""
        if method == 'bias':
            return False
        return method == 'scores' or self.inner.gives(method)

    def init_weights(self) -> None:
        self.inner.init_weights()
        self._init_scale()

    def _init_scale(self) -> None:
        first, _, last = self.scale_mlp
        trunc_normal_init(first, std=0.02)
        constant_init(last, 0)

    def forward(self, q: Tensor, k: Tensor, geometry: WindowGeometry,
                region: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            q (Tensor): Scaled queries ``(T, heads, Nq, d)``.
            k (Tensor): Keys ``(T, heads, Nk, d)``.
            geometry (WindowGeometry): Where they lie.
            region (Tensor, optional): ``(T, Nq)`` long, -1 to 3. None means that all slots see each other.

        Returns:
            tuple: q and k as the other encoding returns them, and the bias ``(T, heads, Nq, Nk)``.
        """
        scale = self._scale(q, region)
        q, k, bias = self.inner(q, k, geometry, region)
        return q, k, scale * bias

    def _scale(self, q: Tensor, region: Optional[Tensor]) -> Tensor:
        """``(T, heads, Nq, 1)``, or ``(T, heads, 1, 1)`` without regions."""
        tokens = widened(q).transpose(1, 2).flatten(2)
        if region is None:
            means = tokens.mean(1, keepdim=True)
        else:
            member = (region[..., None] + 1 == torch.arange(_REGIONS, device=region.device)).to(tokens.dtype)
            share = member / member.sum(1, keepdim=True).clamp(min=1)
            with torch.autocast(q.device.type, enabled=False):
                means = share.transpose(1, 2) @ tokens
        scale = 2 * call_wide(self.scale_mlp, means).sigmoid()
        if region is not None:
            scale = scale.gather(1, (region + 1)[..., None].expand(-1, -1, self.num_heads))
        return scale.transpose(1, 2)[..., None]

    def values(self, weights: Tensor, geometry: WindowGeometry) -> Optional[Tensor]:
        """What the other encoding adds to the output, ``(T, heads, Nq, d)``."""
        return self.inner.values(weights, geometry)
