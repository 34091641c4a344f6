"""Attention cell by cell: the map is cut by coordinates, nothing is rolled, and what lies outside is left out."""
import math
from typing import NamedTuple, Optional

import torch

from oracles.attention import coordinates, first_of_cell
from oracles.encodings import added_values, below, block, encode
from oracles.swin import linear

Size = tuple[int, int]


class Geometry(NamedTuple):
    """Where keys lie relative to queries, see ``oracles.encodings.places``."""
    query_size: Size
    key_size: Size
    origin: Size
    key_stride: Optional[Size] = None


def firsts(length: int, window: int, shift: int) -> list[int]:
    """First coordinate of every cell that holds a token."""
    return sorted(set(first_of_cell(torch.arange(length), window, shift).tolist()))


def tokens_of(firsts_of_cells: torch.Tensor, size: Size, span: Size, before: Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Token in each place of each cell, and whether it lies inside the map, both ``(T, N)``.

    A cell spans ``span`` tokens from ``before`` tokens in front of its first.
    """
    y, x = (first[:, None] - reach + place for first, reach, place in zip(
        firsts_of_cells.T, before, coordinates(span)))
    inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
    return torch.where(inside, y * size[1] + x, 0), inside


def cell_attention(params: dict, name: str, x: torch.Tensor, heads: int, window: Size, shift: Size, halo: Size = (0, 0),
                   rpe=None, pooled: int = 0, qk_scale: Optional[float] = None) -> torch.Tensor:
    """Self-attention of a map ``(H, W, C)`` by parameter names, with its projections; cosine if there is a logit scale.

    Args:
        params: parameters by name; those of the encoding below ``rpe.``.
        window, shift: the grid is cut at ``shift + k * window``.
        halo: a query sees the keys of its cell, grown by this on each side.
        rpe: config of the encoding.
        pooled: also the mean key and value of each other cell at most so many cells away.
    """
    h, w, channels = x.shape
    dims = channels // heads
    bias = params.get(f'{name}.qkv.bias')
    if f'{name}.q_bias' in params:
        bias = torch.cat([params[f'{name}.q_bias'], x.new_zeros(channels), params[f'{name}.v_bias']])
    qkv = torch.nn.functional.linear(x, params[f'{name}.qkv.weight'], bias)
    q, k, v = qkv.view(h * w, 3, heads, dims).permute(1, 2, 0, 3)  # (heads, H * W, d)

    def normed(t):
        return t / t.norm(dim=-1, keepdim=True).clamp(min=1e-12) if f'{name}.logit_scale' in params else t

    if f'{name}.logit_scale' in params:
        q = normed(q) * params[f'{name}.logit_scale'].clamp(max=math.log(100)).exp()
    else:
        q = q * (qk_scale or dims**-0.5)

    cells = torch.cartesian_prod(*(torch.tensor(firsts(*axis)) for axis in zip((h, w), window, shift)))
    key_size = (window[0] + 2 * halo[0], window[1] + 2 * halo[1])
    queries, real = tokens_of(cells, (h, w), window, (0, 0))
    keys, key_real = tokens_of(cells, (h, w), key_size, halo)

    def gathered(t, index, inside):  # (heads, H * W, d) -> (T, heads, N, d)
        return (t[:, index] * inside[..., None]).transpose(0, 1)

    cell_q = gathered(q, queries, real)
    cell_k, cell_v = gathered(normed(k), keys, key_real), gathered(v, keys, key_real)
    geometry = Geometry(window, key_size, (-halo[0], -halo[1]))
    encoding = below(params, f'{name}.rpe.')
    bias = None
    if rpe is not None:
        cell_q, cell_k, bias = encode(rpe, encoding, cell_q, cell_k, geometry, window, key_size,
                                      torch.where(real, 0, -1))
    logits = cell_q @ cell_k.transpose(-2, -1)
    logits = logits if bias is None else logits + bias
    logits = logits.masked_fill(~key_real[:, None, None], float('-inf'))
    if pooled:
        mean_k, mean_v = (gathered(t, queries, real).sum(2) / real.sum(1)[:, None, None] for t in (k, v))
        pooled_logits, pooled_v = pooled_neighbours(cell_q, normed(mean_k), mean_v, cells, window, pooled,
                                                    params[f'{name}.pooled_rpe.relative_position_bias_table'])
        logits = torch.cat([logits, pooled_logits], dim=-1)
    weights = logits.softmax(-1)
    out = weights[..., :keys.shape[1]] @ cell_v
    if pooled:
        out = out + (weights[..., keys.shape[1]:, None] * pooled_v[:, :, None]).sum(-2)
    if rpe is not None:
        added = added_values(rpe, encoding, weights[..., :keys.shape[1]], geometry)
        out = out if added is None else out + added

    flat = out.transpose(1, 2)[real]  # (tokens, heads, d), cell after cell
    home = torch.empty(h * w, dtype=torch.long)
    home[queries[real]] = torch.arange(h * w)
    return linear(params, f'{name}.proj', flat[home].reshape(h, w, channels))


def pooled_neighbours(q, mean_k, mean_v, cells, window: Size, reach: int, rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits ``(T, heads, N, P)`` of the cells around each, -inf where there is none, and their values
    ``(T, heads, P, d)``.

    Args:
        q: ``(T, heads, N, d)``.
        mean_k, mean_v: ``(T, heads, d)``.
        cells: first coordinates, ``(T, 2)``.
        rows: the block encoding's table.
    """
    steps = [(dy, dx) for dy in range(-reach, reach + 1) for dx in range(-reach, reach + 1)]
    at_centre = Geometry(window, (2 * reach + 1, ) * 2, tuple(side // 2 - reach * side for side in window), window)
    bias = block(rows, at_centre, window, reach, 'clip', 4, 32)  # (heads, N, steps)
    number = {tuple(first): t for t, first in enumerate(cells.tolist())}
    logits, values = [], []
    for step, (dy, dx) in enumerate(steps):
        if dy == dx == 0:
            continue
        there = [number.get((y + dy * window[0], x + dx * window[1]), -1) for y, x in cells.tolist()]
        exists = torch.tensor([t >= 0 for t in there])
        logit = (q * mean_k[there][:, :, None]).sum(-1) + bias[..., step]
        logits.append(logit.masked_fill(~exists[:, None, None], float('-inf')))
        values.append(mean_v[there] * exists[:, None, None])
    return torch.stack(logits, dim=-1), torch.stack(values, dim=2)
