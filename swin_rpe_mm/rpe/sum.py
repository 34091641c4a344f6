"""Several encodings at once."""
from typing import Optional, Sequence, Tuple

from mmengine.model import ModuleList
from torch import Tensor, nn

from .base import RelativePositionEncoding
from .offsets import WindowGeometry


class SumRPE(RelativePositionEncoding):
    """Encodings one after the other: each gets the queries and keys that the one before returned; biases add up.

    Args:
        encodings (Sequence[nn.Module]): The encodings.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`.
    """

    def __init__(self, encodings: Sequence[nn.Module], **window):
        super().__init__(**window)
        self.encodings = ModuleList(encodings)

    @property
    def uses_region(self) -> bool:
        return any(getattr(encoding, 'uses_region', False) for encoding in self.encodings)

    @property
    def rotates(self) -> bool:
        return any(getattr(encoding, 'rotates', False) for encoding in self.encodings)

    @property
    def adds_values(self) -> bool:
        return any(getattr(encoding, 'adds_values', False) for encoding in self.encodings)

    @property
    def fixed_bias(self) -> bool:
        return all(getattr(encoding, 'fixed_bias', False) for encoding in self.encodings)

    def init_weights(self) -> None:
        for encoding in self.encodings:
            if hasattr(encoding, 'init_weights'):
                encoding.init_weights()

    def forward(self, q: Tensor, k: Tensor, geometry: WindowGeometry,
                region: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """See :meth:`~.base.RelativePositionEncoding.forward`."""
        total = None
        for encoding in self.encodings:
            q, k, bias = call_rpe(encoding, q, k, geometry, region)
            if bias is not None:
                total = bias if total is None else total + bias
        return q, k, total

    def values(self, weights: Tensor, geometry: WindowGeometry) -> Tensor:
        """What the encodings add to the output, ``(T, heads, Nq, d)``."""
        return sum(encoding.values(weights, geometry) for encoding in self.encodings
                   if getattr(encoding, 'adds_values', False))


def call_rpe(rpe: nn.Module, q: Tensor, k: Tensor, geometry: WindowGeometry,
             region: Optional[Tensor]) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """Call an encoding, with the regions of the slots if it uses them."""
    if getattr(rpe, 'uses_region', False):
        return rpe(q, k, geometry, region)
    return rpe(q, k, geometry)

