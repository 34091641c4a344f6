"""A block on packed tokens ``(K, C)``: those inside their images' extents, and nothing else."""
from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.utils.checkpoint as cp
from torch import Tensor, nn

from ...models import DropPath, SwinBlock, WindowAttention
from ...models.block import attend as attention_plain
from ...models.block import mean_neighbours
from ...rpe import RelativePositionEncoding
from ..tuning import current
from .by_heads import attend_windows
from .key_groups import KeyGroup, all_keys, group_by_keys, groups_of_parts
from .linear import by_rows, prepared, prepared_mlp, run_in_parts
from .packed import PackedLayout

Pair = Tuple[Tensor, Tensor]


class Layers(NamedTuple):
    """A block's layers, prepared for a series of calls between which their weights do not change.

    Attributes:
        qkv, proj, mlp (Callable): From rows to rows.
        bias (Tensor, optional): ``(heads, Nq, Nk)``, of an encoding that gives it and nothing else.
        norms (tuple[Callable, Callable]): What the results of the two branches go through.
    """
    qkv: Callable[[Tensor], Tensor]
    proj: Callable[[Tensor], Tensor]
    mlp: Callable[[Tensor], Tensor]
    bias: Optional[Tensor]
    norms: Tuple[nn.Module, nn.Module]


class Beyond(NamedTuple):
    """What a part of a map sees with a halo.

    Attributes:
        kv (Tensor): Keys and values of the whole map's tokens side by side, ``(K, 2C)``.
        groups (Sequence[KeyGroup]): Which of them the part's windows see.
        biases (dict[int, Tensor]): The bias for the keys of a group, by its pattern, for the parts to share.
    """
    kv: Tensor
    groups: Sequence[KeyGroup]
    biases: dict


def prepare(block: SwinBlock, tokens: int = 0, queries_only: bool = False) -> Layers:
    """The block's layers.

    Args:
        block (SwinBlock): The block.
        tokens (int): How many most calls have, see :func:`~.linear.prepared`; 0 for one call with all.
        queries_only (bool): For calls that are given what they see beyond themselves.
    """
    attention, norm_after = block.attn.w_msa, block.norm_after
    (first, activation, _), second, _ = block.ffn.layers
    before = (None, None) if norm_after else (block.norm1, block.norm2)
    outputs = slice(attention.proj.in_features if queries_only else None)
    qkv, proj = prepared(attention.qkv, before[0], tokens, outputs), prepared(attention.proj, rows=tokens)
    mlp = prepared_mlp(first, activation, second, before[1], tokens)
    if tokens and attention.pooled_neighbours:  # then calls have all tokens
        qkv, proj, mlp = (by_rows(layer, tokens) for layer in (qkv, proj, mlp))
    norms = (block.norm1, block.norm2) if norm_after else (nn.Identity(), nn.Identity())
    return Layers(qkv, proj, mlp, fixed_bias(attention), norms)


def run_rows(block: SwinBlock, layers: Layers, x: Tensor, layout: PackedLayout, mask_padding: bool,
             kept: Sequence[Optional[Tensor]], beyond: Optional[Beyond] = None) -> Tensor:
    """The block on some windows.

    Args:
        block (SwinBlock): The block.
        layers (Layers): What :func:`prepare` gave.
        x (Tensor): Packed tokens ``(K, C)``.
        layout (PackedLayout): The windows to cut them into.
        mask_padding (bool): False lets window padding take part as zeros that were projected.
        kept (Sequence[Tensor | None]): For both branches the factor of each image, ``(batch_size, )``; None for 1.
        beyond (Beyond, optional): Where ``x`` is a part of a map and the block has a halo, what lies around it.
    """
    images = layout.image_of_token

    def scaled(branch: Tensor, keep: Optional[Tensor]) -> Tensor:
        return branch if keep is None else branch * keep[images, None]

    x = x + scaled(layers.norms[0](attend_rows(block.attn.w_msa, layers, x, layout, mask_padding, beyond)), kept[0])
    return x + scaled(layers.norms[1](layers.mlp(x)), kept[1])


def draw_images(block: SwinBlock, x: Tensor, batch_size: int) -> Sequence[Optional[Tensor]]:
    """Drop path: for both branches a factor of each image, ``(batch_size, )``, or None where all would be 1; the same
    numbers as :class:`~swin_rpe_mm.models.DropPath` draws."""
    rate = block.drop_path.rate if isinstance(block.drop_path, DropPath) and block.drop_path.training else 0.
    return [x.new_empty(batch_size).bernoulli_(1 - rate).div_(1 - rate) if rate else None for _ in range(2)]


def fixed_bias(attention: WindowAttention) -> Optional[Tensor]:
    """The bias ``(heads, Nq, Nk)`` of an encoding that gives nothing else."""
    return attention.rpe.bias(attention.geometry) if _is_fixed(attention.rpe) else None


def has_halo(attention: WindowAttention) -> bool:
    """Whether queries see keys beyond their window one by one."""
    return attention.geometry.key_size != attention.geometry.query_size


def keys_and_values(block: SwinBlock, x: Tensor, tokens: int, out: Optional[Tensor] = None) -> Tensor:
    """Of all tokens of a map ``(K, C)``, ``(K, 2C)``, without gradients, in ``out`` if that fits."""
    attention = block.attn.w_msa
    outputs = slice(attention.proj.in_features, None)
    project = prepared(attention.qkv, None if block.norm_after else block.norm1, tokens, outputs)
    parts = x.split(tokens or current().tokens_at_once)
    return run_in_parts(lambda rows: _add_biases(attention, project(rows), outputs), parts, len(x), out)


def key_groups_of_parts(attention: WindowAttention, layout: PackedLayout,
                        windows: int) -> Tuple[Tuple[KeyGroup, ...], ...]:
    """Which keys the windows of each of the layout's parts of at most so many windows see."""
    return groups_of_parts(layout, windows, _grouped_keys(attention))


def _grouped_keys(attention: WindowAttention) -> Optional[Tuple[int, ...]]:
    # an encoding that looks at the keys needs all of them
    needs_all = attention.pooled_neighbours or not (attention.rpe is None or _is_fixed(attention.rpe))
    return None if needs_all else attention.geometry.key_size


def _is_fixed(rpe: Optional[RelativePositionEncoding]) -> bool:
    return rpe is not None and rpe.gives_bias_alone


def attend_rows(attention: WindowAttention, layers: Layers, x: Tensor, layout: PackedLayout, mask_padding: bool,
                beyond: Optional[Beyond] = None) -> Tensor:
    """Attention of packed tokens, ``(K, C)`` to ``(K, C)``; arguments as for :func:`run_rows`."""
    channels, move = x.shape[1], layout.into_windows
    # projecting first leaves padding out of the projections, and the gather puts q, k and v in window order; with a
    # halo, k and v are gathered for several windows each
    projected = layers.qkv(x)
    projected = _add_biases(attention, projected, slice(projected.shape[1]))
    padding = None if mask_padding else _projected_zeros(attention, projected.dtype)
    own = projected[:, :channels] if has_halo(attention) and not attention.pooled_neighbours else projected
    windows = move(own)
    if padding is not None and len(layout.holes):
        windows.index_copy_(0, layout.holes, padding[:own.shape[1]].expand(len(layout.holes), -1))
    q, *kv = attention.split_heads(windows, len(layout.slots))
    pooled = mean_neighbours(*kv, layout.region, layout.neighbours) if attention.pooled_neighbours else None
    if has_halo(attention):
        if beyond is None:
            key_size = _grouped_keys(attention)
            groups = group_by_keys(layout, key_size) if key_size else (all_keys(layout), )
            beyond = Beyond(projected[:, channels:], groups, {})
        out = _attend_beyond(attention, q, beyond, pooled, layout.region, padding, layers.bias)
    else:
        out = _attend(attention, q, *kv, pooled, layout.region, layout.visible, layers.bias)
    return layers.proj(move.inverse(out.flatten(2).flatten(0, 1)))


def _add_biases(attention: WindowAttention, projected: Tensor, outputs: slice) -> Tensor:
    """Cosine attention's biases of q and v, added to those of q, k and v side by side that are in ``outputs``."""
    if attention.q_bias is None:
        return projected
    return projected + _biases(attention)[outputs].to(projected.dtype)


def _biases(attention: WindowAttention) -> Optional[Tensor]:
    if attention.q_bias is None:
        return attention.qkv.bias
    return torch.cat([attention.q_bias, torch.zeros_like(attention.q_bias), attention.v_bias])


def _projected_zeros(attention: WindowAttention, dtype: torch.dtype) -> Optional[Tensor]:
    """q, k and v of padding that takes part, ``(3C,)``."""
    biases = _biases(attention)
    return None if biases is None else biases.to(dtype)


def _attend_beyond(attention: WindowAttention, q: Tensor, beyond: Beyond, pooled: Optional[Pair], region: Tensor,
                   padding: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
    """Attention with a halo. Keys of several windows are copied into each, a few windows at a time, and copied anew
    for the backward pass, so that memory does not grow with the halo."""

    def attend(q: Tensor, kv: Tensor, pooled: Optional[Pair], part: KeyGroup, bias: Optional[Tensor]) -> Tensor:
        keys = part.gather(kv, padding if padding is None else padding[-kv.shape[1]:])
        heads = keys.unflatten(-1, (-1, attention.num_heads, attention.head_dim)).permute(2, 0, 3, 1, 4)
        return _attend(attention, q, *heads.unbind(0), pooled, region[part.windows], part.visible, bias)

    def most_windows(keys: int) -> int:
        most = current().keys_at_once if torch.is_grad_enabled() else current().keys_in_cache
        return max(1, min(most // keys, current().logits_at_once // (attention.num_heads * q.shape[2] * keys)))

    recompute = torch.is_grad_enabled() and len(q) > most_windows(max(group.size for group in beyond.groups))
    outs = []
    for group in beyond.groups:
        group_bias = bias
        if bias is not None and group.keys is not None:
            if group.pattern not in beyond.biases:
                beyond.biases[group.pattern] = bias.index_select(2, group.keys)
            group_bias = beyond.biases[group.pattern]
        for part in group.split(most_windows(group.size)):
            own_pooled = None if pooled is None else tuple(x[part.windows] for x in pooled)
            arguments = (q[part.windows], beyond.kv, own_pooled, part, group_bias)
            outs.append(cp.checkpoint(attend, *arguments, use_reentrant=False) if recompute else attend(*arguments))
    return torch.cat(outs)


def _attend(attention: WindowAttention, q: Tensor, k: Tensor, v: Tensor, pooled: Optional[Pair], region: Tensor,
            visible: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Attention of windows, ``(T, heads, N, d)`` each, of which the last may need a mask: ``visible (V, N, Nk)``.
    Returns ``(T, N, heads, d)``."""
    scale, rpe = attention.scale, attention.rpe
    if attention.logit_scale is not None:
        q, k = attention.scaled_cosine(q, k)
        scale = 1.
    elif rpe is not None and bias is None:
        q, scale = q * scale, 1.  # encodings see the queries scaled; the others are scaled in their products
    if rpe is not None and bias is None:
        q, k, bias = rpe(q, k, attention.geometry, region)
    own_keys = k.shape[2]
    if pooled is not None:
        k, v, bias = attention.append_pooled(q, k, v, bias, pooled)
    dropout = attention.attn_drop_rate if attention.training else 0.
    adds_values = rpe is not None and rpe.gives('values')

    def attend(part: slice, visible: Optional[Tensor]) -> Tensor:
        part_bias = bias[part] if bias is not None and bias.ndim == 4 else bias
        if not adds_values:
            return attend_windows(q[part], k[part], v[part], part_bias, visible, dropout, scale).transpose(1, 2)
        return attention_plain(q[part] * scale, k[part], v[part], part_bias, visible, dropout,
                               lambda weights: rpe.values(weights[..., :own_keys], attention.geometry)).transpose(1, 2)

    # most windows need no mask and share one bias; only the others pay for one of their own
    plain, parts = len(q) - len(visible), []
    if plain:
        parts.append(attend(slice(plain), None))
    if len(visible):
        parts.append(attend(slice(plain, None), visible))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
