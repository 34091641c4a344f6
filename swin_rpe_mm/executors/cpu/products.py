"""The products of a linear layer and of its gradients, over rows taken a few thousand at a time."""
import functools
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

_ONEDNN = torch.ops.mkldnn


def suits_onednn(weight: Tensor) -> bool:
    """Whether oneDNN's products, about a tenth faster on CPUs, may take the place of PyTorch's."""
    suits = weight.device.type == 'cpu' and weight.dtype == torch.float32 and autocast_dtype(weight) is None
    return suits and has_onednn()


@functools.cache
def has_onednn() -> bool:
    """Whether this build of PyTorch has these operators, which are no part of its public interface, as they are called
    here."""
    x, weight, bias = torch.eye(2), torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([5., 6.])
    try:
        with torch.no_grad():
            given = _by_onednn(x, _ONEDNN._reorder_linear_weight(weight), bias, gelu=True)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(given, F.gelu(F.linear(x, weight, bias)))


def _by_onednn(x: Tensor, packed: Tensor, bias: Optional[Tensor], gelu: bool) -> Tensor:
    return _ONEDNN._linear_pointwise(x, packed, bias, *(('gelu', [], 'none') if gelu else ('none', [], '')))


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
        gelu (bool): Whether what it gives goes through GELU, without gradients: in the kernel of the product, which
            saves a pass over it and a tensor of its size.
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor], rows: int, gelu: bool = False):
        self.weight, self.bias, self.rows, self.gelu = weight, bias, rows, gelu
        self.packed = _ONEDNN._reorder_linear_weight(weight.detach()) if rows and suits_onednn(weight) else None

    def __call__(self, x: Tensor) -> Tensor:
        """``(R, in_features)`` to ``(R, out_features)``."""
        if self.packed is None or len(x) != self.rows:
            out = F.linear(x, self.weight, self.bias)
            return torch.ops.aten.gelu_(out) if self.gelu else out
        return _by_onednn(x, self.packed, self.bias, self.gelu)


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
