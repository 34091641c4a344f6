"""Encodings and windows that the tests run over."""
from typing import NamedTuple, Optional

import torch
from oracles.cases import pixels

from swin_rpe_mm.rpe import build_rpe
from swin_rpe_mm.windows import WindowGeometry

HEADS, HEAD_DIM, WINDOWS = 2, 12, 2

TABLES = {
    'table': dict(type='TableRPE'),
    'low rank': dict(type='LowRankRPE'),
    'low rank 1': dict(type='LowRankRPE', rank=1),
    'decomposed': dict(type='DecomposedRPE'),
}
BUCKETS = {
    f'{form} {join}': dict(type='LogBucketRPE', form=form, join=join)
    for form in ('sign_log', 't5', 'piecewise') for join in ('product', 'cross', 'euclidean')
} | {
    'bucket': dict(type='LogBucketRPE'),
    'sign_log of 3': dict(type='LogBucketRPE', num_buckets=3, max_distance=6),
    't5 of 8': dict(type='LogBucketRPE', form='t5', num_buckets=8, max_distance=9),
    't5 of 6': dict(type='LogBucketRPE', form='t5', join='cross', num_buckets=6, max_distance=9),
    't5 of 5, distance': dict(type='LogBucketRPE', form='t5', join='euclidean', num_buckets=5, max_distance=9),
    'piecewise of 1': dict(type='LogBucketRPE', form='piecewise', join='cross', ratio=1.),
    'piecewise of 2.6': dict(type='LogBucketRPE', form='piecewise', ratio=2.6),
}
CONTEXTUAL = {
    'contextual': dict(type='ContextualRPE'),
    'contextual q': dict(type='ContextualRPE', on='q', form='sign_log', num_buckets=3, max_distance=6),
    'contextual q, t5': dict(type='ContextualRPE', on='q', form='t5', join='cross', shared_heads=False),
    'contextual v': dict(type='ContextualRPE', on='v', join='cross'),
    'contextual v, heads': dict(type='ContextualRPE', on='v', form='t5', join='euclidean', shared_heads=False),
    'contextual qk': dict(type='ContextualRPE', on='qk', join='euclidean'),
    'contextual kv, heads': dict(type='ContextualRPE', on='kv', shared_heads=False, ratio=1.),
    'contextual qkv': dict(type='ContextualRPE', on='qkv', form='sign_log', join='cross'),
    'contextual qkv, heads': dict(type='ContextualRPE', on='qkv', shared_heads=False),
}
FUNCTIONS = {
    'clipped': dict(type='ClippedRPE'),
    'clipped to 1': dict(type='ClippedRPE', max_distance=1),
    'log cpb': dict(type='LogCPB', hidden_dims=16),
    'linear cpb': dict(type='LogCPB', hidden_dims=16, log=False),
    'log cpb of 7': dict(type='LogCPB', hidden_dims=16, pretrained_window_size=7),
    'log cpb of 1': dict(type='LogCPB', hidden_dims=16, pretrained_window_size=1),
    'log cpb of 0': dict(type='LogCPB', hidden_dims=16, pretrained_window_size=0),
    'block': dict(type='BlockRPE'),
    'block of 1': dict(type='BlockRPE', max_blocks=1, num_buckets=2, max_distance=3),
    'block log': dict(type='BlockRPE', max_blocks=3, block_form='log'),
    'rotary': dict(type='RotaryRPE'),
    'axial': dict(type='RotaryRPE', mode='axial'),
    'axial of 100': dict(type='RotaryRPE', mode='axial', theta=100.),
}
TWO_AXES = {
    'clipped to 1, 2': dict(type='ClippedRPE', max_distance=[1, 2]),
    'log cpb of 7, 1': dict(type='LogCPB', hidden_dims=16, pretrained_window_size=(7, 1)),
}
WRAPPED_TABLES = {
    'dynamic': dict(type='DynamicRPE'),
    'dynamic of two': dict(type='DynamicRPE', hidden_dims=5, rpe=[dict(type='RotaryRPE'), dict(type='DecomposedRPE')]),
    'table, contextual': [dict(type='TableRPE'), dict(type='ContextualRPE', on='qkv')],
    'rotary, decomposed': [dict(type='RotaryRPE'), dict(type='DecomposedRPE')],
    'decomposed, rotary': [dict(type='DecomposedRPE'), dict(type='RotaryRPE', mode='axial')],
}
WRAPPED_FUNCTIONS = {
    'dynamic cpb': dict(type='DynamicRPE', rpe=dict(type='LogCPB', hidden_dims=16)),
    'dynamic contextual': dict(type='DynamicRPE', hidden_dims=5, rpe=dict(type='ContextualRPE', on='kv')),
    'two contextuals': [dict(type='ContextualRPE', on='v'), dict(type='ContextualRPE', on='qv', join='cross')],
    'three': [dict(type='RotaryRPE', mode='axial'), dict(type='DynamicRPE', rpe=dict(type='BlockRPE')),
              dict(type='LogBucketRPE', join='cross')],
}
ANY_OFFSET = BUCKETS | CONTEXTUAL | FUNCTIONS | TWO_AXES | WRAPPED_FUNCTIONS
ENCODINGS = TABLES | ANY_OFFSET | WRAPPED_TABLES


class Made(NamedTuple):
    """The windows that an encoding is made for, and those that it is called with, by default the same."""
    window: tuple[int, ...]
    key_size: tuple[int, ...]
    geometry: Optional[WindowGeometry] = None

    def called(self) -> WindowGeometry:
        if self.geometry is not None:
            return self.geometry
        halo = tuple((wk - wq) // 2 for wq, wk in zip(self.window, self.key_size))
        return WindowGeometry(self.window, self.key_size, tuple(-h for h in halo))


OWN_WINDOWS = {
    'square': Made((3, 3), (3, 3)),
    'rectangular': Made((2, 4), (2, 4)),
    'halo': Made((2, 3), (4, 7)),
    'fewer keys': Made((4, 3), (2, 1)),
    'odd difference': Made((3, 2), (4, 5)),
    'one token': Made((1, 1), (1, 1)),
    'one axis': Made((5, ), (5, )),
    'one axis, halo': Made((3, ), (9, )),
    'three axes': Made((2, 1, 3), (2, 3, 3)),
    'smaller': Made((4, 3), (6, 5), WindowGeometry((2, 3), (4, 5), (-1, -1))),
    'smaller, off centre': Made((4, 4), (4, 4), WindowGeometry((2, 1), (2, 3), (1, -3))),
    'every second key': Made((4, 4), (4, 4), WindowGeometry((2, 2), (2, 2), (0, -1), (2, 3))),
}
FAR_WINDOWS = {
    'pooled': Made((3, 2), (3, 2), WindowGeometry.pooled((3, 2), 1)),
    'pooled, one axis': Made((4, ), (4, ), WindowGeometry.pooled((4, ), 3)),
    'far': Made((3, 3), (3, 3), WindowGeometry((3, 3), (2, 2), (-40, 17), (1, 60))),
    'longer': Made((3, 2), (3, 2), WindowGeometry((5, 3), (5, 3), (0, 0))),
}
COMBINATIONS = [(name, where) for where, made in (OWN_WINDOWS | FAR_WINDOWS).items()
                for name in (ANY_OFFSET if where in FAR_WINDOWS else ENCODINGS)
                if name not in TWO_AXES or len(made.window) == 2]


def built(name: str, made: Made, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.nn.Module:
    """An encoding whose every parameter matters."""
    rpe = build_rpe(ENCODINGS[name], num_heads=HEADS, window_size=made.window, key_size=made.key_size,
                    head_dim=HEAD_DIM)
    return drawn(rpe, seed).to(dtype)


def drawn(rpe: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Noise for every parameter, of a size that keeps outputs around 1."""
    for i, (name, parameter) in enumerate(rpe.named_parameters()):
        scale = parameter.shape[-1]**-0.5 if 'mlp' in name and parameter.ndim == 2 else 0.5
        parameter.data = scale * pixels(*parameter.shape, seed=100 * seed + i)
    return rpe


def tokens(geometry: WindowGeometry, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple:
    """Queries and keys ``(T, heads, N, d)``."""
    sizes = (torch.Size(size).numel() for size in (geometry.query_size, geometry.key_size))
    q, k = (pixels(WINDOWS, HEADS, n, HEAD_DIM, seed=100 * seed + 50 + i) for i, n in enumerate(sizes))
    return q.to(dtype), k.to(dtype)


def regions(geometry: WindowGeometry, seed: int = 0) -> torch.Tensor:
    """Regions ``(T, Nq)`` long, -1 for padding."""
    shape = (WINDOWS, torch.Size(geometry.query_size).numel())
    return torch.randint(-1, 4, shape, generator=torch.Generator().manual_seed(seed))
