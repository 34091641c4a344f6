"""Several encodings at once."""
from typing import Optional, Sequence, Tuple

from mmengine.model import ModuleList
from torch import Tensor

from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding


class SumRPE(RelativePositionEncoding):
    """Encodings one after the other: each gets the queries and keys that the one before returned; what they add to the
    logits and to the output adds up.

    Args:
        encodings (Sequence[RelativePositionEncoding]): The encodings.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`.
    """

    def __init__(self, encodings: Sequence[RelativePositionEncoding], **window):
        super().__init__(**window)
        self.encodings = ModuleList(encodings)

    def gives(self, method: str) -> bool:
        """Whether one of them gives it. ``rotate`` and ``scores`` go from one to the next, which takes a call."""
        return any(encoding.gives(method) for encoding in self.encodings)

    def init_weights(self) -> None:
        for encoding in self.encodings:
            encoding.init_weights()

    def forward(self,
                q: Tensor,
                k: Tensor,
                geometry: WindowGeometry,
                region: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """See :meth:`~.base.RelativePositionEncoding.forward`."""
        total = None
        for encoding in self.encodings:
            q, k, term = encoding(q, k, geometry, region)
            if term is not None:
                total = term if total is None else total + term
        return q, k, total

    def bias(self, geometry: WindowGeometry) -> Optional[Tensor]:
        """The sum of their biases."""
        biases = [encoding.bias(geometry) for encoding in self.encodings if encoding.gives('bias')]
        return sum(biases[1:], biases[0]) if biases else None

    def values(self, weights: Tensor, geometry: WindowGeometry) -> Optional[Tensor]:
        """What they add to the output, ``(T, heads, Nq, d)``."""
        added = [encoding.values(weights, geometry) for encoding in self.encodings if encoding.gives('values')]
        return sum(added[1:], added[0]) if added else None
