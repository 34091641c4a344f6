"""Every position encoding pair by pair: plain coordinates, offsets by subtraction, one small formula each."""
import itertools
import math
from typing import Callable, Optional, Sequence

import torch
from torch import Tensor

Place = tuple[int, ...]


def places(geometry) -> tuple[list[Place], list[Place]]:
    """Coordinates of the queries and of the keys, the last axis fastest, the first query at 0."""
    steps = geometry.key_stride or (1, ) * len(geometry.key_size)
    queries = list(itertools.product(*(range(length) for length in geometry.query_size)))
    keys = [tuple(first + step * c for first, step, c in zip(geometry.origin, steps, place))
            for place in itertools.product(*(range(length) for length in geometry.key_size))]
    return queries, keys


def over_pairs(geometry, value: Callable) -> Tensor:
    """``value(i, j, offset)`` of every query i and key j, as ``(..., Nq, Nk)``."""
    queries, keys = places(geometry)
    rows = [torch.stack([value(i, j, tuple(a - b for a, b in zip(query, key))) for j, key in enumerate(keys)], dim=-1)
            for i, query in enumerate(queries)]
    return torch.stack(rows, dim=-2)


def joint(parts: Sequence[int], sides: Sequence[int]) -> int:
    """The row of several counters, the last fastest."""
    row = 0
    for part, side in zip(parts, sides):
        assert 0 <= part < side
        row = row * side + part
    return row


def smallest_offsets(window: Place, key_size: Place) -> list[int]:
    """The first query minus the last key, the two windows around one centre."""
    return [math.floor((wk - wq) / 2) - wk + 1 for wq, wk in zip(window, key_size)]


# ---- one number per offset ----


def table(rows: Tensor, geometry, window: Place, key_size: Place) -> Tensor:
    """Swin, 2103.14030."""
    low = smallest_offsets(window, key_size)
    sides = [wq + wk - 1 for wq, wk in zip(window, key_size)]
    return over_pairs(geometry, lambda i, j, d: rows[joint([x - least for x, least in zip(d, low)], sides)])


def clipped(rows: Tensor, geometry, reach: Sequence[int]) -> Tensor:
    """Shaw et al., 1803.02155."""
    sides = [2 * m + 1 for m in reach]
    return over_pairs(geometry,
                      lambda i, j, d: rows[joint([min(max(x, -m), m) + m for x, m in zip(d, reach)], sides)])


def low_rank(tables: Sequence[Tensor], geometry, window: Place, key_size: Place) -> Tensor:
    """Tables ``(side, heads, rank)``, one per axis."""
    low = smallest_offsets(window, key_size)

    def value(i, j, d):
        product = 1.
        for axis_table, x, least in zip(tables, d, low):
            product = product * axis_table[x - least]
        return product.sum(-1)

    return over_pairs(geometry, value)


# ---- buckets ----


def sign_log(d: int, num_buckets: int, max_distance: float) -> int:
    """``num_buckets`` of each sign, and one for 0."""
    sign = (d > 0) - (d < 0)
    bucket = round(sign * num_buckets * math.log(1 + abs(d)) / math.log(1 + max_distance))
    return min(max(bucket, -num_buckets), num_buckets) + num_buckets


def t5_distance(distance: int, num_buckets: int, max_distance: float) -> int:
    """T5, 1910.10683, with ``bidirectional=False``; in float32 where T5 is, which decides whole logarithms."""
    exact = num_buckets // 2
    if distance < exact:
        return distance
    log = torch.log(torch.tensor(float(distance), dtype=torch.float32) / exact)
    far = exact + int(log / math.log(max_distance / exact) * (num_buckets - exact))
    return min(far, num_buckets - 1)


def t5(d: int, num_buckets: int, max_distance: float) -> int:
    """T5 with ``bidirectional=True``; T5's relative position is key minus query."""
    relative, half = -d, num_buckets // 2
    return (half if relative > 0 else 0) + t5_distance(abs(relative), half, max_distance)


def piecewise(x: int, ratio: float) -> int:
    """iRPE, 2107.14222, equation 18; int() cuts towards zero."""
    alpha, beta, gamma = ratio, 2 * ratio, 8 * ratio
    if abs(x) <= alpha:
        index = round(x)
    else:
        sign = 1 if x > 0 else -1
        far = alpha + math.log(abs(x) / alpha) / math.log(gamma / alpha) * (beta - alpha)
        index = int(sign * min(beta, round(far)))
    return index + int(beta)


def bucket(d: int, form: str, options: dict) -> tuple[int, int]:
    """An offset's bucket and how many there are."""
    if form == 'sign_log':
        return sign_log(d, options['num_buckets'], options['max_distance']), 2 * options['num_buckets'] + 1
    if form == 't5':
        return t5(d, options['num_buckets'], options['max_distance']), options['num_buckets']
    return piecewise(d, options['ratio']), 2 * int(2 * options['ratio']) + 1


def rows_of(d: Place, form: str, join: str, options: dict) -> list[int]:
    """The row of an offset in each table."""
    if join == 'euclidean':
        length = round(math.sqrt(sum(x * x for x in d)))
        if form == 't5':
            return [t5_distance(length, options['num_buckets'], options['max_distance'])]
        one, count = bucket(length, form, options)
        return [one - count // 2]
    parts, counts = zip(*(bucket(x, form, options) for x in d))
    return [joint(parts, counts)] if join == 'product' else list(parts)


def log_bucket(tables: Sequence[Tensor], geometry, form: str, join: str, options: dict) -> Tensor:
    """Tables ``(rows, heads)``; one per axis where they are joined as a cross."""
    return over_pairs(geometry, lambda i, j, d: sum(rows[row] for rows, row in zip(
        tables, rows_of(d, form, join, options))))


def block(rows: Tensor, geometry, side: Place, max_blocks: int, block_form: str, num_buckets: int,
          max_distance: float) -> Tensor:
    """By the offset of the blocks, of ``side`` tokens, and the offset of the places inside of them."""
    queries, keys = places(geometry)
    axes = len(side)
    sides = [2 * max_blocks + 1] * axes + [2 * num_buckets + 1] * axes

    def value(i, j, _):
        blocks, inner = [], []
        for q, c, b in zip(queries[i], keys[j], side):
            own, other = math.floor(q / b), math.floor(c / b)
            if block_form == 'clip':
                blocks.append(min(max(own - other, -max_blocks), max_blocks) + max_blocks)
            else:
                blocks.append(sign_log(own - other, max_blocks, 8 * max_blocks))
            inner.append(sign_log((q - own * b) - (c - other * b), num_buckets, max_distance))
        return rows[joint(blocks + inner, sides)]

    return over_pairs(geometry, value)


# ---- functions of the offset ----


def log_cpb(weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, geometry, pretrained: Sequence[int],
            log: bool = True) -> Tensor:
    """Swin V2, 2111.09883, as microsoft's code scales it."""

    def value(i, j, d):
        inputs = []
        for x, window in zip(d, pretrained):
            x = 8 * x / max(window - 1, 1)
            inputs.append(math.copysign(math.log2(1 + abs(x)), x) / math.log2(8) if log else x)
        hidden = (weight_in * weight_in.new_tensor(inputs)).sum(-1) + bias_in
        return 16 / (1 + torch.exp(-(weight_out * hidden.clamp(min=0)).sum(-1)))

    return over_pairs(geometry, value)


# ---- with queries and keys ----


def contextual_logits(tables: Sequence[Tensor], vectors: Tensor, of_query: bool, geometry, form: str, join: str,
                      options: dict) -> Tensor:
    """iRPE, 2107.14222: a query's or a key's vector times that of the pair's bucket, ``(T, heads, Nq, Nk)``.

    Args:
        tables: ``(heads or 1, rows, d)`` each.
        vectors: ``(T, heads, N, d)``, of the queries or, scaled, of the keys.
    """
    return over_pairs(geometry, lambda i, j, d: sum(
        (vectors[:, :, i if of_query else j] * rows[:, row]).sum(-1)
        for rows, row in zip(tables, rows_of(d, form, join, options))))


def contextual_values(tables: Sequence[Tensor], weights: Tensor, geometry, form: str, join: str,
                      options: dict) -> Tensor:
    """What the buckets add to the output, ``(T, heads, Nq, d)``."""
    each = over_pairs(geometry, lambda i, j, d: weights[:, :, i, j, None] * sum(
        rows[:, row] for rows, row in zip(tables, rows_of(d, form, join, options))))
    return each.sum(-1).transpose(-2, -1)


def decomposed(tables: Sequence[Tensor], q: Tensor, geometry, window: Place, key_size: Place) -> Tensor:
    """MViTv2, 2112.01526: tables ``(side, d)``, one per axis."""
    low = smallest_offsets(window, key_size)
    return over_pairs(geometry, lambda i, j, d: sum(
        (q[:, :, i] * rows[x - least]).sum(-1) for rows, x, least in zip(tables, d, low)))


def rotated(vectors: Tensor, at: list[Place], theta: float, freqs: Optional[Tensor] = None) -> Tensor:
    """RoPE-ViT, 2403.13298: adjacent channels turned by an angle that is linear in the coordinates.

    Args:
        vectors: ``(T, heads, N, d)``.
        at: Coordinates of the N slots.
        theta: Base of the fixed frequencies, axis after axis.
        freqs: ``(axes, heads, d / 2)`` learnt ones.
    """
    heads, dims = vectors.shape[1], vectors.shape[-1]
    axes = len(at[0])
    slots = []
    for n, place in enumerate(at):
        channels = []
        for pair in range(dims // 2):
            if freqs is None:
                axis, t = divmod(pair, dims // 2 // axes)
                angle = vectors.new_full((heads, ), place[axis] * theta**(-2 * axes * t / dims))
            else:
                angle = sum(c * freqs[axis, :, pair] for axis, c in enumerate(place))
            even, odd = vectors[:, :, n, 2 * pair], vectors[:, :, n, 2 * pair + 1]
            channels += [even * torch.cos(angle) - odd * torch.sin(angle),
                         even * torch.sin(angle) + odd * torch.cos(angle)]
        slots.append(torch.stack(channels, dim=-1))
    return torch.stack(slots, dim=-2)


def window_scale(q: Tensor, region: Optional[Tensor], weight_in: Tensor, bias_in: Tensor, weight_out: Tensor,
                 bias_out: Tensor) -> Tensor:
    """Factor of every query's biases, ``(T, heads, Nq)``, from the mean query of its region."""
    windows = []
    for t in range(len(q)):
        slots = []
        for i in range(q.shape[2]):
            own = [n for n in range(q.shape[2]) if region is None or region[t, n] == region[t, i]]
            mean = torch.cat([sum(q[t, head, n] for n in own) / len(own) for head in range(q.shape[1])])
            hidden = ((weight_in * mean).sum(-1) + bias_in).clamp(min=0)
            slots.append(2 / (1 + torch.exp(-(weight_out * hidden).sum(-1) - bias_out)))
        windows.append(torch.stack(slots, dim=-1))
    return torch.stack(windows)


# ---- by config ----

BUCKET_DEFAULTS = {'sign_log': dict(num_buckets=6, max_distance=32), 't5': dict(num_buckets=32, max_distance=128),
                   'piecewise': dict(ratio=1.9)}


def per_axis(value, axes: int) -> tuple:
    """One for all axes, or one for each."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value, ) * axes


def below(params: dict, prefix: str) -> dict:
    """Parameters of a part by their names inside of it."""
    return {name[len(prefix):]: value for name, value in params.items() if name.startswith(prefix)}


def in_order(params: dict, name: str) -> list[Tensor]:
    """A single table, or a list of them."""
    return [params[name]] if name in params else list(below(params, f'{name}s.').values())


def bucket_options(form: str, given: dict) -> dict:
    return {name: given.get(name, value) for name, value in BUCKET_DEFAULTS[form].items()}


def encode(config, params: dict, q: Tensor, k: Tensor, geometry, window: Place, key_size: Place,
           region: Optional[Tensor] = None) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """What an encoding makes of queries and keys, and its bias.

    Args:
        config: As of ``rpe=``: a dict, or a list of them.
        params: Named parameters of the encoding.
        q, k: ``(T, heads, Nq or Nk, d)``.
        geometry: Where they lie.
        window, key_size: Those that the encoding was made for.
        region: ``(T, Nq)``.
    """
    if isinstance(config, list):
        total = None
        for i, part in enumerate(config):
            q, k, bias = encode(part, below(params, f'encodings.{i}.'), q, k, geometry, window, key_size, region)
            total = bias if total is None else total if bias is None else total + bias
        return q, k, total

    options = dict(config)
    kind, axes = options.pop('type'), len(window)
    if kind == 'RotaryRPE':
        queries, keys = places(geometry)
        theta, freqs = options.get('theta', 10.), params.get('freqs')
        return rotated(q, queries, theta, freqs), rotated(k, keys, theta, freqs), None
    if kind == 'DynamicRPE':
        inner = options.get('rpe', dict(type='TableRPE'))
        scale = window_scale(q, region, *(params[f'scale_mlp.{name}'] for name in (
            '0.weight', '0.bias', '2.weight', '2.bias')))
        q, k, bias = encode(inner, below(params, 'inner.'), q, k, geometry, window, key_size, region)
        return q, k, scale[..., None] * bias
    if kind == 'ContextualRPE':
        form, join = options.get('form', 'piecewise'), options.get('join', 'product')
        bias = None
        for letter, vectors in (('k', q), ('q', k * k.shape[-1]**-0.5)):
            if letter in options.get('on', 'k'):
                logits = contextual_logits(of_heads(params, letter), vectors, letter == 'k', geometry, form, join,
                                           bucket_options(form, options))
                bias = logits if bias is None else bias + logits
        return q, k, bias

    rows = params.get('relative_position_bias_table')
    tables = in_order(params, 'relative_position_bias_table')
    if kind == 'TableRPE':
        bias = table(rows, geometry, window, key_size)
    elif kind == 'ClippedRPE':
        bias = clipped(rows, geometry, per_axis(options.get('max_distance', 8), axes))
    elif kind == 'LogBucketRPE':
        form = options.get('form', 'sign_log')
        bias = log_bucket(tables, geometry, form, options.get('join', 'product'), bucket_options(form, options))
    elif kind == 'BlockRPE':
        bias = block(rows, geometry, window, options.get('max_blocks', 2), options.get('block_form', 'clip'),
                     options.get('num_buckets', 4), options.get('max_distance', 32))
    elif kind == 'LowRankRPE':
        bias = low_rank(tables, geometry, window, key_size)
    elif kind == 'DecomposedRPE':
        bias = decomposed(tables, q, geometry, window, key_size)
    else:
        assert kind == 'LogCPB', kind
        pretrained = [given or own for given, own in zip(
            per_axis(options.get('pretrained_window_size'), axes), window)]
        bias = log_cpb(params['cpb_mlp.0.weight'], params['cpb_mlp.0.bias'], params['cpb_mlp.2.weight'], geometry,
                       pretrained, options.get('log', True))
    return q, k, bias


def of_heads(params: dict, letter: str) -> list[Tensor]:
    """Tables of a contextual encoding as ``(heads or 1, rows, d)``."""
    return [rows[None] if rows.ndim == 2 else rows.transpose(0, 1)
            for rows in below(params, f'{letter}_tables.').values()]


def added_values(config, params: dict, weights: Tensor, geometry) -> Optional[Tensor]:
    """What an encoding adds to the output, ``(T, heads, Nq, d)``; None if it adds nothing."""
    if isinstance(config, list):
        parts = [added_values(part, below(params, f'encodings.{i}.'), weights, geometry)
                 for i, part in enumerate(config)]
        parts = [part for part in parts if part is not None]
        return sum(parts) if parts else None
    if config['type'] == 'DynamicRPE':
        return added_values(config.get('rpe', dict(type='TableRPE')), below(params, 'inner.'), weights, geometry)
    if config['type'] == 'ContextualRPE' and 'v' in config.get('on', 'k'):
        form, join = config.get('form', 'piecewise'), config.get('join', 'product')
        return contextual_values(of_heads(params, 'v'), weights, geometry, form, join, bucket_options(form, config))
    return None
