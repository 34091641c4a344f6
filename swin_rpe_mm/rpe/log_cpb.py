"""SwinV2's continuous position bias: a small network of the offset."""
import math
from typing import Dict, Optional, Tuple, Union

import torch
from mmengine.model import trunc_normal_init
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from ..windows.geometry import WindowGeometry
from .base import RelativePositionEncoding, Window, kept
from .offsets import Device, all_offsets
from .precision import call_wide, place_of
from .table import lookup, offset_rows


@MODELS.register_module()
class LogCPB(RelativePositionEncoding):
    """``16 * sigmoid(MLP(x))`` with x the offset on a logarithmic scale.

    SwinV2, arXiv 2111.09883, section 3.3, scaled as in its code: an offset d along an axis becomes
    ``x = 8 * d / (P - 1)`` and then ``sign(x) * log2(1 + |x|) / 3``, where P is the window that the network was trained
    with. The network, ``cpb_mlp``, is ``Linear(axes, hidden) - ReLU - Linear(hidden, heads)``, the last without a bias.
    It is evaluated once per offset, in float32 or wider.

    P stays as it is when the window changes, so the function of the offset stays too. State dicts note it. A module
    that was not given one adopts the file's, from the note or from SwinV2's own ``relative_coords_table`` beside the
    weights, whose farthest entry tells it.

    Args:
        pretrained_window_size (int | Sequence[int], optional): P, for all axes or one per axis. None or 0 means the
            window.
        log (bool): False leaves x as it is: the linear one of the paper.
        hidden_dims (int): Hidden channels of the network.
        **window: Arguments of :class:`~.base.RelativePositionEncoding`.

    Raises:
        InputError: If a value is not allowed.
    """

    def __init__(self,
                 pretrained_window_size: Union[None, int, Tuple[int, ...]] = None,
                 log: bool = True,
                 hidden_dims: int = 512,
                 **window):
        super().__init__(**window)
        axes = len(self.window_size)
        given = pretrained_window_size
        sizes = tuple(given) if isinstance(given, (tuple, list)) else (given or 0, ) * axes
        if len(sizes) != axes or not all(type(size) is int and size >= 0 for size in sizes):
            raise InputError('pretrained_window_size must be None, a whole number from 0, or one of these for each of '
                             f'{axes} axes, got {pretrained_window_size!r}')
        if type(hidden_dims) is not int or hidden_dims < 1:
            raise InputError(f'hidden_dims must be a whole number from 1, got {hidden_dims!r}')
        self.adopts_window = not any(sizes)
        self.pretrained_window_size = tuple(size or own for size, own in zip(sizes, self.window_size))
        self.log = log
        self.cpb_mlp = nn.Sequential(
            nn.Linear(axes, hidden_dims), nn.ReLU(), nn.Linear(hidden_dims, self.num_heads, bias=False))
        self.init_weights()
        self._register_state_dict_hook(_note_window)
        self._register_load_state_dict_pre_hook(_adopt_window, with_module=True)

    def init_weights(self) -> None:
        hidden, _, out = self.cpb_mlp
        for layer in (hidden, out):
            trunc_normal_init(layer, std=0.02)

    def bias(self, geometry: WindowGeometry) -> Tensor:
        """See :meth:`~.base.RelativePositionEncoding.bias`."""
        device, dtype = place_of(self.cpb_mlp)
        coordinates = kept(cpb_coordinates, geometry, self.pretrained_window_size, self.log, dtype, device)
        table = 16 * torch.sigmoid(call_wide(self.cpb_mlp, coordinates))
        return lookup(table, kept(offset_rows, geometry, geometry, device))


def cpb_coordinates(geometry: WindowGeometry, pretrained: Window, log: bool, dtype: torch.dtype,
                    device: Device = 'cpu') -> Tensor:
    """What the network of :class:`LogCPB` sees of every offset, ``(offsets, axes)``, rows as of ``offset_rows``."""
    axes = zip(all_offsets(geometry).double(), pretrained)
    x = torch.stack([8 * offset / max(size - 1, 1) for offset, size in axes], dim=-1)
    x = x.flatten(0, -2)
    if log:
        x = x.sign() * torch.log2(1 + x.abs()) / 3
    return x.to(device, dtype)


def _note_window(module: LogCPB, state_dict: Dict[str, Tensor], prefix: str, metadata: dict) -> None:
    metadata['pretrained_window_size'] = module.pretrained_window_size


def _adopt_window(module: LogCPB, state_dict: Dict[str, Tensor], prefix: str, metadata: dict, *_) -> None:
    table = state_dict.pop(f'{prefix}relative_coords_table', None)
    if not module.adopts_window:
        return
    pretrained = metadata.get('pretrained_window_size')
    if pretrained is None and table is not None:
        pretrained = _window_of(table, module.log)
    if pretrained is not None and len(pretrained) == len(module.window_size):
        module.pretrained_window_size = tuple(pretrained)


def _window_of(table: Tensor, log: bool) -> Optional[Window]:
    """P of a ``relative_coords_table``, ``(1, 2 * W - 1, ..., axes)``, or None if it does not tell."""
    sizes = []
    for side, far in zip(table.shape[1:-1], table.flatten(0, -2)[-1].tolist()):
        x = 2**(3 * far) - 1 if log else far  # 8 * (W - 1) / (P - 1)
        if not 0 < x < math.inf:
            return None
        sizes.append(1 + round(4 * (side - 1) / x))
    return tuple(sizes)
