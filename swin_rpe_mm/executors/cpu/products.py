"""The products of a linear layer and of its gradients, over rows taken a few thousand at a time."""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

_ONEDNN = torch.ops.mkldnn


def suits_onednn(weight: Tensor) -> bool:
    """Whether oneDNN's products, about a tenth faster on CPUs, may take the place of PyTorch's."""
    return weight.device.type == 'cpu' and weight.dtype == torch.float32 and autocast_dtype(weight) is None


def autocast_dtype(x: Tensor) -> Optional[torch.dtype]:
    """What products are computed in, if that is not the dtype of the factors."""
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(x.device.type):
        return None
    return torch.get_autocast_dtype(x.device.type)


class Product:
    """A linear layer, called with many blocks of rows.

    Args:
        weight (Tensor): ``(out_features, in_features)``.
        bias (Tensor, optional): ``(out_features, )``.
        rows (int): How many rows most blocks have. On a CPU in float32, the weight is laid out for these once by
            oneDNN. It makes a kernel for every number of rows, so blocks with another number go without it.
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor], rows: int):
        self.weight, self.bias, self.rows = weight, bias, rows
        self.packed = _ONEDNN._reorder_linear_weight(weight.detach()) if rows and suits_onednn(weight) else None

    def __call__(self, x: Tensor) -> Tensor:
        """``(R, in_features)`` to ``(R, out_features)``."""
        if self.packed is None or len(x) != self.rows:
            return F.linear(x, self.weight, self.bias)
        return _ONEDNN._linear_pointwise(x, self.packed, self.bias, 'none', [], '')


class ProductGradients:
    """The gradients of a linear layer, summed over blocks of rows in the dtype of its weight.

    Args:
        weight (Tensor): ``(out_features, in_features)``.
        rows (int): As for :class:`Product`.
        needed (tuple[bool, bool]): Whether the gradients of weight and bias are.
        dtype (torch.dtype): Of the blocks, in which products are computed.
    """

    def __init__(self, weight: Tensor, rows: int, needed: Tuple[bool, bool], dtype: torch.dtype):
        # the product whose first side is the longer one is the faster
        self._flipped = weight.shape[0] < weight.shape[1]
        self._sum = weight.new_zeros(weight.shape[::-1] if self._flipped else weight.shape) if needed[0] else None
        self.bias = weight.new_zeros(len(weight)) if needed[1] else None
        self.to_rows = Product(weight.to(dtype).t(), None, rows)

    @property
    def weight(self) -> Optional[Tensor]:
        """The sum of the weight's gradients; None where it is not needed, as ``bias``."""
        return self._sum.t() if self._flipped and self._sum is not None else self._sum

    def add(self, grad: Tensor, x: Tensor) -> None:
        """Add those of a block ``x (R, in_features)`` whose output has the gradient ``grad (R, out_features)``."""
        if self._sum is not None:
            left, right = (x, grad) if self._flipped else (grad, x)
            if self._sum.dtype == x.dtype:
                self._sum.addmm_(left.t(), right)
            else:
                self._sum += left.t() @ right
        if self.bias is not None:
            self.bias += grad.sum(0)
