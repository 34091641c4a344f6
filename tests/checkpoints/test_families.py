"""Weights of every other project give that project's features."""
import functools
import re

import pytest
import torch
from oracles.cases import gradients, loss_of, parameters, pixels
from oracles.compare import TOLERANCE, forward_error, gradient_error, record
from oracles.families import ALL, FAMILIES, Peer

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.checkpoints import to_mm_layout, unwrap
from swin_rpe_mm.rpe.interpolate import resize_table

FORWARD = {1: 1e-5, 2: 1e-4}  # by version, in single precision
TABLE = 'relative_position_bias_table'
LAYOUTS = dict(official='official', SimMIM='official', MoBY='official', mmdet='mm', mmseg='mm', mmpretrain='mm',
               timm='timm', torchvision='torchvision', transformers='transformers')


def needs(name: str) -> list:
    return [pytest.mark.needs_ops] if name.startswith('mmdet') else []


CASES = [pytest.param(name, case, marks=needs(name), id=f'{name}-{i}')
         for name, (_, cases) in FAMILIES.items() for i, case in enumerate(cases)]
NAMES = [pytest.param(name, marks=needs(name)) for name in FAMILIES]


def version_of(name: str) -> int:
    return 2 if 'V2' in name or 'Swinv2' in name else 1


NAMES_V1 = [pytest.param(name, marks=needs(name)) for name in FAMILIES if version_of(name) == 1]


def build(name: str, case: int = 0) -> Peer:
    function, cases = FAMILIES[name]
    return function(**cases[case])


first = functools.lru_cache(maxsize=None)(build)  # for tests that only read its weights


def loaded(peer: Peer, **kwargs) -> SwinRPE:
    """Ours with their weights: all of the file is taken, and it has all that ours has but for some output norms."""
    model = peer.ours(**kwargs)
    missing, unexpected = model.load_state_dict(peer.state, strict=False)
    assert not unexpected
    assert {name.split('.')[0] for name in missing} == {f'norm{i}' for i in ALL if i not in peer.normed}
    return model


def tables_of(state: dict) -> list[torch.Tensor]:
    """The tables of a file in the order of their blocks, whatever they are called."""
    names = [name for name in state if name.endswith(TABLE) and not name.startswith('encoder_k.')]
    return [state[name] for name in sorted(names, key=lambda name: [int(part) for part in re.findall(r'\d+', name)])]


def own_tables(model: SwinRPE) -> list[torch.Tensor]:
    return [value for name, value in model.state_dict().items() if name.endswith(TABLE)]


@pytest.mark.parametrize('name, case', CASES)
def test_features(name, case):
    peer = FAMILIES[name][0](**case)
    model = loaded(peer)
    images = pixels(2, 3, *case['image'])
    with torch.no_grad():
        outs = model(images)
        for actual, expected in zip(outs, peer.features(images, model, outs)):
            error = forward_error(actual, expected)
            record(f'weights of {name}', error)
            assert error <= FORWARD[version_of(name)]


@pytest.mark.parametrize('name', NAMES)
def test_gradients(name):
    """In double precision, but for coordinates that some keep. Theirs are brought under our names by the conversion,
    which only renames, joins and reorders."""
    peer = build(name)
    model = loaded(peer).double()
    peer.model.double()
    size = FAMILIES[name][1][0]['image']
    theirs, images = (pixels(1, 3, *size).double().requires_grad_() for _ in range(2))
    outs = model(images)
    loss_of(outs).backward()
    loss_of(peer.features(theirs, model, outs)).backward()
    expected, _ = to_mm_layout({key: value for key, value in gradients(peer.model).items() if value is not None})
    own = {key: value for key, value in parameters(model).items() if not key.startswith('norm') or key in expected}
    error, where = gradient_error({key: value.grad for key, value in own.items()} | dict(images=images.grad),
                                  expected | dict(images=theirs.grad))
    record(f'weights of {name}, gradient', error)
    assert error <= TOLERANCE['gradient'][torch.float32], f'{error:.2e} in {where}'


@pytest.mark.parametrize('name', NAMES)
def test_layout_is_recognised(name):
    _, family = to_mm_layout(unwrap(first(name).state))
    # those before release 0.9 of timm, and the others that come of the official code
    assert family == ('official' if 'before' in name else LAYOUTS[re.split(r'[ ,]', name)[0]])


@pytest.mark.parametrize('name', NAMES)
def test_converting_twice_changes_nothing(name):
    once, _ = to_mm_layout(unwrap(first(name).state))
    twice, family = to_mm_layout(once)
    assert family == 'mm'
    assert list(once) == list(twice)
    assert all(once[key] is twice[key] for key in once)


@pytest.mark.parametrize('name', NAMES)
def test_the_file_is_left_as_it_was(name):
    peer = first(name)
    tensors, values = dict(peer.state), {key: value.clone() for key, value in peer.state.items()}
    loaded(peer)
    assert list(peer.state) == list(tensors)
    for key, value in peer.state.items():
        assert value is tensors[key] and torch.equal(value, values[key])


@pytest.mark.parametrize('name', NAMES)
def test_strict_loading_of_a_file_with_all_norms(name):
    peer = first(name)
    if len(peer.normed) == len(ALL):
        peer.ours().load_state_dict(peer.state, strict=True)
        return
    with pytest.raises(RuntimeError, match='norm0.weight') as error:
        peer.ours().load_state_dict(peer.state, strict=True)
    assert 'Unexpected' not in str(error.value)


@pytest.mark.parametrize('mode', ['bicubic', 'crop'])
@pytest.mark.parametrize('name', NAMES_V1)
def test_tables_of_another_window(name, mode):
    """Each stage's, by the mode that the encoding is given."""
    peer = first(name)
    tables = tables_of(peer.state)
    assert len(tables) == 8
    old = [stage.window_size for stage in peer.ours().stages]
    new = [(3, 3), (5, 6), (4, 4), (7, 2)]
    model = loaded(peer, window_size=new, rpe=dict(type='TableRPE', resize_mode=mode))
    for block, (actual, table) in enumerate(zip(own_tables(model), tables)):
        sides = [tuple(2 * length - 1 for length in windows[block // 2]) for windows in (old, new)]
        assert torch.equal(actual, resize_table(table, *sides, mode))


def test_windows_of_a_file_that_differ_by_stage():
    """The last stages of a classifier have smaller windows than their name says."""
    peer = build('official', 1)
    old = [(side, side) for side in (8, 8, 8, 4)]
    assert [len(table) for table in tables_of(peer.state)] == [(2 * side[0] - 1)**2 for side in old for _ in range(2)]
    model = loaded(peer, window_size=7)
    for block, (actual, table) in enumerate(zip(own_tables(model), tables_of(peer.state))):
        assert torch.equal(actual, resize_table(table, (2 * old[block // 2][0] - 1, ) * 2, (13, 13), 'bicubic'))


def test_rectangular_windows():
    """Told by the index beside the tables, or not at all."""
    for actual, table in zip(own_tables(loaded(build('torchvision', 2), window_size=4)),
                             tables_of(build('torchvision', 2).state)):
        assert torch.equal(actual, resize_table(table, (5, 9), (7, 7), 'bicubic'))
    with pytest.raises(InputError, match='no square window'):  # timm has no index in its files
        loaded(build('timm', 3), window_size=4)


FROM_BUFFERS = ['official, V2', 'mmpretrain, V2', 'torchvision, V2', 'SimMIM, V2']


@pytest.mark.parametrize('name', FROM_BUFFERS)
def test_window_of_pre_training_is_that_of_the_file(name):
    """Where their coordinates tell it. The network's function of the offset stays, at any window of ours."""
    peer = first(name)
    theirs = [stage.window_size for stage in peer.ours().stages]
    model = loaded(peer, window_size=6)
    for stage, window in zip(model.stages, theirs):
        assert {block.attn.w_msa.rpe.pretrained_window_size for block in stage.blocks} == {window}


@pytest.mark.parametrize('name, arguments', [
    ('official, V2', dict(pretrained=(4, ) * 4, version=2)),
    ('timm, V2', dict(pretrained_window_sizes=(4, ) * 4, version=2)),
    ('mmpretrain, V2', dict(pretrained_window_sizes=[4] * 4, version=2)),
    ('transformers, Swinv2Model', dict(pretrained=(4, ) * 4, kind='Swinv2Model'))])
def test_features_at_another_window(name, arguments):
    """Weights of SwinV2 trained with windows of 4, in their model and in ours with windows of 2."""
    function = FAMILIES[name][0]
    trained, peer = (function((64, 64), window, **arguments) for window in (4, 2))
    for key, value in peer.model.state_dict().items():
        if value.is_floating_point() and 'coords' not in key and 'mask' not in key:
            value.copy_(trained.state[key])
    config = {} if 'official' in name or 'mmpretrain' in name else dict(
        rpe=dict(type='LogCPB', pretrained_window_size=4))
    model = loaded(trained, window_size=2, **config)
    images = pixels(2, 3, 64, 64)
    with torch.no_grad():
        outs = model(images)
        for actual, expected in zip(outs, peer.features(images, model, outs)):
            error = forward_error(actual, expected)
            record('weights of SwinV2, at another window', error)
            assert error <= FORWARD[2]


@pytest.mark.parametrize('name', NAMES)
def test_first_stages_of_a_file(name):
    """A model of two stages takes theirs, and says what it leaves."""
    peer = first(name)
    model = peer.ours(out_indices=(0, 1))
    missing, unexpected = model.load_state_dict(peer.state, strict=False)
    assert {key.split('.')[0] for key in missing} == {f'norm{i}' for i in (0, 1) if i not in peer.normed}
    places = {'.'.join(key.split('.')[:2]) for key in unexpected if not key.startswith('norm')}
    assert places == {'stages.1', 'stages.2', 'stages.3'}  # of stage 1, what merges patches for the next
    assert all('.downsample.' in key for key in unexpected if key.startswith('stages.1.'))
    images = pixels(1, 3, *FAMILIES[name][1][0]['image'])
    whole = loaded(first(name))
    with torch.no_grad():
        for stage in (0, 1):
            whole.get_submodule(f'norm{stage}').load_state_dict(model.get_submodule(f'norm{stage}').state_dict())
        for actual, expected in zip(model(images), whole(images)):
            assert torch.equal(actual, expected)
