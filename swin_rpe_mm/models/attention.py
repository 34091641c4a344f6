"""Multi-head self-attention inside windows (W-MSA, SW-MSA), and beyond their borders."""
import math
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as cp
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..errors import InputError
from ..windows import KeyGroup, WindowLayout, all_keys, group_by_keys, groups_of_parts
from ..rpe import LogCPB, TableRPE, WindowGeometry, build_rpe, call_rpe
from ..rpe.interpolate import check_mode
from ..executors.backends import BACKENDS, attention_weights, sdpa
from ..executors.linear import by_rows, prepared, run_in_parts

Window = Tuple[int, ...]

# tokens of the windows that a CPU takes at a time: with many more, what is made of them leaves the cache
TOKENS_AT_ONCE = 4096
_VALUES_AT_ONCE = 2**19  # and of these, channels times tokens; twice as many in training, for the weights' gradients
# where windows share keys: keys gathered at a time, about as many as a large map has tokens, and logits of those
_KEYS_AT_ONCE = 2**16
_KEYS_IN_CACHE = 2**13
_LOGITS_AT_ONCE = 2**24


def windows_at_once(layout: WindowLayout, channels: int, trained: bool = False) -> int:
    """How many of a layout's windows a CPU takes at a time."""
    return max(1, min(TOKENS_AT_ONCE, _VALUES_AT_ONCE * (1 + trained) // channels) // layout.slots.shape[1])


class Shared(NamedTuple):
    """What the windows of a call have in common, see :meth:`WindowAttention.shared`."""
    qkv: Callable[[Tensor], Tensor]
    proj: Callable[[Tensor], Tensor]
    bias: Optional[Tensor]


class Beyond(NamedTuple):
    """What a part of a map sees with a halo.

    Attributes:
        kv (Tensor): Keys and values of the whole map's tokens side by side, ``(K, 2C)``.
        groups (Sequence[KeyGroup]): Which of them the part's windows see.
        biases (dict[int, Tensor]): The bias for the keys of a group, by their ``id``, for the parts to share; filled on
            the way.
    """
    kv: Tensor
    groups: Sequence[KeyGroup]
    biases: Dict[int, Tensor]


class WindowAttention(BaseModule):
    """Attention of every token over the tokens of its window, and of those around it.

    mm keeps Swin's table and SwinV2's MLP directly in this module and configs and checkpoints know them by those names,
    whereas here they belong to the encoding. State dicts therefore hold ``rpe.relative_position_bias_table`` and
    ``rpe.cpb_mlp`` without the ``rpe.``.

    Args:
        embed_dims (int): Channels.
        num_heads (int): Attention heads.
        window_size (tuple[int, ...]): Window in tokens.
        rpe (dict | list[dict], optional): Config of the relative position encoding.
        qkv_bias (bool): Whether q, k and v have a bias; with cosine attention k has none (arXiv 2111.09883).
        qk_scale (float, optional): Scale of the logits. None means ``head_dim ** -0.5``. Not used by cosine attention.
        attn_drop_rate (float): Dropout of attention weights.
        proj_drop_rate (float): Dropout of the output.
        attn_backend (str): A name in ``backends.BACKENDS``.
        cosine (bool): SwinV2's attention: the logit is the cosine of query and key times a learned scale of each head,
            at most 100.
        halo (tuple[int, ...], optional): How many tokens the keys reach beyond the window on each side of an axis.
        pooled_neighbours (int): How many windows away lie those that give one more key each, the mean of their keys,
            with a bias from ``BlockRPE``.

    Raises:
        InputError: If pooled neighbours are asked for together with an encoding that rotates keys.
    """

    def __init__(self,
                 embed_dims: int,
                 num_heads: int,
                 window_size: Window,
                 rpe: Optional[dict] = None,
                 qkv_bias: bool = True,
                 qk_scale: Optional[float] = None,
                 attn_drop_rate: float = 0.,
                 proj_drop_rate: float = 0.,
                 attn_backend: str = 'sdpa',
                 cosine: bool = False,
                 halo: Optional[Window] = None,
                 pooled_neighbours: int = 0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dims // num_heads
        self.attend = BACKENDS[attn_backend]
        self.pooled_neighbours = pooled_neighbours
        self._set_geometry(window_size, halo or (0, ) * len(window_size))

        sizes = dict(num_heads=num_heads, head_dim=self.head_dim, window_size=window_size,
                     key_size=self.geometry.key_size)
        self.rpe = build_rpe(rpe, **sizes)
        self.pooled_rpe = None
        if pooled_neighbours:
            if getattr(self.rpe, 'rotates', False):
                raise InputError('pooled_neighbours cannot be combined with an encoding that rotates keys, since a '
                                 f'mean of keys has no place of its own, got rpe={rpe}')
            self.pooled_rpe = build_rpe(dict(type='BlockRPE', max_blocks=pooled_neighbours), **sizes)

        self.scale = qk_scale or self.head_dim**-0.5
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10))) if cosine else None
        self.qkv = nn.Linear(embed_dims, embed_dims * 3, bias=qkv_bias and not cosine)
        self.q_bias = self.v_bias = None
        if cosine and qkv_bias:
            self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(embed_dims)) for _ in range(2))
        self.attn_drop_rate = attn_drop_rate
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop_rate)
        self._register_state_dict_hook(_into_mm_place)
        self._register_load_state_dict_pre_hook(_from_mm_place, with_module=True)

    def _set_geometry(self, window: Window, halo: Window) -> None:
        self.geometry = WindowGeometry.centred(window, tuple(w + 2 * h for w, h in zip(window, halo)))
        self.pooled_geometry = WindowGeometry.pooled(window, self.pooled_neighbours)
        self.has_halo = any(halo)

    @property
    def looks_beyond(self) -> bool:
        """Whether there are keys from other windows, so that windows cannot be attended to apart from each other."""
        return self.has_halo or self.pooled_neighbours > 0

    @property
    def is_plain(self) -> bool:
        """Whether tokens see those of their own window, and logits are products of queries and keys plus a fixed bias.
        """
        fixed = self.rpe is None or getattr(self.rpe, 'fixed_bias', False)
        return (fixed and self.logit_scale is None and not self.looks_beyond and self.attend is sdpa
                and not (self.training and self.attn_drop_rate))

    def fixed_bias(self) -> Optional[Tensor]:
        """The bias ``(heads, Nq, Nk)`` of an encoding that needs no queries and keys for it."""
        return self.rpe(None, None, self.geometry)[2] if getattr(self.rpe, 'fixed_bias', False) else None

    def shared(self, norm: Optional[nn.Module] = None, tokens: int = 0, queries_only: bool = False) -> Shared:
        """What does not depend on the tokens, worked out once for the parts of a map.

        Args:
            norm (nn.Module, optional): What tokens go through first.
            tokens (int): How many most calls have, see :func:`~.linear.prepared`.
            queries_only (bool): For calls that are given what they see beyond themselves.
        """
        outputs = slice(self.proj.in_features if queries_only else None)
        qkv, proj = prepared(self.qkv, norm, tokens, outputs), prepared(self.proj, rows=tokens)
        if tokens and self.pooled_neighbours:  # then calls have all tokens
            qkv, proj = by_rows(qkv, tokens), by_rows(proj, tokens)
        return Shared(qkv, proj, self.fixed_bias())

    def keys_and_values(self, x: Tensor, norm: Optional[nn.Module], tokens: int,
                        out: Optional[Tensor] = None) -> Tensor:
        """Of all tokens of a map ``(K, C)``, ``(K, 2C)``, without gradients, in ``out`` if that fits; other arguments
        as for :meth:`shared`."""
        outputs = slice(self.proj.in_features, None)
        project = prepared(self.qkv, norm, tokens, outputs)
        parts = x.split(tokens or TOKENS_AT_ONCE)
        return run_in_parts(lambda rows: self._add_biases(project(rows), outputs), parts, len(x), out)

    def key_groups(self, layout: WindowLayout) -> Tuple[KeyGroup, ...]:
        """Which keys the windows of a layout with a halo see."""
        key_size = self._grouped_keys(layout)
        return group_by_keys(layout, key_size) if key_size else (all_keys(layout), )

    def key_groups_of_parts(self, layout: WindowLayout, windows: int) -> Tuple[Tuple[KeyGroup, ...], ...]:
        """The same for each of the layout's parts of at most so many windows."""
        return groups_of_parts(layout, windows, self._grouped_keys(layout))

    def _grouped_keys(self, layout: WindowLayout) -> Optional[Window]:
        # an encoding that looks at the keys needs all of them; on a GPU few calls matter more than few keys
        needs_all = self.pooled_neighbours or not (self.rpe is None or getattr(self.rpe, 'fixed_bias', False))
        return None if needs_all or layout.slots.device.type != 'cpu' else self.geometry.key_size

    def forward(self, x: Tensor, layout: WindowLayout, mask_padding: bool, shared: Optional[Shared] = None,
                beyond: Optional[Beyond] = None) -> Tensor:
        """
        Args:
            x (Tensor): Packed tokens ``(K, C)``.
            layout (WindowLayout): The windows to cut them into, with this module's halo and neighbours.
            mask_padding (bool): False lets window padding take part as zeros that were projected.
            shared (Shared, optional): What :meth:`shared` gave.
            beyond (Beyond, optional): Where ``x`` is a part of a map and the module has a halo, what lies around it.

        Returns:
            Tensor: ``(K, C)``.
        """
        shared = shared or self.shared()
        channels, move = x.shape[1], layout.into_windows
        # projecting first leaves padding out of the projections, and the gather puts q, k and v in window order; with a
        # halo, k and v are gathered for several windows each
        projected = shared.qkv(x)
        projected = self._add_biases(projected, slice(projected.shape[1]))
        padding = None if mask_padding else self._projected_zeros(projected.dtype)
        own = projected[:, :channels] if self.has_halo and not self.pooled_neighbours else projected
        windows = move(own)
        if padding is not None and len(layout.holes):
            windows.index_copy_(0, layout.holes, padding[:own.shape[1]].expand(len(layout.holes), -1))
        q, *kv = self._heads(windows.unflatten(0, layout.slots.shape))
        neighbours = self._pool(*kv, layout) if self.pooled_neighbours else None
        if self.has_halo:
            beyond = beyond or Beyond(projected[:, channels:], self.key_groups(layout), {})
            out = self._attend_beyond(q, beyond, neighbours, layout.region, padding, shared.bias)
        else:
            out = self._attend(q, *kv, neighbours, layout.region, layout.visible, shared.bias)
        return self.proj_drop(shared.proj(move.inverse(out.flatten(2).flatten(0, 1))))

    def _add_biases(self, projected: Tensor, outputs: slice) -> Tensor:
        """Cosine attention's biases of q and v, added to those of q, k and v side by side that are in ``outputs``."""
        if self.q_bias is None:
            return projected
        return projected + self._biases()[outputs].to(projected.dtype)

    def _biases(self) -> Optional[Tensor]:
        if self.q_bias is None:
            return self.qkv.bias
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])

    def _projected_zeros(self, dtype: torch.dtype) -> Optional[Tensor]:
        """q, k and v of padding that takes part, ``(3C,)``."""
        biases = self._biases()
        return None if biases is None else biases.to(dtype)

    def _heads(self, x: Tensor) -> Tuple[Tensor, ...]:
        """``(T, N, n * C)`` to n tensors ``(T, heads, N, d)``."""
        return x.unflatten(-1, (-1, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)

    def _attend_beyond(self, q: Tensor, beyond: Beyond, neighbours: Optional[Tuple[Tensor, Tensor]], region: Tensor,
                       padding: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
        """Attention with a halo. Keys of several windows are copied into each, a few windows at a time, and copied anew
        for the backward pass, so that memory does not grow with the halo."""

        def attend(q: Tensor, kv: Tensor, pooled: Optional[Tuple[Tensor, Tensor]], part: KeyGroup,
                   bias: Optional[Tensor]) -> Tensor:
            keys = part.gather(kv, padding if padding is None else padding[-kv.shape[1]:])
            return self._attend(q, *self._heads(keys), pooled, region[part.windows], part.visible, bias)

        def most_windows(keys: int) -> int:
            most = _KEYS_IN_CACHE if q.device.type == 'cpu' and not torch.is_grad_enabled() else _KEYS_AT_ONCE
            return max(1, min(most // keys, _LOGITS_AT_ONCE // (self.num_heads * q.shape[2] * keys)))

        recompute = torch.is_grad_enabled() and len(q) > most_windows(max(group.size for group in beyond.groups))
        outs = []
        for group in beyond.groups:
            group_bias = bias
            if bias is not None and group.keys is not None:
                if id(group.keys) not in beyond.biases:
                    beyond.biases[id(group.keys)] = bias.index_select(2, group.keys)
                group_bias = beyond.biases[id(group.keys)]
            for part in group.split(most_windows(group.size)):
                pooled = None if neighbours is None else tuple(x[part.windows] for x in neighbours)
                arguments = (q[part.windows], beyond.kv, pooled, part, group_bias)
                outs.append(cp.checkpoint(attend, *arguments, use_reentrant=False) if recompute else attend(*arguments))
        return torch.cat(outs)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, neighbours: Optional[Tuple[Tensor, Tensor]], region: Tensor,
                visible: Tensor, bias: Optional[Tensor]) -> Tensor:
        """Attention of windows, ``(T, heads, N, d)`` each, of which the last may need a mask: ``visible (V, N, Nk)``.
        Returns ``(T, N, heads, d)``."""
        scale = self.scale
        if self.logit_scale is not None or not (self.rpe is None or bias is not None):
            q, k = self._scaled(q, k)  # encodings see the queries scaled; the others are scaled in their products
            scale = 1.
        if self.rpe is not None and bias is None:
            q, k, bias = call_rpe(self.rpe, q, k, self.geometry, region)
        values = self.rpe.values if getattr(self.rpe, 'adds_values', False) else None
        own_keys = k.shape[2]
        if neighbours is not None:
            k, v, bias = self._append(q, k, v, bias, neighbours)
        dropout = self.attn_drop_rate if self.training else 0.

        def attend(part: slice, visible: Optional[Tensor]) -> Tensor:
            part_bias = bias[part] if bias is not None and bias.ndim == 4 else bias
            if values is None:
                return self.attend(q[part], k[part], v[part], part_bias, visible, dropout, scale).transpose(1, 2)
            weights = attention_weights(q[part], k[part], part_bias, visible, dropout).to(v.dtype)
            added = values(weights[..., :own_keys], self.geometry)
            return (weights @ v[part] + added.to(v.dtype)).transpose(1, 2)

        # most windows need no mask and share one bias; only the others pay for one of their own
        plain, parts = len(q) - len(visible), []
        if plain:
            parts.append(attend(slice(plain), None))
        if len(visible):
            parts.append(attend(slice(plain, None), visible))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _scaled(self, q: Tensor, k: Tensor) -> Tuple[Tensor, Tensor]:
        if self.logit_scale is None:
            return q * self.scale, k
        # in float32: in half precision the cosine's rounding would be multiplied by up to 100
        wide = torch.promote_types(q.dtype, torch.float32)
        scale = self.logit_scale.to(wide).clamp(max=math.log(100)).exp()
        return (F.normalize(q.to(wide), dim=-1) * scale).to(q.dtype), F.normalize(k.to(wide), dim=-1).to(k.dtype)

    def _pool(self, k: Tensor, v: Tensor, layout: WindowLayout) -> Tuple[Tensor, Tensor]:
        """Mean key and value of each window's neighbours, ``(T, heads, P, d)`` each."""
        real = (layout.region >= 0)[:, None, :, None]
        count = real.sum(2)
        return tuple(((x * real).sum(2) / count).to(x.dtype)[layout.neighbours].transpose(1, 2) for x in (k, v))

    def _append(self, q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor],
                neighbours: Tuple[Tensor, Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
        pooled_k, pooled_v = neighbours
        if self.logit_scale is not None:
            pooled_k = self._scaled(pooled_k, pooled_k)[1]
        *_, pooled_bias = self.pooled_rpe(q, pooled_k, self.pooled_geometry)
        centre = pooled_bias.shape[-1] // 2  # the window itself, whose keys are there one by one
        pooled_bias = torch.cat([pooled_bias[..., :centre], pooled_bias[..., centre + 1:]], dim=-1)
        if bias is None:
            bias = pooled_bias.new_zeros(*pooled_bias.shape[:-1], k.shape[2])
        pooled_bias = pooled_bias.expand(*bias.shape[:-1], -1)
        return torch.cat([k, pooled_k], 2), torch.cat([v, pooled_v], 2), torch.cat([bias, pooled_bias], -1)

    def check_window(self, window: Window, halo: Window, mode: str) -> None:
        """Raise :class:`InputError` if :meth:`set_window` would; changes nothing."""
        check_mode('mode', mode)
        if self.rpe is None:
            return
        if not hasattr(self.rpe, 'resampled'):
            raise InputError(f'{type(self.rpe).__name__} cannot change its window: it is no RelativePositionEncoding')
        self.rpe.resampled(window, mode, tuple(w + 2 * h for w, h in zip(window, halo)))

    def set_window(self, window: Window, halo: Window, mode: str) -> None:
        """Change window and halo; the encoding is read for them as ``mode`` says, see its ``resample``."""
        self._set_geometry(window, halo)
        for rpe in (self.rpe, self.pooled_rpe):
            if rpe is not None:
                rpe.resample(window, mode, self.geometry.key_size)


class ShiftedWindowAttention(nn.Module):
    """Holds the attention as ``w_msa``, the name it has in mm's checkpoints and configs."""

    def __init__(self, **kwargs):
        super().__init__()
        self.w_msa = WindowAttention(**kwargs)

    def forward(self, x: Tensor, layout: WindowLayout, mask_padding: bool, shared: Optional[Shared] = None,
                beyond: Optional[Beyond] = None) -> Tensor:
        return self.w_msa(x, layout, mask_padding, shared, beyond)


# what mm has directly in the attention module, and the encoding it belongs to here
_IN_MM_PLACE = {'relative_position_bias_table': TableRPE, 'cpb_mlp.': LogCPB}
# buffers of other projects that follow from the window, and tell which one a file was made for
DERIVED_BUFFERS = ('relative_position_index', 'relative_coords_table')


def _own_prefix(module: WindowAttention, encoding: type) -> Optional[str]:
    """Where the first encoding of a type sits in the module."""
    for name, part in module.named_modules():
        if isinstance(part, encoding):
            return f'{name}.'
    return None


def _into_mm_place(module: WindowAttention, state_dict: Dict[str, Tensor], prefix: str, _metadata: dict) -> None:
    for name, encoding in _IN_MM_PLACE.items():
        own = _own_prefix(module, encoding)
        for key in [key for key in state_dict if own and key.startswith(prefix + own + name)]:
            state_dict[prefix + key[len(prefix + own):]] = state_dict.pop(key)


def _from_mm_place(module: WindowAttention, state_dict: Dict[str, Tensor], prefix: str, *_) -> None:
    for name, encoding in _IN_MM_PLACE.items():
        own = _own_prefix(module, encoding)
        for key in [key for key in state_dict if own and key.startswith(prefix + name)]:
            state_dict[prefix + own + key[len(prefix):]] = state_dict.pop(key)
            for buffer in DERIVED_BUFFERS:
                if prefix + buffer in state_dict:
                    state_dict[prefix + own + buffer] = state_dict.pop(prefix + buffer)
    for buffer in DERIVED_BUFFERS:
        state_dict.pop(prefix + buffer, None)
