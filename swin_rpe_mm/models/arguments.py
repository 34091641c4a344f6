"""All checks of SwinRPE's arguments, each failing with one sentence, and the arguments in their full form."""
import difflib
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

from ..errors import InputError
from ..executors.backends import BACKENDS
from ..rpe import RPEConfig, check_rpe, rpe_of_stage

Size = Tuple[int, int]

# embed_dims, depths, num_heads. tiny to large are arXiv 2103.14030, section 3.3, and v2-* arXiv 2111.09883, which has
# the same sizes; nano is ours, for CPUs and tests
ARCHS = {
    'nano': (32, (2, 2, 2, 2), (1, 2, 4, 8)),
    'tiny': (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    'small': (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    'base': (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    'large': (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}
ARCHS.update({f'v2-{name}': sizes for name, sizes in ARCHS.items()})


@dataclass(frozen=True)
class Arguments:
    """Checked arguments: one entry per stage where a stage has its own."""
    embed_dims: int
    depths: Tuple[int, ...]
    num_heads: Tuple[int, ...]
    window_sizes: Tuple[Size, ...]
    halos: Tuple[Size, ...]
    rpes: Tuple[RPEConfig, ...]
    swin_v2: bool
    shift_covered_axes: bool
    patch_size: Size
    merge_strides: Tuple[Size, ...]
    pretrain_size: Size
    out_indices: Tuple[int, ...]

    @property
    def num_features(self) -> Tuple[int, ...]:
        """Channels of each stage."""
        return tuple(self.embed_dims * 2**i for i in range(len(self.depths)))


def check_arguments(arch: str, embed_dims: Optional[int], depths: Optional[Sequence[int]],
                    num_heads: Optional[Sequence[int]], window_size, patch_size, strides: Sequence,
                    pretrain_img_size, out_indices: Sequence[int], rpe: Any, attn_backend: str, drop_path_rate: float,
                    frozen_stages: int, in_channels: int, mlp_ratio: float, halo: Any, pooled_neighbours: int,
                    shift_covered_axes: Optional[bool], use_abs_pos_embed: Any) -> Arguments:
    """Fill in what ``arch`` stands for, and check that everything fits together.

    Raises:
        InputError: Naming the argument, what it was, and what is allowed.
    """
    _one_of('arch', arch, ARCHS)
    _one_of('attn_backend', attn_backend, BACKENDS)
    swin_v2 = arch.startswith('v2-')
    if rpe == 'default':
        rpe = dict(type='LogCPB' if swin_v2 else 'TableRPE')
    check_rpe(rpe)
    preset = ARCHS[arch]
    embed_dims = preset[0] if embed_dims is None else embed_dims
    depths = tuple(preset[1] if depths is None else depths)
    num_heads = tuple(preset[2] if num_heads is None else num_heads)
    stages = len(depths)

    for name, value in (('embed_dims', embed_dims), ('in_channels', in_channels), ('mlp_ratio', mlp_ratio)):
        if value <= 0:
            raise InputError(f'{name} must be positive, got {value}')
    for name, value in (('depths', depths), ('num_heads', num_heads), ('strides', tuple(strides))):
        if len(value) != stages:
            raise InputError(f'{name} must have one entry per stage, {stages} as depths has, got {value}')
    if not depths or min(depths) < 1:
        raise InputError(f'depths must be positive numbers of blocks, got {depths}')
    for stage, heads in enumerate(num_heads):
        channels = embed_dims * 2**stage
        if heads < 1 or channels % heads:
            raise InputError(f'num_heads[{stage}]={heads} does not divide the {channels} channels of stage {stage}')
    if not 0 <= drop_path_rate < 1:
        raise InputError(f'drop_path_rate must be in [0, 1), got {drop_path_rate}')
    if not -1 <= frozen_stages <= stages:
        raise InputError(f'frozen_stages must be from -1 (none) to {stages} (all stages), got {frozen_stages}')
    out_indices = tuple(out_indices)
    if not out_indices or len(set(out_indices)) < len(out_indices) or not set(out_indices) <= set(range(stages)):
        raise InputError(f'out_indices must be different stages from 0 to {stages - 1}, at least one, got '
                         f'{out_indices}')
    if not isinstance(pooled_neighbours, int) or pooled_neighbours < 0:
        raise InputError(f'pooled_neighbours must be a number of windows, 0 or more, got {pooled_neighbours!r}')
    if use_abs_pos_embed not in (True, False, 'window'):
        raise InputError(f"use_abs_pos_embed must be True, False or 'window', got {use_abs_pos_embed!r}")
    patch_size = as_pair('patch_size', patch_size)
    strides = tuple(as_pair('strides', stride) for stride in strides)
    if strides[0] != patch_size:
        raise InputError(f'strides[0] must be the patch size {patch_size}, since patches do not overlap, got '
                         f'{strides[0]}')
    if window_size is None:
        window_size = 8 if swin_v2 else 7
    windows = per_stage('window_size', window_size, stages)
    return Arguments(
        embed_dims=embed_dims,
        depths=depths,
        num_heads=num_heads,
        window_sizes=windows,
        halos=halos_of(halo, windows),
        rpes=tuple(rpe_of_stage(rpe, stage, stages) for stage in range(stages)),
        swin_v2=swin_v2,
        shift_covered_axes=not swin_v2 if shift_covered_axes is None else shift_covered_axes,
        patch_size=patch_size,
        merge_strides=strides[1:],
        pretrain_size=as_pair('pretrain_img_size', pretrain_img_size),
        out_indices=out_indices)


def as_pair(name: str, value: Any, least: int = 1) -> Size:
    """An int or a pair as ``(h, w)``; both sides must be integers from ``least`` on."""
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else ()
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or not all(isinstance(side, int) and side >= least for side in pair):
        kind = 'positive integer' if least else 'non-negative integer'
        raise InputError(f'{name} must be a {kind} or a pair (height, width) of them, got {value!r}')
    return pair


def per_stage(name: str, value: Any, stages: int, least: int = 1) -> Tuple[Size, ...]:
    """A pair of ints in a tuple is one rectangle; a list has one entry per stage."""
    if not isinstance(value, list):
        return (as_pair(name, value, least), ) * stages
    if len(value) == stages:
        return tuple(as_pair(name, entry, least) for entry in value)
    if len(value) == 2 and all(isinstance(side, int) for side in value):  # a pair read from JSON or YAML
        return (as_pair(name, value, least), ) * stages
    raise InputError(f'{name} as a list must have one entry per stage, {stages}, got {value}')


def halos_of(halo: Any, windows: Tuple[Size, ...]) -> Tuple[Size, ...]:
    """The halo of each stage; ``'window'`` is as wide as the window."""
    if halo == 'window':
        return windows
    if isinstance(halo, str):
        raise InputError(f"halo must be 'window', a number of tokens, a pair or a list per stage, got {halo!r}")
    return per_stage('halo', halo, len(windows), least=0)


def _one_of(name: str, value: Any, allowed) -> None:
    if value in allowed:
        return
    close = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f' (did you mean {close[0]!r}?)' if close else ''
    raise InputError(f'{name} must be one of {", ".join(allowed)}; got {value!r}{hint}')
