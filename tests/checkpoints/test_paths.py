"""Every key is the path of a parameter; files with mm's names, of mm and of earlier versions, load as ever."""
import copy
from collections import OrderedDict

import pytest
import torch
from mmengine.runner import load_checkpoint
from oracles.cases import SMALL, pixels
from oracles.swin_v2 import randomise_v2
from torch.func import functional_call

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.checkpoints import to_mm_names, to_paths
from swin_rpe_mm.checkpoints.export import note_windows, to_layout
from swin_rpe_mm.registry import MODELS
from swin_rpe_mm.rpe import TableRPE

SIZES = SMALL | dict(depths=(2, 1), num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1))
TABLE, CPB, CLIPPED = dict(type='TableRPE'), dict(type='LogCPB', hidden_dims=8), dict(type='ClippedRPE')
SWIN_TABLE = 'relative_position_bias_table'
# the encoding, and where it keeps what has a name in mm
ENCODINGS = {
    'table': (TABLE, {SWIN_TABLE: 'rpe'}),
    'cpb': (CPB, {'cpb_mlp': 'rpe'}),
    'dynamic': (dict(type='DynamicRPE'), {SWIN_TABLE: 'rpe.inner'}),
    'dynamic cpb': (dict(type='DynamicRPE', rpe=CPB), {'cpb_mlp': 'rpe.inner'}),
    'dynamic sum': (dict(type='DynamicRPE', rpe=[CLIPPED, TABLE]), {SWIN_TABLE: 'rpe.inner.encodings.1'}),
    'table, rotary': ([TABLE, dict(type='RotaryRPE')], {SWIN_TABLE: 'rpe.encodings.0'}),
    'rotary, table': ([dict(type='RotaryRPE', mode='axial'), TABLE], {SWIN_TABLE: 'rpe.encodings.1'}),
    'clipped, table': ([CLIPPED, TABLE], {SWIN_TABLE: 'rpe.encodings.1'}),
    'table, clipped': ([TABLE, CLIPPED], {SWIN_TABLE: 'rpe.encodings.0'}),
    'two tables': ([TABLE, TABLE], {SWIN_TABLE: 'rpe.encodings.0'}),
    'cpb, table': ([CPB, TABLE], {SWIN_TABLE: 'rpe.encodings.1', 'cpb_mlp': 'rpe.encodings.0'}),
    'clipped': (CLIPPED, {}),
    'bucket': (dict(type='LogBucketRPE'), {}),
    'buckets': (dict(type='LogBucketRPE', join='cross'), {}),
    'block': (dict(type='BlockRPE'), {}),
    'low rank': (dict(type='LowRankRPE'), {}),
    'decomposed': (dict(type='DecomposedRPE'), {}),
    'contextual': (dict(type='ContextualRPE', on='qkv'), {}),
    'rotary': (dict(type='RotaryRPE'), {}),
    'none': (None, {}),
}


def built(name: str, seed: int = 0, window=(3, 4), **kwargs) -> SwinRPE:
    return randomise_v2(SwinRPE(**(SIZES | kwargs), window_size=window, rpe=ENCODINGS[name][0]), seed).eval()


class Whole(torch.nn.Module):
    """A model with a backbone and a head."""

    def __init__(self, backbone: SwinRPE):
        super().__init__()
        self.backbone, self.head = backbone, torch.nn.Linear(2, 2)


def of_earlier_version(name: str, state: dict) -> OrderedDict:
    """The state dict as it was before keys were paths: some have mm's names, and there are fewer notes."""
    renamed = OrderedDict()
    for key, value in state.items():
        for own, place in ENCODINGS[name][1].items():
            key = key.replace(f'.w_msa.{place}.{own}', f'.w_msa.{own}')
        renamed[key] = value
    renamed._metadata = OrderedDict(
        (path, {name: value for name, value in note.items() if not name.startswith('encoding')})
        for path, note in state._metadata.items())
    return renamed


def under(prefix: str, state: dict) -> OrderedDict:
    """A state dict with a prefix, as a wrapper of the model has it."""
    result = OrderedDict((prefix + key, value) for key, value in state.items())
    result._metadata = OrderedDict(((prefix + path).rstrip('.'), note) for path, note in state._metadata.items())
    return result


def features(model: SwinRPE) -> list:
    with torch.no_grad():
        return model(pixels(2, 3, 37, 50))


def load_file(model: torch.nn.Module, content, path, **kwargs) -> None:
    torch.save(content, path)
    load_checkpoint(model, str(path), map_location='cpu', strict=True, **kwargs)


def load_init_cfg(model: SwinRPE, content, path, **options) -> None:
    torch.save(content, path)
    model.init_cfg = dict(type='Pretrained', checkpoint=str(path), **options)
    model.init_weights()


HEAD = Whole(torch.nn.Identity()).state_dict()


def whole(state: dict) -> OrderedDict:
    """Of a detector, say."""
    result = under('backbone.', state)
    result.update(HEAD)
    result._metadata[''] = dict(version=1)
    return result


WAYS = {
    'load_state_dict': lambda model, state, path: model.load_state_dict(state),
    'without notes': lambda model, state, path: model.load_state_dict(dict(state)),
    'in a model': lambda model, state, path: Whole(model).load_state_dict(whole(state)),
    'in a model, without notes': lambda model, state, path: Whole(model).load_state_dict(dict(whole(state))),
    'load_from': lambda model, state, path: load_file(model, dict(state_dict=state, meta={}), path),
    'load_from in a model': lambda model, state, path: load_file(Whole(model), dict(state_dict=whole(state)), path),
    'load_from of DDP': lambda model, state, path: load_file(Whole(model), under('module.', whole(state)), path),
    'load_from with revised keys': lambda model, state, path: load_file(
        model, under('backbone.', state), path, revise_keys=[(r'^backbone\.', '')]),
    'init_cfg': lambda model, state, path: load_init_cfg(model, state, path),
    'init_cfg of a detector': lambda model, state, path: load_init_cfg(model, dict(state_dict=whole(state)), path),
    'init_cfg of DDP': lambda model, state, path: load_init_cfg(model, under('module.', whole(state)), path),
    'init_cfg with a prefix': lambda model, state, path: load_init_cfg(model, under('a.b.', state), path, prefix='a.b'),
}


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('name', ENCODINGS)
def test_every_way_of_loading(name, way, tmp_path):
    """Ours, and those of earlier versions; strict where the way is."""
    source = built(name)
    expected = features(source)
    for state in (source.state_dict(), of_earlier_version(name, source.state_dict())):
        model = built(name, seed=1)
        WAYS[way](model, state, tmp_path / 'file.pth')
        for actual, value in zip(features(model), expected):
            assert torch.equal(actual, value)


@pytest.mark.parametrize('name', ENCODINGS)
def test_every_key_is_the_path_of_a_parameter(name):
    for arch in ('nano', 'v2-nano'):
        model = built(name, arch=arch)
        assert list(model.state_dict()) == [path for path, _ in model.named_parameters()]
    other = built(name, seed=1, arch=arch)
    with torch.no_grad():
        for a, b in zip(functional_call(other, model.state_dict(), (pixels(1, 3, 37, 50), )),
                        model(pixels(1, 3, 37, 50))):
            assert torch.equal(a, b)


def test_the_state_dict_of_distributed_checkpoints():
    state_dict = pytest.importorskip('torch.distributed.checkpoint.state_dict')
    source, model = built('table, rotary'), built('table, rotary', seed=1)
    state = state_dict.get_model_state_dict(source)
    assert list(state) == [path for path, _ in source.named_parameters()]
    state_dict.set_model_state_dict(model, state)
    for a, b in zip(features(model), features(source)):
        assert torch.equal(a, b)


@pytest.mark.parametrize('name', ENCODINGS)
def test_names_of_mm_and_back(name):
    model = built(name)
    state = model.state_dict()
    named = to_mm_names(state, state._metadata)
    assert list(named) == list(of_earlier_version(name, state))
    assert all(a is b for a, b in zip(named.values(), state.values()))
    assert list(to_paths(named, model)) == list(state)
    if name in ('table', 'cpb', 'clipped', 'none'):
        assert list(to_paths(named)) == list(state)
        assert list(to_mm_names(dict(state), {})) == [
            key.replace('.rpe.relative', '.relative').replace('.rpe.cpb', '.cpb') for key in state]


@pytest.mark.parametrize('name', ENCODINGS)
def test_converting_files_of_earlier_versions(name):
    """What only the model can tell the place of keeps its name."""
    source = built(name)
    for state in (source.state_dict(), of_earlier_version(name, source.state_dict())):
        metadata = copy.deepcopy(state._metadata)
        once = note_windows(state, metadata)
        twice = note_windows(once, metadata)
        assert list(once) == list(twice)
        assert name not in ('table', 'cpb') or list(once) == list(source.state_dict())
        for weights, notes in ((once, metadata), (note_windows(dict(state), {}), {})):
            weights = OrderedDict(weights)
            weights._metadata = notes
            model = built(name, seed=1)
            model.load_state_dict(weights)
            assert all(torch.equal(a, b) for a, b in zip(features(model), features(source)))


# ---- from one encoding to another ----


def taken(name: str, other: str, earlier: bool = False, wrap=None, window=(3, 4)) -> tuple:
    """What a model of the other encoding misses, and does not expect."""
    state = built(name).state_dict()
    state = of_earlier_version(name, state) if earlier else state
    model = built(other, seed=1, window=window)
    if wrap is None:
        return tuple(model.load_state_dict(state, strict=False))
    missing, unexpected = wrap(model).load_state_dict(under('backbone.', state), strict=False)
    return [key for key in missing if key not in HEAD], unexpected


WRAPPERS = [None, Whole]


@pytest.mark.parametrize('wrap', WRAPPERS)
@pytest.mark.parametrize('earlier', [False, True])
@pytest.mark.parametrize('name, other', [
    ('table', 'dynamic'), ('table', 'table, rotary'), ('table', 'rotary, table'), ('rotary, table', 'table'),
    ('dynamic', 'table'), ('dynamic', 'table, clipped'), ('dynamic sum', 'rotary, table'), ('cpb', 'cpb, table'),
    ('dynamic cpb', 'cpb')])
def test_tables_of_swin_find_their_place(name, other, earlier, wrap):
    """From any encoding that has one into any other that has."""
    missing, unexpected = taken(name, other, earlier, wrap)
    for own, place in ENCODINGS[other][1].items():
        lost = [key for key in missing if f'.w_msa.{place}.{own}' in key]
        assert bool(lost) != (own in ENCODINGS[name][1])
    assert not any(f'.{own}' in key for key in unexpected for own in ENCODINGS[name][1]
                   if own in ENCODINGS[other][1] and 'encodings.0' not in key)


OF_ONE_NAME = ['table', 'clipped', 'bucket', 'block']


@pytest.mark.parametrize('wrap', WRAPPERS)
@pytest.mark.parametrize('window', [(3, 4), (5, 5)])
@pytest.mark.parametrize('name, other', [(a, b) for a in OF_ONE_NAME for b in OF_ONE_NAME if a != b] + [
    (a, b) for a in ('buckets', 'low rank', 'decomposed') for b in ('buckets', 'low rank', 'decomposed') if a != b])
def test_tables_of_one_name_are_not_mixed_up(name, other, window, wrap):
    """A clipped table could be read as Swin's of a larger window, and so on."""
    missing, unexpected = taken(name, other, False, wrap, window)
    assert missing and all('.rpe.relative_position_bias_table' in key for key in missing)
    assert len(unexpected) == len(missing)
    if name != 'table':
        assert all(key.endswith(f' of {ENCODINGS[name][0]["type"]}') for key in unexpected)


@pytest.mark.parametrize('wrap', WRAPPERS)
@pytest.mark.parametrize('name', ['clipped', 'bucket', 'block'])
def test_tables_of_one_name_in_files_of_earlier_versions(name, wrap):
    missing, unexpected = taken(name, 'table', True, wrap)
    assert len(missing) == 3 and all(key.endswith(f'{SWIN_TABLE} of another encoding') for key in unexpected)


def test_inside_a_sum():
    missing, unexpected = taken('two tables', 'table, clipped')
    assert len(missing) == len(unexpected) == 3
    assert all(key.endswith('.rpe.encodings.1.relative_position_bias_table of TableRPE') for key in unexpected)


def test_a_strict_load_names_the_encoding():
    with pytest.raises(RuntimeError, match='relative_position_bias_table of ClippedRPE'):
        built('table').load_state_dict(built('clipped').state_dict())


@pytest.mark.parametrize('name, options', [('clipped', dict(max_distance=5)), ('bucket', dict(num_buckets=3)),
                                           ('block', dict(max_blocks=1)), ('cpb', dict(hidden_dims=4))])
def test_other_options_of_the_same_encoding(name, options):
    state = built(name).state_dict()
    model = SwinRPE(**SIZES, window_size=(3, 4), rpe=ENCODINGS[name][0] | options)
    with pytest.raises(InputError, match='rpe has other options$') as error:
        model.load_state_dict(state)
    assert '\n' not in str(error.value)


def test_another_number_of_pooled_neighbours():
    state = built('table', pooled_neighbours=1).state_dict()
    with pytest.raises(InputError, match='its pooled_neighbours is another one$'):
        built('table', pooled_neighbours=2).load_state_dict(state)


@pytest.fixture
def own():
    """A user's variant of Swin's table."""

    @MODELS.register_module()
    class HalvedTableRPE(TableRPE):

        def bias(self, geometry):
            return super().bias(geometry) / 2

    yield
    MODELS.module_dict.pop('HalvedTableRPE')


def test_a_subclass_takes_the_tables_of_its_class_and_gives_them(own):
    config = dict(type='HalvedTableRPE')
    table, halved = built('table'), SwinRPE(**SIZES, window_size=(3, 4), rpe=config)
    for source, model in ((table, halved), (halved, built('table', seed=1))):
        for state in (source.state_dict(), dict(source.state_dict())):
            model.load_state_dict(state)
            assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), state.values()))
    with pytest.raises(InputError, match='comes from the argument rpe'):
        to_layout(halved.state_dict(), 'mmdet')
