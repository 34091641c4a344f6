"""What every relative position encoding is."""
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from mmengine.model import BaseModule
from torch import Tensor

from ..errors import InputError
from ..windows.geometry import WindowGeometry
from .interpolate import check_mode, resize_table, source_sides
from .offsets import offset_range
from .replacing import Replaced, replace_parameter

Window = Tuple[int, ...]

_is_wrapped = getattr(getattr(torch._C, '_functorch', None), 'is_functorch_wrapped_tensor', lambda tensor: False)


def kept(make: Callable, *args: Any) -> Any:
    """``make(*args)``: index tensors, which depend on nothing but their arguments, from a bounded cache.

    What a tracer or a transform makes is its own: nothing is kept then, or taken.
    """
    probe = torch.empty(0)
    if torch.compiler.is_compiling() or type(probe) is not Tensor or _is_wrapped(probe):
        return make(*args)
    return _keep(make, *args)


@lru_cache(512)
@torch.inference_mode(False)  # what is made there could not take part in training afterwards
def _keep(make: Callable, *args: Any) -> Any:
    return make(*args)


class RelativePositionEncoding(BaseModule):
    """Base of all encodings. What an encoding can do is what it overrides:

    * :meth:`bias`, added to the logits: a function of where queries and keys lie, the same for all windows;
    * :meth:`rotate`, which changes queries and keys;
    * :meth:`scores`, added to the logits: what depends on queries, keys or regions;
    * :meth:`values`, added to the output.

    It owns its parameters, and draws them in ``init_weights``. They sit under ``.rpe.`` in the backbone, so that
    ``custom_keys={'.rpe.': dict(decay_mult=0.)}`` takes them out of weight decay; tables of biases also carry Swin's
    name ``relative_position_bias_table``, which the usual configs exempt.

    Tables whose rows are offsets depend on the window. :meth:`offset_tables` names them, and what is here reads them
    for another window: on :meth:`resample`, and when a state dict of another window is loaded.

    Args:
        num_heads (int): Attention heads.
        window_size (tuple[int, ...]): Query window in tokens per axis.
        key_size (tuple[int, ...], optional): Key window, around the same centre. None means the query window.
        head_dim (int, optional): Channels of a head; encodings that look at queries or keys need it.
        resize_mode (str): How tables of another window are read when a state dict is loaded, see
            :func:`~swin_rpe_mm.rpe.interpolate.resize_table`.

    Attributes:
        geometry (WindowGeometry): The windows that this encoding is made for.

    Raises:
        InputError: If a value is not allowed.
    """

    def __init__(self,
                 num_heads: int,
                 window_size: Window,
                 key_size: Optional[Window] = None,
                 head_dim: Optional[int] = None,
                 resize_mode: str = 'bicubic'):
        super().__init__()
        check_mode('resize_mode', resize_mode)
        if not isinstance(num_heads, int) or num_heads < 1:
            raise InputError(f'num_heads must be a whole number from 1, got {num_heads!r}')
        if head_dim is not None and (type(head_dim) is not int or head_dim < 1):
            raise InputError(f'head_dim must be None or a whole number from 1, got {head_dim!r}')
        self.num_heads = num_heads
        self.window_size = _checked('window_size', window_size)
        self.key_size = _checked('key_size', window_size if key_size is None else key_size, len(self.window_size))
        self.geometry = WindowGeometry.centred(self.window_size, self.key_size)
        self.head_dim = head_dim
        self.resize_mode = resize_mode
        self._register_state_dict_hook(_note_encoding)
        self._register_load_state_dict_pre_hook(_resize_on_load, with_module=True)

    @property
    def sides(self) -> Window:
        """How many offsets there are along each axis, ``wq + wk - 1``."""
        return tuple(high - low + 1 for low, high in offset_range(self.geometry))

    def forward(self,
                q: Tensor,
                k: Tensor,
                geometry: WindowGeometry,
                region: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """What attention asks for.

        Args:
            q (Tensor): Scaled queries ``(T, heads, Nq, d)``.
            k (Tensor): Keys ``(T, heads, Nk, d)``.
            geometry (WindowGeometry): Where they lie.
            region (Tensor, optional): ``(T, Nq)`` long, -1 to 3: slots of a window see each other if and only if their
                regions are equal. None means that all do.

        Returns:
            tuple: q and k, rotated, and what is added to the logits: None, ``(heads, Nq, Nk)`` or
            ``(T, heads, Nq, Nk)``, in float32 or wider.
        """
        if self.gives('rotate'):
            q, k = self.rotate(q, k, geometry)
        terms: List[Any] = [self.bias(geometry)] if self.gives('bias') else []
        if self.gives('scores'):
            terms.append(self.scores(q, k, geometry, region))
        return q, k, sum(terms[1:], terms[0]) if terms else None

    def bias(self, geometry: WindowGeometry) -> Optional[Tensor]:
        """``(heads, Nq, Nk)``, in float32 or wider, on the device of the parameters."""
        return None

    def rotate(self, q: Tensor, k: Tensor, geometry: WindowGeometry) -> Tuple[Tensor, Tensor]:
        """Queries and keys of the same shapes and dtypes; arguments as for :meth:`forward`."""
        return q, k

    def scores(self, q: Tensor, k: Tensor, geometry: WindowGeometry, region: Optional[Tensor]) -> Optional[Tensor]:
        """``(T, heads, Nq, Nk)``, in float32 or wider; arguments as for :meth:`forward`, q and k rotated."""
        return None

    def values(self, weights: Tensor, geometry: WindowGeometry) -> Optional[Tensor]:
        """``(T, heads, Nq, d)``, in float32 or wider, of the weights of attention ``(T, heads, Nq, Nk)``."""
        return None

    def gives(self, method: str) -> bool:
        """Whether this encoding has a ``bias``, ``scores`` or ``values``, or does ``rotate``."""
        return getattr(type(self), method) is not getattr(RelativePositionEncoding, method)

    @property
    def gives_bias_alone(self) -> bool:
        """Whether all it gives is a bias that is the same for all windows of a map."""
        return not any(self.gives(method) for method in ('rotate', 'scores', 'values'))

    @property
    def kinds(self) -> Tuple[str, ...]:
        """The names of its class and of the encodings that this is made from."""
        classes = type(self).__mro__
        return tuple(kind.__name__ for kind in classes[:classes.index(RelativePositionEncoding)])

    def offset_tables(self) -> Dict[str, Tuple[int, ...]]:
        """Parameters with a row per offset, by name, and the axes whose offsets their rows run over."""
        return {}

    @torch.inference_mode(False)  # what is made there could not be trained afterwards
    def resample(self, window: Window, mode: str = 'bicubic', key_size: Optional[Window] = None) -> Replaced:
        """Change the window and keep the function as ``mode`` says. A table of another shape is a new parameter.

        Args:
            window (tuple[int, ...]): The new query window.
            mode (str): See :func:`~swin_rpe_mm.rpe.interpolate.resize_table`.
            key_size (tuple[int, ...], optional): The new key window. None keeps the halo.

        Returns:
            list[tuple[nn.Parameter, nn.Parameter]]: Old and new parameters, for
            :func:`~swin_rpe_mm.rpe.replacing.replace_in_optimizer`.

        Raises:
            InputError: If the window or the mode is none, or the mode cannot make that change; nothing is changed then.
        """
        replaced = [replace_parameter(part, name, value)
                    for part, name, value in self.resampled(window, mode, key_size)]
        for part in self._parts():
            part.key_size = part._new_key_size(window, key_size)
            part.window_size = tuple(window)
            part.geometry = WindowGeometry.centred(part.window_size, part.key_size)
        return replaced

    @torch.inference_mode(False)
    @torch.no_grad()
    def resampled(self, window: Window, mode: str = 'bicubic',
                  key_size: Optional[Window] = None) -> List[Tuple['RelativePositionEncoding', str, Tensor]]:
        """What :meth:`resample` would do: encodings, names of their parameters, new values. Changes nothing."""
        check_mode('mode', mode)
        window = _checked('window', window, len(self.window_size))
        changes = []
        for part in self._parts():
            new = WindowGeometry.centred(window, part._new_key_size(window, key_size))
            new_sides = tuple(high - low + 1 for low, high in offset_range(new))
            for name, axes in part.offset_tables().items():
                old, wanted = ([sides[axis] for axis in axes] for sides in (part.sides, new_sides))
                if old != wanted:
                    changes.append((part, name, _resize(part.get_parameter(name).detach(), old, wanted, mode)))
        return changes

    def _parts(self) -> List['RelativePositionEncoding']:
        """This encoding and those inside of it."""
        return [module for module in self.modules() if isinstance(module, RelativePositionEncoding)]

    def _new_key_size(self, window: Window, key_size: Optional[Window]) -> Window:
        if key_size is None:
            key_size = tuple(new + wk - wq for new, wq, wk in zip(window, self.window_size, self.key_size))
        return _checked('key_size', key_size, len(window))


def _checked(name: str, window: Window, axes: Optional[int] = None) -> Window:
    sides = tuple(window) if isinstance(window, (tuple, list)) else ()
    if not sides or len(sides) != (axes or len(sides)) or not all(type(side) is int and side >= 1 for side in sides):
        number = '' if axes is None else f'{axes} '
        raise InputError(f'{name} must be a tuple of {number}positive whole numbers, one per axis, got {window!r}')
    return sides


def _resize(table: Tensor, old: List[int], new: List[int], mode: str) -> Tensor:
    return resize_table(table.flatten(1), tuple(old), tuple(new), mode).unflatten(1, table.shape[1:])


def _note_encoding(module: RelativePositionEncoding, state_dict: Dict[str, Tensor], prefix: str,
                   metadata: dict) -> None:
    metadata['encoding'] = module.kinds
    if module.offset_tables():
        metadata['offset_sides'] = module.sides


def _resize_on_load(module: RelativePositionEncoding, state_dict: Dict[str, Tensor], prefix: str, metadata: dict,
                    *_) -> None:
    index = state_dict.pop(f'{prefix}relative_position_index', None)
    for name, axes in module.offset_tables().items():
        table = state_dict.get(prefix + name)
        if table is None:
            continue
        new = [module.sides[axis] for axis in axes]
        noted = metadata.get('offset_sides')
        if noted is not None and len(noted) == len(module.sides):
            old = [noted[axis] for axis in axes]
        else:
            old = list(source_sides(len(table), index, tuple(new), prefix + name))
        if old != new:
            state_dict[prefix + name] = _resize(table, old, new, module.resize_mode)
