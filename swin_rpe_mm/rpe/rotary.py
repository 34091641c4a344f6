"""Queries and keys turned by angles in proportion to their coordinates, so that logits depend on offsets."""
from typing import Tuple

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, kept
from .offsets import Device, coordinates
from .precision import widened

ROTARY_MODES = ('mixed', 'axial')


@MODELS.register_module()
class RotaryRPE(RelativePositionEncoding):
    """Pairs of adjacent channels of q and k rotate with the position; there is no bias.

    RoPE-ViT, arXiv 2403.13298. The angle of a pair is the sum over axes of coordinate times frequency. Nothing depends
    on the window: in a new one, equal offsets turn by equal angles. Angles are computed in float32 or wider.

    With n axes and d channels per head, the magnitudes are ``theta ** (-2 * n * t / d)``, t = 0, 1, ...

    * ``axial``: fixed. The first ``d / 2 / n`` pairs turn with the coordinate along the first axis, and so on.
    * ``mixed``: learned, a parameter ``freqs`` ``(axes, heads, d / 2)``. It starts as ``axial``, with the axes turned
      by a random rotation per head: for two axes the directions a and a + 90 degrees.

    Args:
        mode (str): ``mixed`` or ``axial``.
        theta (float): Base of the frequencies.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`; ``head_dim`` is required.

    Raises:
        InputError: If a value is not allowed, or channels cannot be split: ``head_dim`` must be even, with ``axial`` a
            multiple of twice the number of axes.
    """

    def __init__(self, mode: str = 'mixed', theta: float = 10., **window):
        super().__init__(**window)
        if mode not in ROTARY_MODES:
            raise InputError(f'mode must be one of {", ".join(ROTARY_MODES)}, got {mode!r}')
        if not isinstance(theta, (int, float)) or isinstance(theta, bool) or not theta > 0:
            raise InputError(f'theta must be a positive number, got {theta!r}')
        step = 2 if mode == 'mixed' else 2 * len(self.window_size)
        if self.head_dim is None or self.head_dim % step:
            raise InputError(f'head_dim must be a multiple of {step} for RotaryRPE in mode {mode!r} with '
                             f'{len(self.window_size)} axes, got {self.head_dim}')
        self.mode = mode
        self.theta = float(theta)
        if mode == 'mixed':
            self.freqs = nn.Parameter(torch.zeros(len(self.window_size), self.num_heads, self.head_dim // 2))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        if self.mode == 'mixed':
            axes, heads, pairs = self.freqs.shape
            axial = axial_freqs(axes, 2 * pairs, self.theta)
            self.freqs.copy_(torch.einsum('hab,bp->ahp', _random_rotations(heads, axes), axial))

    def rotate(self, q: Tensor, k: Tensor, geometry: WindowGeometry) -> Tuple[Tensor, Tensor]:
        """See :meth:`~.base.RelativePositionEncoding.rotate`."""
        at_queries, at_keys = kept(coordinates, geometry, q.device)
        return self._rotate(q, at_queries), self._rotate(k, at_keys)

    def _rotate(self, x: Tensor, at: Tensor) -> Tensor:
        dtype = widened(x).dtype
        if self.mode == 'mixed':
            freqs = self.freqs
            dtype = torch.promote_types(dtype, freqs.dtype)
        else:
            freqs = kept(axial_freqs, len(at), self.head_dim, self.theta, x.device)[:, None]
        # no matrix product, which autocast would compute in half precision: (axes, heads, N, d / 2)
        angles = (at[:, None, :, None] * freqs.to(dtype)[:, :, None]).sum(0)
        cos, sin = angles.cos(), angles.sin()
        first, second = x.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2).to(x.dtype)


def axial_freqs(axes: int, head_dim: int, theta: float, device: Device = 'cpu') -> Tensor:
    """Frequency of every pair along each axis, ``(axes, head_dim / 2)`` float64: not zero along one axis only."""
    pairs = torch.arange(head_dim // 2, device='cpu')
    per_axis = -(-len(pairs) // axes)
    magnitude = theta**(-2 * axes * (pairs % per_axis).double() / head_dim)
    own = torch.arange(axes, device='cpu')[:, None] == pairs // per_axis
    return (own * magnitude).to(device)


def _random_rotations(heads: int, axes: int) -> Tensor:
    """Rotations ``(heads, axes, axes)`` float64, all equally likely; with one axis there is only the identity."""
    rotations, triangle = torch.linalg.qr(torch.randn(heads, axes, axes, dtype=torch.float64, device='cpu'))
    rotations = rotations * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    rotations[:, :, -1] *= rotations.det()[:, None]  # those that mirror become rotations
    return rotations
