"""A bias table of low rank: a product over axes instead of a row per combination of offsets."""
from typing import Dict, Tuple

import torch
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, kept
from .precision import widened
from .table import lookup, offset_rows


@MODELS.register_module()
class LowRankRPE(RelativePositionEncoding):
    """``sum over r of u_r(dh) * v_r(dw)`` in every head: a table over all offsets whose rank is limited.

    The parameters are one table ``(side, heads, rank)`` per axis; with three axes or more a term is a product of as
    many numbers. That biases of trained models are often of low rank is from FlashBias, arXiv 2505.12044. Resizing the
    tables of the axes gives the same as resizing the table over all offsets.

    Args:
        rank (int): How many terms are added.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`.

    Raises:
        InputError: If ``rank`` is no whole number from 1.
    """

    def __init__(self, rank: int = 2, **window):
        super().__init__(**window)
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise InputError(f'rank must be a whole number from 1, got {rank!r}')
        self.relative_position_bias_tables = nn.ParameterList(
            nn.Parameter(torch.zeros(side, self.num_heads, rank)) for side in self.sides)
        self.init_weights()

    def init_weights(self) -> None:
        axes, rank = len(self.sides), self.relative_position_bias_tables[0].shape[-1]
        # a bias is a sum of `rank` products of `axes` numbers; its std is that of Swin's table
        std = (0.02 / rank**0.5)**(1 / axes)
        for table in self.relative_position_bias_tables:
            trunc_normal_(table, std=std)

    def offset_tables(self) -> Dict[str, Tuple[int, ...]]:
        return {f'relative_position_bias_tables.{axis}': (axis, ) for axis in range(len(self.sides))}

    def bias(self, geometry: WindowGeometry) -> Tensor:
        """See :meth:`~.base.RelativePositionEncoding.bias`.

        Raises:
            InputError: If the geometry has offsets that the tables have no row for.
        """
        first, *others = [widened(table) for table in self.relative_position_bias_tables]
        terms = first
        for table in others:
            terms = (terms[:, None] * table).flatten(0, 1)
        return lookup(terms.sum(-1), kept(offset_rows, geometry, self.geometry, first.device))
