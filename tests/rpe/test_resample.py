"""An encoding in a window of another size: what changes, what stays, and that training goes on."""
import copy
import gc
import io
import pickle

import pytest
import torch
from oracles import encodings
from oracles.cases import pixels
from rpe_cases import (
    ANY_OFFSET,
    COMBINATIONS,
    ENCODINGS,
    FAR_WINDOWS,
    HEAD_DIM,
    HEADS,
    OWN_WINDOWS,
    TABLES,
    WRAPPED_TABLES,
    Made,
    built,
    drawn,
    regions,
    tokens,
)

from swin_rpe_mm import InputError
from swin_rpe_mm.rpe import (
    LogCPB,
    LowRankRPE,
    RelativePositionEncoding,
    SumRPE,
    TableRPE,
    all_offsets,
    build_rpe,
)
from swin_rpe_mm.rpe.interpolate import resize_table
from swin_rpe_mm.rpe.replacing import drop_stale_averages, replace_in_optimizer
from swin_rpe_mm.windows import WindowGeometry

MODES = ['bicubic', 'linear', 'crop', 'geometric']
WITH_TABLES = TABLES | WRAPPED_TABLES
CHANGES = {  # old query window and keys, new ones
    'larger': (Made((3, 3), (3, 3)), Made((5, 4), (5, 4))),
    'smaller': (Made((4, 5), (4, 5)), Made((2, 3), (2, 3))),
    'to one token': (Made((3, 3), (3, 3)), Made((1, 1), (1, 1))),
    'from one token': (Made((1, 1), (1, 1)), Made((2, 3), (2, 3))),
    'turned': (Made((2, 4), (2, 4)), Made((4, 2), (4, 2))),
    'halo': (Made((3, 2), (5, 6)), Made((4, 3), (6, 7))),
}


def snapshot(module) -> dict:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def encode(rpe, name, made) -> tuple:
    """The oracle's q, k and bias of an encoding in the window that it is in now."""
    q, k = tokens(made.called())
    return encodings.encode(ENCODINGS[name], dict(rpe.named_parameters()), q, k, made.called(), made.window,
                            made.key_size, regions(made.called()))


def outputs(rpe, made) -> tuple:
    return rpe(*tokens(made.called()), made.called(), regions(made.called()))


def close(one, other) -> bool:
    return all(a is None and b is None or torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other))


def build(name, made, **options):
    config = copy.deepcopy(ENCODINGS[name])
    for part in config if isinstance(config, list) else [config]:
        part.update(options)
    return drawn(build_rpe(config, num_heads=HEADS, window_size=made.window, key_size=made.key_size,
                           head_dim=HEAD_DIM), seed=1)


# ---- what stays ----


@pytest.mark.parametrize('change', sorted(CHANGES))
@pytest.mark.parametrize('name', sorted(ENCODINGS))
def test_tables_of_another_size_are_new_parameters(name, change):
    """All others stay the same objects; which are trained stays too."""
    old, new = CHANGES[change]
    rpe = built(name, old)
    before, functions = dict(rpe.named_parameters()), snapshot(rpe)
    frozen = next(iter(before), None)
    if frozen is not None:
        before[frozen].requires_grad = False
    replaced = rpe.resample(new.window)
    after = dict(rpe.named_parameters())
    assert list(before) == list(after)
    changed = [key for key in before if before[key] is not after[key]]
    assert [(id(a), id(b)) for a, b in replaced] == [(id(before[key]), id(after[key])) for key in changed]
    assert bool(changed) == (name in WITH_TABLES)
    assert all('bias_table' in key and isinstance(after[key], torch.nn.Parameter) for key in changed)
    assert all(value.requires_grad == (key != frozen) for key, value in after.items())
    assert rpe.window_size == new.window and rpe.key_size == new.key_size
    assert rpe.geometry == new.called()
    if name in ANY_OFFSET:
        assert same(functions, snapshot(rpe))
    if 'cpb' not in name:  # those keep the window of their scale, see below
        assert close(outputs(rpe, new), encode(rpe, name, new))
    for out in outputs(rpe, new):
        assert out is None or torch.isfinite(out).all()


@pytest.mark.parametrize('name, where', [
    (name, where) for where in ('halo', 'far', 'one axis', 'three axes') for name in sorted(ANY_OFFSET)
    if (name, where) in COMBINATIONS])
def test_a_function_of_the_offset_stays_that_function(name, where):
    """Buckets, networks and angles do not know the window; a block is as large as the window, so it changes."""
    made = (OWN_WINDOWS | FAR_WINDOWS)[where]
    rpe = built(name, made)
    before = outputs(rpe, made)
    window = tuple(w + 2 for w in made.window)
    for mode in MODES:
        rpe.resample(window, mode)
    after = outputs(rpe, made)
    if 'block' in name or name == 'three':
        assert close(after, encode(rpe, name, Made(window, window, made.called())))
        assert where == 'one axis' or not close(before, after)  # there, all keys are in one block either way
    else:
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(after, before))


@pytest.mark.parametrize('name', sorted(name for name in WITH_TABLES if 'rotary' not in name and 'two' not in name))
def test_a_smaller_window_reads_the_rows_of_its_offsets(name):
    """Before any resampling: as in a map that is smaller than the window. All tokens are equal here."""
    made = Made((4, 5), (6, 7))
    rpe = built(name, made)
    one = pixels(1, HEADS, 1, HEAD_DIM)

    def bias_by_offset(geometry):
        queries, keys = encodings.places(geometry)
        q, k = (one.expand(-1, -1, len(slots), -1) for slots in (queries, keys))
        bias = rpe(q, k, geometry)[2].reshape(HEADS, len(queries), len(keys))
        return {tuple(a - b for a, b in zip(query, key)): bias[:, i, j]
                for i, query in enumerate(queries) for j, key in enumerate(keys)}

    whole = bias_by_offset(made.called())
    assert len(whole) == 9 * 11
    for geometry in (WindowGeometry((2, 5), (4, 7), (-1, -1)), WindowGeometry((1, 1), (1, 1), (0, 0)),
                     WindowGeometry((3, 3), (3, 3), (0, 0)), WindowGeometry((4, 5), (1, 2), (4, 2))):
        part = bias_by_offset(geometry)
        assert all(torch.allclose(value, whole[offset], atol=1e-6) for offset, value in part.items())


# ---- what changes ----


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('old, new', [((7, 7), (9, 12)), ((7, 5), (7, 6)), ((6, ), (8, )), ((5, 4, 5), (6, 5, 7))])
def test_tables_are_read_by_offset(old, new, mode):
    """All tables of all encodings are resized as resize_table does; its own test says what that is."""
    sides = [tuple(2 * w - 1 for w in window) for window in (old, new)]
    joint, per_axis = (build_rpe(dict(type=kind), num_heads=HEADS, window_size=old, head_dim=HEAD_DIM)
                       for kind in ('TableRPE', 'DecomposedRPE'))
    for rpe in (joint, per_axis):
        drawn(rpe)
    expected = resize_table(joint.relative_position_bias_table.detach(), *sides, mode)
    expected_axes = [resize_table(table.detach(), (before, ), (after, ), mode)
                     for table, before, after in zip(per_axis.parameters(), *sides)]
    joint.resample(new, mode)
    per_axis.resample(new, mode)
    assert torch.equal(joint.relative_position_bias_table, expected)
    assert all(torch.equal(table, value) for table, value in zip(per_axis.parameters(), expected_axes))


@pytest.mark.parametrize('mode', MODES)
def test_low_rank_is_resized_as_its_whole_table(mode):
    old, new = Made((7, 6), (7, 6)), Made((9, 9), (9, 9))
    rpe, whole = built('low rank', old), built('table', old)

    def table(made):
        offsets = all_offsets(made.called()).flatten(1).T
        single = [WindowGeometry((1, 1), (1, 1), tuple(-d for d in offset)) for offset in offsets.tolist()]
        return torch.stack([rpe.bias(geometry)[:, 0, 0] for geometry in single])

    whole.relative_position_bias_table.data = table(old).detach()
    rpe.resample(new.window, mode)
    whole.resample(new.window, mode)
    assert torch.allclose(whole.relative_position_bias_table, table(new), atol=1e-5)


@pytest.mark.parametrize('name', sorted(WITH_TABLES))
def test_cropping_there_and_back(name):
    made = Made((3, 4), (5, 6))
    rpe = built(name, made)
    before = snapshot(rpe)
    rpe.resample((6, 5), 'crop')
    assert not same(snapshot(rpe), before)
    rpe.resample((3, 4), 'crop')
    assert same(snapshot(rpe), before)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('name', sorted(ENCODINGS))
def test_the_same_window_changes_nothing(name, mode):
    rpe = built(name, OWN_WINDOWS['halo'])
    before = snapshot(rpe)
    rpe.resample((2, 3), mode)
    assert same(snapshot(rpe), before) and rpe.key_size == (4, 7)


@pytest.mark.parametrize('name', sorted(WITH_TABLES))
def test_a_halo_of_another_size(name):
    rpe = built(name, OWN_WINDOWS['square'])
    before = built(name, OWN_WINDOWS['square'])
    rpe.resample((3, 3), 'crop', key_size=(5, 7))
    assert rpe.window_size == (3, 3) and rpe.key_size == (5, 7)
    assert close(outputs(rpe, OWN_WINDOWS['square']), outputs(before, OWN_WINDOWS['square']))
    made = Made((3, 3), (5, 7))
    assert close(outputs(rpe, made), encode(rpe, name, made))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_stays(dtype):
    for name in WITH_TABLES:
        rpe = built(name, OWN_WINDOWS['square'], dtype)
        rpe.resample((5, 4))
        assert all(parameter.dtype == dtype for parameter in rpe.parameters())


# ---- training goes on ----

OPTIMIZERS = {
    'sgd': lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    'adam': lambda parameters: torch.optim.Adam(parameters, lr=0.1, foreach=False),
    'adamw': lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=False),
    'adamw, foreach': lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    'adamw, fused': lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    'adamw, amsgrad': lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
}


def train_step(rpe, other, optimizer, made) -> torch.Tensor:
    optimizer.zero_grad()
    q, k, bias = outputs(rpe, made)
    parts = [out for out in (q, k, bias) if out is not None] + [other]
    loss = sum((out * pixels(*out.shape, seed=i)).square().sum() for i, out in enumerate(parts))
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize('kind', sorted(OPTIMIZERS))
@pytest.mark.parametrize('name', sorted(WITH_TABLES) + ['block', 'log cpb', 'rotary'])
def test_an_optimizer_goes_on(name, kind):
    old, new = Made((2, 3), (2, 3)), Made((3, 4), (3, 4))
    rpe, other = built(name, old), torch.nn.Parameter(pixels(3, 2))
    optimizer = OPTIMIZERS[kind]([*rpe.parameters(), other])
    kept = train_step(rpe, other, optimizer, old)  # a graph that is still alive, as the last loss usually is
    train_step(rpe, other, optimizer, old)
    replaced = rpe.resample(new.window)
    replace_in_optimizer(optimizer, replaced)
    assert bool(replaced) == (name in WITH_TABLES)
    held = [id(parameter) for group in optimizer.param_groups for parameter in group['params']]
    assert held == [id(parameter) for parameter in [*rpe.parameters(), other]]
    assert not any(parameter in optimizer.state for pair in replaced for parameter in pair)

    # twins: the new ones start anew, the others go on
    twin, twin_other = copy.deepcopy(rpe), copy.deepcopy(other)
    pairs = list(zip([*rpe.parameters(), other], [*twin.parameters(), twin_other]))
    twin_optimizer = OPTIMIZERS[kind]([b for _, b in pairs])
    for a, b in pairs:
        if a in optimizer.state:
            twin_optimizer.state[b] = copy.deepcopy(optimizer.state[a])
    before = snapshot(rpe)
    for _ in range(3):
        train_step(rpe, other, optimizer, new)
        train_step(twin, twin_other, twin_optimizer, new)
    assert torch.isfinite(kept)
    for name, value in rpe.named_parameters():
        still = value.grad is None or not value.grad.any()
        assert still or not torch.equal(value, before[name]), f'{name} does not move'
    for a, b in pairs:
        assert torch.equal(a, b)
        for key, value in optimizer.state.get(a, {}).items():
            assert not isinstance(value, torch.Tensor) or torch.equal(value, twin_optimizer.state[b][key])


def test_two_optimizers_and_a_later_one():
    rpe, other = built('table', OWN_WINDOWS['square']), torch.nn.Parameter(pixels(3, 2))
    optimizers = [OPTIMIZERS[kind]([*rpe.parameters(), other]) for kind in ('adam', 'sgd')]
    for optimizer in optimizers:
        train_step(rpe, other, optimizer, OWN_WINDOWS['square'])
    for window in ((4, 4), (2, 5)):
        replaced = rpe.resample(window)
        for optimizer in optimizers:
            replace_in_optimizer(optimizer, replaced)
        for optimizer in (*optimizers, OPTIMIZERS['adamw']([*rpe.parameters(), other])):
            for _ in range(2):
                before = rpe.relative_position_bias_table.detach().clone()
                train_step(rpe, other, optimizer, Made(window, window))
                assert not torch.equal(rpe.relative_position_bias_table, before)


def test_groups_keep_their_settings_and_an_optimizer_of_others_is_left_alone():
    rpe, other = built('low rank', OWN_WINDOWS['square']), torch.nn.Parameter(pixels(3, 2))
    first, second = rpe.parameters()
    optimizer = torch.optim.SGD([dict(params=[other, first], lr=1.), dict(params=[second], lr=2.)])
    of_others = torch.optim.SGD([other], lr=3.)
    replaced = rpe.resample((4, 4))
    for each in (optimizer, of_others):
        replace_in_optimizer(each, replaced)
    new_first, new_second = rpe.parameters()
    groups = [(group['lr'], [id(parameter) for parameter in group['params']])
              for group in (*optimizer.param_groups, *of_others.param_groups)]
    assert groups == [(1., [id(other), id(new_first)]), (2., [id(new_second)]), (3., [id(other)])]


def test_averages_of_as_many_rows():
    """(2, 4) and (4, 2) have 21 offsets each, but not the same ones."""
    rpe, other = built('table', OWN_WINDOWS['rectangular']), torch.nn.Parameter(pixels(3, 2))
    optimizer = OPTIMIZERS['adam']([*rpe.parameters(), other])
    train_step(rpe, other, optimizer, OWN_WINDOWS['rectangular'])
    replace_in_optimizer(optimizer, rpe.resample((4, 2)))
    for step in (1, 2):
        train_step(rpe, other, optimizer, Made((4, 2), (4, 2)))
        assert optimizer.state[rpe.relative_position_bias_table]['step'] == step
        assert optimizer.state[other]['step'] == step + 1


@pytest.mark.parametrize('kind', ['sgd', 'adam', 'adamw, foreach', 'adamw, amsgrad'])
def test_resume_in_another_window(kind):
    """A run's model and optimizer are loaded into a model whose window is another."""
    old, new = Made((3, 3), (3, 3)), Made((4, 5), (4, 5))
    rpe, other = built('low rank', old), torch.nn.Parameter(pixels(3, 2))
    optimizer = OPTIMIZERS[kind]([*rpe.parameters(), other])
    train_step(rpe, other, optimizer, old)
    resumed, resumed_other = built('low rank', new), torch.nn.Parameter(other.detach().clone())
    resumed_optimizer = OPTIMIZERS[kind]([*resumed.parameters(), resumed_other])
    resumed.load_state_dict(rpe.state_dict())
    resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert drop_stale_averages(resumed_optimizer) == 2
    assert list(resumed_optimizer.state) == [resumed_other]
    for _ in range(2):
        train_step(resumed, resumed_other, resumed_optimizer, new)
    if kind != 'sgd':
        assert resumed_optimizer.state[resumed_other]['step'] == 3


@pytest.mark.parametrize('kind', sorted(OPTIMIZERS))
def test_resume_in_the_same_window(kind):
    """The averages of a file are kept."""
    made = Made((4, 5), (4, 5))
    rpe, other = built('table, contextual', made), torch.nn.Parameter(pixels(3, 2))
    optimizer = OPTIMIZERS[kind]([*rpe.parameters(), other])
    for _ in range(2):
        train_step(rpe, other, optimizer, made)
    resumed, resumed_other = built('table, contextual', made, seed=1), copy.deepcopy(other)
    resumed_optimizer = OPTIMIZERS[kind]([*resumed.parameters(), resumed_other])
    resumed.load_state_dict(rpe.state_dict())
    resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert drop_stale_averages(resumed_optimizer) == 0
    for _ in range(2):
        train_step(rpe, other, optimizer, made)
        train_step(resumed, resumed_other, resumed_optimizer, made)
    for a, b in zip([*rpe.parameters(), other], [*resumed.parameters(), resumed_other]):
        assert torch.equal(a, b)


@pytest.mark.skipif(not hasattr(torch.optim, 'Adafactor'), reason='needs torch.optim.Adafactor')
def test_averages_over_rows_and_columns_are_not_stale():
    rpe, other = built('table', OWN_WINDOWS['square']), torch.nn.Parameter(pixels(3, 2))
    optimizer = torch.optim.Adafactor([*rpe.parameters(), other])
    train_step(rpe, other, optimizer, OWN_WINDOWS['square'])
    assert drop_stale_averages(optimizer) == 0
    replaced = rpe.resample((4, 4))
    (old, new), = replaced
    optimizer.param_groups[0]['params'] = [new, other]  # as after a resume
    optimizer.state[new] = optimizer.state.pop(old)
    assert drop_stale_averages(optimizer) == 1
    train_step(rpe, other, optimizer, Made((4, 4), (4, 4)))


def test_new_tables_have_no_gradients():
    rpe = built('table, contextual', OWN_WINDOWS['square'])
    outputs(rpe, OWN_WINDOWS['square'])[2].sum().backward()
    grads = {name: parameter.grad for name, parameter in rpe.named_parameters()}
    rpe.resample((4, 4))
    for name, parameter in rpe.named_parameters():
        assert parameter.grad is (None if 'bias_table' in name else grads[name])


@pytest.mark.parametrize('name', sorted(WITH_TABLES))
def test_resampling_in_inference_mode(name):
    """Evaluating at another window and training on."""
    rpe = built(name, OWN_WINDOWS['square'])
    with torch.inference_mode():
        rpe.resample((4, 5))
        outputs(rpe, Made((4, 5), (4, 5)))
    assert not any(parameter.is_inference() for parameter in rpe.parameters())
    q, k, bias = outputs(rpe, Made((4, 5), (4, 5)))
    bias.square().sum().backward()
    assert all(parameter.grad is not None for key, parameter in rpe.named_parameters() if 'bias_table' in key)


# ---- refusals ----


def geometric_alone(rows: int) -> RelativePositionEncoding:
    """A user's encoding with a table along the first axis, which geometric can stretch."""

    class Rows(RelativePositionEncoding):

        def __init__(self, **window):
            super().__init__(**window)
            self.table = torch.nn.Parameter(pixels(self.sides[0], self.num_heads))

        def offset_tables(self):
            return {'table': (0, )}

        def rotate(self, q, k, geometry):
            return q, k

    return Rows(num_heads=HEADS, window_size=(rows, rows), head_dim=HEAD_DIM)


@pytest.mark.parametrize('wanted', [dict(window=(9, 60), mode='geometric'), dict(window=(9, 3), mode='geometric'),
                                    dict(window=(5, 5), mode='nearest'), dict(window=(5, ), mode='bicubic'),
                                    dict(window=(5, 5, 5), mode='crop')])
def test_a_refusal_changes_nothing(wanted):
    window = dict(num_heads=HEADS, window_size=(7, 7), head_dim=HEAD_DIM)
    first = geometric_alone(7)
    rpes = [first, SumRPE([first, TableRPE(**window)], **window), LowRankRPE(**window),
            build_rpe([dict(type='ClippedRPE'), dict(type='DynamicRPE', rpe=dict(type='LowRankRPE'))], **window)]
    for rpe in rpes:
        for parameter in rpe.parameters():
            parameter.grad = torch.ones_like(parameter)
        before = snapshot(rpe)
        if rpe is first and len(wanted['window']) == 2 and wanted['mode'] == 'geometric':
            continue  # it alone would not refuse
        with pytest.raises(InputError) as error:
            rpe.resample(**wanted)
        assert '\n' not in str(error.value)
        assert same(snapshot(rpe), before)
        for part in rpe.modules():
            if isinstance(part, RelativePositionEncoding):
                assert part.window_size == (7, 7) and part.key_size == (7, 7)
        assert all(parameter.grad is not None for parameter in rpe.parameters())


@pytest.mark.parametrize('window', [5, None, '55', (0, 5), (-1, 2), (5., 5)])
@pytest.mark.parametrize('name', ['table', 'clipped', 'rotary, decomposed'])
def test_what_is_no_window(name, window):
    rpe = built(name, OWN_WINDOWS['square'])
    before = snapshot(rpe)
    with pytest.raises(InputError, match='window'):
        rpe.resample(window)
    with pytest.raises(InputError, match='key_size'):
        rpe.resample((5, 5), key_size=(5, ))
    assert same(snapshot(rpe), before) and rpe.window_size == (3, 3)


@pytest.mark.parametrize('name', ['table', 'clipped', 'rotary, decomposed'])
def test_keys_that_would_vanish(name):
    """Two keys fewer than queries stay two fewer, as long as any are left."""
    rpe = built(name, OWN_WINDOWS['fewer keys'])
    before = snapshot(rpe)
    with pytest.raises(InputError, match='key_size'):
        rpe.resample((2, 2))
    assert same(snapshot(rpe), before) and rpe.window_size == (4, 3) and rpe.key_size == (2, 1)
    rpe.resample((2, 2), key_size=(2, 1))
    assert rpe.window_size == (2, 2) and rpe.key_size == (2, 1)


# ---- state dicts of another window ----


@pytest.mark.parametrize('change', sorted(CHANGES))
@pytest.mark.parametrize('name', sorted(WITH_TABLES))
@pytest.mark.parametrize('mode', ['bicubic', 'crop'])
def test_loading_is_resampling(name, change, mode):
    old, new = CHANGES[change]
    source = build(name, old)
    target = build(name, new, resize_mode=mode)
    if 'dynamic' in name:  # options of an inner encoding are its own
        mode = 'bicubic'
    for parameter in target.parameters():
        parameter.data.fill_(9.)
    state = source.state_dict()
    before = {key: value.clone() for key, value in state.items()}
    result = target.load_state_dict(state)
    assert not result.missing_keys and not result.unexpected_keys
    assert same(state, before), "the caller's tensors are left alone"
    source.resample(new.window, mode)
    assert same(snapshot(target), snapshot(source))
    assert close(outputs(target, new), encode(target, name, new))


@pytest.mark.parametrize('mode', MODES)
def test_resize_mode(mode):
    for kind in ('TableRPE', 'LowRankRPE', 'DecomposedRPE'):
        config = dict(type='DynamicRPE', rpe=dict(type=kind, resize_mode=mode))
        source, target = (drawn(build_rpe(config, num_heads=HEADS, window_size=window, head_dim=HEAD_DIM))
                          for window in ((7, 7), (9, 11)))
        target.load_state_dict(source.state_dict())
        source.resample((9, 11), mode)
        assert same(snapshot(target), snapshot(source))


@pytest.mark.parametrize('name', sorted(WITH_TABLES))
def test_through_a_file(name):
    source, target = build(name, Made((2, 4), (4, 4))), build(name, Made((4, 2), (6, 2)))
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, weights_only=True))
    source.resample((4, 2))
    assert same(snapshot(target), snapshot(source))


@pytest.mark.parametrize('name', sorted(WITH_TABLES))
def test_a_square_window_without_notes(name):
    source, target = build(name, Made((3, 3), (3, 3))), build(name, Made((5, 4), (5, 4)))
    target.load_state_dict(dict(source.state_dict()))
    source.resample((5, 4))
    assert same(snapshot(target), snapshot(source))


def test_a_window_that_cannot_be_told():
    source, target = build('table', Made((2, 4), (2, 4))), build('table', Made((3, 3), (3, 3)))
    with pytest.raises((InputError, RuntimeError), match='relative_position_bias_table has 21 rows'):
        target.load_state_dict(dict(source.state_dict()))


@pytest.mark.parametrize('name', sorted(ENCODINGS))
def test_the_same_window_loads_exactly(name):
    made = OWN_WINDOWS['halo']
    source, target = built(name, made, seed=3), built(name, made, seed=4)
    for state in (source.state_dict(), dict(source.state_dict())):
        target.load_state_dict(state)
        assert same(snapshot(target), snapshot(source))
        drawn(target, seed=5)


def test_a_note_follows_the_window():
    """Saved, resampled, saved again."""
    source, target = build('table', Made((2, 4), (2, 4))), build('table', Made((3, 5), (3, 5)))
    source.state_dict()
    source.resample((4, 2))
    target.load_state_dict(source.state_dict())
    source.resample((3, 5))
    assert same(snapshot(target), snapshot(source))


# ---- the scale of Swin V2's network ----


def cpb(window, **options) -> LogCPB:
    return drawn(LogCPB(num_heads=HEADS, window_size=window, hidden_dims=8, **options))


def cpb_bias(rpe, pretrained, geometry) -> torch.Tensor:
    weights = [parameter for _, parameter in rpe.named_parameters()]
    return encodings.log_cpb(*weights, geometry, pretrained, rpe.log)


def coords_table(window, pretrained, log=True) -> torch.Tensor:
    """SwinV2's buffer ``(1, 2h - 1, 2w - 1, 2)``."""
    axes = [8 * torch.arange(1 - w, w) / ((p or w) - 1) for w, p in zip(window, pretrained)]
    table = torch.stack(torch.meshgrid(*axes, indexing='ij'), dim=-1)[None]
    return table.sign() * torch.log2(table.abs() + 1) / 3 if log else table


GEOMETRY = WindowGeometry.square((4, 4))


def test_the_network_keeps_its_scale_in_another_window():
    rpe = cpb((6, 5))
    rpe.resample((4, 4))
    assert torch.allclose(rpe.bias(GEOMETRY), cpb_bias(rpe, (6, 5), GEOMETRY), atol=1e-5)


@pytest.mark.parametrize('given', [None, 0])
def test_the_network_adopts_the_scale_of_a_file(given):
    source, target = cpb((6, 5)), cpb((4, 4), pretrained_window_size=given)
    target.load_state_dict(source.state_dict())
    assert torch.allclose(target.bias(GEOMETRY), cpb_bias(source, (6, 5), GEOMETRY), atol=1e-5)
    again = cpb((3, 3))
    again.load_state_dict(target.state_dict())
    assert torch.allclose(again.bias(GEOMETRY), cpb_bias(source, (6, 5), GEOMETRY), atol=1e-5)


def test_the_scale_of_the_config_comes_first():
    source, target = cpb((6, 5)), cpb((4, 4), pretrained_window_size=8)
    target.load_state_dict(source.state_dict())
    assert torch.allclose(target.bias(GEOMETRY), cpb_bias(source, (8, 8), GEOMETRY), atol=1e-5)
    given = cpb((4, 4), pretrained_window_size=8)
    adopting = cpb((3, 3))
    adopting.load_state_dict(given.state_dict())
    assert torch.allclose(adopting.bias(GEOMETRY), cpb_bias(given, (8, 8), GEOMETRY), atol=1e-5)


@pytest.mark.parametrize('log', [True, False])
@pytest.mark.parametrize('window, pretrained', [((16, 16), (8, 8)), ((8, 8), (0, 0)), ((24, 24), (12, 12)),
                                                ((12, 12), (6, 6)), ((7, 5), (0, 0)), ((32, 32), (8, 8))])
def test_the_scale_beside_the_weights(window, pretrained, log):
    source, target = cpb(window, log=log), cpb((4, 4), log=log)
    table = coords_table(window, pretrained, log)
    state = dict(source.state_dict())
    result = target.load_state_dict({'relative_coords_table': table, **state})
    assert not result.unexpected_keys
    expected = [p or w for p, w in zip(pretrained, window)]
    assert torch.allclose(target.bias(GEOMETRY), cpb_bias(target, expected, GEOMETRY), atol=1e-5)


# ---- copies ----


def copies(rpe) -> dict:
    file = io.BytesIO()
    torch.save(rpe, file)
    file.seek(0)
    return {'deepcopy': copy.deepcopy(rpe), 'pickle': pickle.loads(pickle.dumps(rpe)),
            'file': torch.load(file, weights_only=False)}


@pytest.mark.parametrize('name', sorted(ENCODINGS))
def test_copies(name):
    made, new = Made((2, 3), (4, 5)), Made((4, 3), (6, 5))
    rpe = built(name, made)
    before, expected = snapshot(rpe), outputs(rpe, made)
    larger = built(name, new, seed=2).state_dict()
    for how, twin in copies(rpe).items():
        assert close(outputs(twin, made), expected), how
        twin.resample(new.window)
        if 'cpb' not in name:
            assert close(outputs(twin, new), encode(twin, name, new)), how
        assert rpe.window_size == made.window and same(snapshot(rpe), before), how
    for how, twin in copies(rpe).items():
        twin.load_state_dict(larger)  # with the twin's own window
        assert close(outputs(twin, made), outputs(twin, made)), how
        assert {key: value.shape for key, value in twin.named_parameters()} == {
            key: value.shape for key, value in rpe.named_parameters()}, how
        assert same(snapshot(rpe), before), how


def test_a_copy_outlives_the_original():
    rpe = built('table', Made((3, 3), (3, 3)))
    state = built('table', Made((5, 5), (5, 5))).state_dict()
    twin = copy.deepcopy(rpe)
    rpe.resample((6, 6))
    del rpe
    gc.collect()
    twin.load_state_dict(state)
    assert twin.relative_position_bias_table.shape == (25, HEADS)
    assert twin.state_dict()._metadata[''] == dict(version=1, encoding=('TableRPE', ), offset_sides=(5, 5))
