"""Everything that a Swin is built from, checked: each mistake gives one sentence."""
import difflib
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Tuple, Union

from ..errors import InputError
from ..registry import WINDOWS
from ..rpe import check_rpe, rpe_of_stage
from .embeddings import INPUT_MODES

Size = Tuple[int, int]
IntOrPair = Union[int, Size]
BACKENDS = ('sdpa', 'eager')

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
class SwinConfig:
    """The arguments of :class:`swin_rpe_mm.SwinRPE`, which documents them, by the same names.

    Once made, everything is in its full form: ``embed_dims``, ``depths`` and ``num_heads`` are those of ``arch`` where
    they were None; ``window_size``, ``halo`` and ``rpe`` have one entry per stage; sizes are pairs.

    Raises:
        InputError: Naming the argument, what it was, and what is allowed.
    """
    # Any: given in one form, kept in another
    arch: str = 'tiny'
    rpe: Any = 'default'
    mask_padding: bool = True
    window_size: Any = None
    windows: Any = None
    halo: Any = 0
    pooled_neighbours: int = 0
    shift_windows: bool = True
    shift_covered_axes: Any = None
    attn_backend: str = 'sdpa'
    pretrain_img_size: Any = 224
    in_channels: int = 3
    embed_dims: Any = None
    patch_size: Any = 4
    mlp_ratio: float = 4
    depths: Any = None
    num_heads: Any = None
    strides: Any = (4, 2, 2, 2)
    out_indices: Sequence[int] = (0, 1, 2, 3)
    qkv_bias: bool = True
    qk_scale: Optional[float] = None
    patch_norm: bool = True
    drop_rate: float = 0.
    attn_drop_rate: float = 0.
    drop_path_rate: float = 0.1
    use_abs_pos_embed: Union[bool, str] = False
    act_cfg: Optional[dict] = None
    norm_cfg: Optional[dict] = None
    input_weights: Optional[str] = None
    with_cp: bool = False
    frozen_stages: int = -1
    halo_follows: bool = field(init=False, default=False)  # the halo is as wide as the window, and changes with it

    def __post_init__(self) -> None:
        one_of('arch', self.arch, ARCHS)
        one_of('attn_backend', self.attn_backend, BACKENDS)
        if self.input_weights not in (None, *INPUT_MODES):
            raise InputError(f'input_weights must be None or one of {", ".join(INPUT_MODES)}, got '
                             f'{self.input_weights!r}')
        for name, preset in zip(('embed_dims', 'depths', 'num_heads'), ARCHS[self.arch]):
            self._fill(name, preset)
        for name in ('depths', 'num_heads', 'strides', 'out_indices'):
            self._set(name, tuple(getattr(self, name)))
        self._check_numbers()
        self._fill('window_size', 8 if self.is_v2 else 7)
        self._fill('shift_covered_axes', not self.is_v2)
        self._fill('norm_cfg', dict(type='LN'))
        self._check_sizes()
        self._check_windows()
        if self.rpe == 'default':
            self._set('rpe', dict(type='LogCPB' if self.is_v2 else 'TableRPE'))
        check_rpe(self.rpe)
        self._set('rpe', tuple(rpe_of_stage(self.rpe, stage, self.stages) for stage in range(self.stages)))

    @property
    def is_v2(self) -> bool:
        """Whether this is SwinV2: cosine attention, and norms after the branches."""
        return self.arch.startswith('v2-')

    @property
    def stages(self) -> int:
        return len(self.depths)

    @property
    def num_features(self) -> Tuple[int, ...]:
        """Channels of each stage."""
        return tuple(self.embed_dims * 2**i for i in range(self.stages))

    @property
    def pos_embed_size(self) -> Size:
        """Height and width of the absolute position embedding in tokens."""
        return tuple(side // patch for side, patch in zip(self.pretrain_img_size, self.patch_size))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _fill(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            self._set(name, value)

    def _check_numbers(self) -> None:
        for name in ('embed_dims', 'in_channels', 'mlp_ratio'):
            if getattr(self, name) <= 0:
                raise InputError(f'{name} must be positive, got {getattr(self, name)}')
        for name in ('depths', 'num_heads', 'strides'):
            if len(getattr(self, name)) != self.stages:
                raise InputError(f'{name} must have one entry per stage, {self.stages} as depths has, got '
                                 f'{getattr(self, name)}')
        if not self.depths or min(self.depths) < 1:
            raise InputError(f'depths must be positive numbers of blocks, got {self.depths}')
        for stage, (heads, channels) in enumerate(zip(self.num_heads, self.num_features)):
            if heads < 1 or channels % heads:
                raise InputError(f'num_heads[{stage}]={heads} does not divide the {channels} channels of stage {stage}')
        if not 0 <= self.drop_path_rate < 1:
            raise InputError(f'drop_path_rate must be in [0, 1), got {self.drop_path_rate}')
        if not -1 <= self.frozen_stages <= self.stages:
            raise InputError(f'frozen_stages must be from -1 (none) to {self.stages} (all stages), got '
                             f'{self.frozen_stages}')
        outs = self.out_indices
        if not outs or len(set(outs)) < len(outs) or not set(outs) <= set(range(self.stages)):
            raise InputError(f'out_indices must be different stages from 0 to {self.stages - 1}, at least one, got '
                             f'{outs}')
        if not isinstance(self.pooled_neighbours, int) or self.pooled_neighbours < 0:
            raise InputError('pooled_neighbours must be a number of windows, 0 or more, got '
                             f'{self.pooled_neighbours!r}')
        if self.use_abs_pos_embed not in (True, False, 'window'):
            raise InputError(f"use_abs_pos_embed must be True, False or 'window', got {self.use_abs_pos_embed!r}")

    def _check_sizes(self) -> None:
        for name in ('patch_size', 'pretrain_img_size'):
            self._set(name, as_pair(name, getattr(self, name)))
        self._set('strides', tuple(as_pair('strides', stride) for stride in self.strides))
        if self.strides[0] != self.patch_size:
            raise InputError(f'strides[0] must be the patch size {self.patch_size}, since patches do not overlap, got '
                             f'{self.strides[0]}')
        self._set('window_size', per_stage('window_size', self.window_size, self.stages))
        self._set('halo_follows', self.halo == 'window')
        self._set('halo', halos_of(self.halo, self.window_size))

    def _check_windows(self) -> None:
        """A kind of windows per stage; pooled neighbours want windows that have one place among the others."""
        default = dict(type='PaddedWindows' if self.pooled_neighbours else 'ShiftedWindows')
        kinds = default if self.windows is None else self.windows
        kinds = list(kinds) if isinstance(kinds, (list, tuple)) else [kinds] * self.stages
        if len(kinds) != self.stages:
            raise InputError(f'windows as a list must have one entry per stage, {self.stages}, got {self.windows}')
        kinds = [default if kind is None else kind for kind in kinds]
        for kind in kinds:
            if not isinstance(kind, dict) or not isinstance(kind.get('type'), str):
                raise InputError("windows must be None, a dict with a type, such as dict(type='ShiftedWindows'), or a "
                                 f'list of these, got {self.windows!r}')
            one_of('type of windows', kind['type'], sorted(WINDOWS.module_dict))
            if self.pooled_neighbours and kind['type'] == 'ShiftedWindows':
                raise InputError('pooled_neighbours want windows that do not wrap around: leave windows out, or give '
                                 "dict(type='PaddedWindows')")
        self._set('windows', tuple(kinds))


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


def one_of(name: str, value: Any, allowed) -> None:
    if value in allowed:
        return
    close = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f' (did you mean {close[0]!r}?)' if close else ''
    raise InputError(f'{name} must be one of {", ".join(allowed)}; got {value!r}{hint}')
