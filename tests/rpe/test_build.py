"""From a config to encodings: what is accepted, what is refused and in which words, and encodings of one's own."""
import copy

import pytest
import torch
from oracles import encodings
from oracles.cases import pixels
from rpe_cases import ENCODINGS, HEAD_DIM, HEADS, drawn, tokens
from torch import nn

from swin_rpe_mm import InputError
from swin_rpe_mm.registry import MODELS
from swin_rpe_mm.rpe import (
    RelativePositionEncoding,
    SumRPE,
    TableRPE,
    build_rpe,
    check_rpe,
    offsets,
    rpe_of_stage,
)
from swin_rpe_mm.windows import WindowGeometry

WINDOW = dict(num_heads=HEADS, window_size=(3, 3), key_size=(5, 5), head_dim=HEAD_DIM)
GEOMETRY = WindowGeometry((3, 3), (5, 5), (-1, -1))

MALFORMED = [  # the config, and what the sentence must say
    (dict(type='TabelRPE'), ['TabelRPE', "did you mean 'TableRPE'"]),
    (dict(type='tablerpe'), ['tablerpe', 'TableRPE']),
    (dict(type='Linear'), ['Linear', 'RotaryRPE']),
    (dict(type='nothing at all'), ['nothing at all', 'TableRPE', 'LogCPB']),
    (dict(type=''), ['type']),
    (dict(type=None), ['type']),
    (dict(type=TableRPE), ['type']),
    (dict(type='ClippedRPE', max_distanse=3), ['max_distanse', "did you mean 'max_distance'"]),
    (dict(type='TableRPE', max_distance=3), ['max_distance', 'TableRPE', 'resize_mode']),
    (dict(type='TableRPE', num_heads=3), ['num_heads']),
    (dict(type='TableRPE', window_size=(3, 3)), ['window_size']),
    (dict(type='TableRPE', key_size=(3, 3)), ['key_size']),
    (dict(type='RotaryRPE', head_dim=8), ['head_dim']),
    (dict(max_distance=3), ['type']),
    ({}, ['type']),
    ([], ['rpe']),
    ((), ['rpe']),
    ('TableRPE', ['dict', 'TableRPE']),
    (7, ['dict', '7']),
    (True, ['dict', 'True']),
    (TableRPE, ['dict']),
    ([dict(type='TableRPE'), None], ['None']),
    ([dict(type='TableRPE'), 'RotaryRPE'], ['RotaryRPE']),
    ([dict(type='TableRPE'), dict(type='RotatyRPE')], ["did you mean 'RotaryRPE'"]),
    ([[dict(type='TableRPE')]], ['dict']),
]
WRONG_VALUES = [
    (dict(type='TableRPE', resize_mode='nearest'), ['resize_mode', 'bicubic', 'nearest']),
    (dict(type='ClippedRPE', max_distance=-1), ['max_distance', '-1']),
    (dict(type='ClippedRPE', max_distance=2.5), ['max_distance', '2.5']),
    (dict(type='ClippedRPE', max_distance=(1, 2, 3)), ['max_distance']),
    (dict(type='ClippedRPE', max_distance='8'), ['max_distance']),
    (dict(type='LogBucketRPE', form='log'), ['form', 'sign_log', 't5', 'piecewise', 'log']),
    (dict(type='LogBucketRPE', join='sum'), ['join', 'product', 'cross', 'euclidean', 'sum']),
    (dict(type='LogBucketRPE', num_buckets=0), ['num_buckets', '0']),
    (dict(type='LogBucketRPE', num_buckets=2.5), ['num_buckets', '2.5']),
    (dict(type='LogBucketRPE', max_distance=0), ['max_distance', '0']),
    (dict(type='LogBucketRPE', max_distance='far'), ['max_distance', 'far']),
    (dict(type='LogBucketRPE', form='t5', num_buckets=31), ['num_buckets', '31']),
    (dict(type='LogBucketRPE', form='t5', max_distance=5), ['max_distance', '5']),
    (dict(type='LogBucketRPE', form='piecewise', ratio=0), ['ratio', '0']),
    (dict(type='LogBucketRPE', ratio=1.9), ['ratio', 'piecewise']),
    (dict(type='LogBucketRPE', form='t5', ratio=2), ['ratio', 'piecewise']),
    (dict(type='LogBucketRPE', form='piecewise', num_buckets=8), ['num_buckets', 'piecewise']),
    (dict(type='LogBucketRPE', form='piecewise', max_distance=8), ['max_distance', 'piecewise']),
    (dict(type='ContextualRPE', num_buckets=8), ['num_buckets', 'piecewise']),
    (dict(type='ContextualRPE', form='sign_log', ratio=2.), ['ratio', 'piecewise']),
    (dict(type='ContextualRPE', on=''), ['on', "''"]),
    (dict(type='ContextualRPE', on='kx'), ['on', 'kx']),
    (dict(type='ContextualRPE', on='kk'), ['on', 'kk']),
    (dict(type='ContextualRPE', on=None), ['on', 'None']),
    (dict(type='LogCPB', pretrained_window_size=-8), ['pretrained_window_size', '-8']),
    (dict(type='LogCPB', pretrained_window_size=7.5), ['pretrained_window_size', '7.5']),
    (dict(type='LogCPB', pretrained_window_size=(8, 8, 8)), ['pretrained_window_size']),
    (dict(type='LogCPB', hidden_dims=0), ['hidden_dims', '0']),
    (dict(type='LowRankRPE', rank=0), ['rank', '0']),
    (dict(type='LowRankRPE', rank=1.5), ['rank', '1.5']),
    (dict(type='BlockRPE', max_blocks=0), ['max_blocks', '0']),
    (dict(type='BlockRPE', block_form='linear'), ['block_form', 'clip', 'log', 'linear']),
    (dict(type='BlockRPE', num_buckets=-1), ['num_buckets', '-1']),
    (dict(type='BlockRPE', max_distance=0), ['max_distance', '0']),
    (dict(type='RotaryRPE', mode='mix'), ['mode', 'mixed', 'axial', 'mix']),
    (dict(type='RotaryRPE', theta=0), ['theta', '0']),
    (dict(type='DynamicRPE', hidden_dims=0), ['hidden_dims', '0']),
    (dict(type='DynamicRPE', rpe=dict(type='RotaryRPE')), ['bias', 'RotaryRPE']),
    (dict(type='DynamicRPE', rpe=dict(type='ContextualRPE', on='v')), ['bias']),
    (dict(type='DynamicRPE', rpe=[dict(type='RotaryRPE'), dict(type='ContextualRPE', on='v')]), ['bias']),
    (dict(type='DynamicRPE', rpe=None), ['bias', 'None']),
    (dict(type='DynamicRPE', rpe=[]), ['rpe', '[]']),
    (dict(type='DynamicRPE', rpe=dict(type='TabelRPE')), ["did you mean 'TableRPE'"]),
    (dict(type='DynamicRPE', rpe=dict(type='TableRPE', rank=2)), ['rank', 'TableRPE']),
]


def given(rpe: RelativePositionEncoding) -> set[str]:
    """What it says that it has."""
    return {method for method in ('bias', 'rotate', 'scores', 'values') if rpe.gives(method)}


def one_sentence(error, words) -> None:
    message = str(error.value)
    assert '\n' not in message
    for word in words:
        assert word in message, f'{word} is not in: {message}'


@pytest.mark.parametrize('config, words', MALFORMED)
def test_malformed(config, words):
    given = copy.deepcopy(config)
    for function in (check_rpe, lambda rpe: build_rpe(rpe, **WINDOW)):
        with pytest.raises(InputError) as error:
            function(config)
        one_sentence(error, words)
    assert config == given


@pytest.mark.parametrize('config, words', WRONG_VALUES)
def test_wrong_value(config, words):
    with pytest.raises(InputError) as error:
        build_rpe(config, **WINDOW)
    one_sentence(error, words)


@pytest.mark.parametrize('name, head_dim, axes', [
    ('RotaryRPE', 7, 2), ('RotaryRPE', None, 2), ('RotaryRPE', 5, 1)])
def test_mixed_rotary_needs_pairs(name, head_dim, axes):
    with pytest.raises(InputError) as error:
        build_rpe(dict(type=name), num_heads=2, window_size=(3, ) * axes, head_dim=head_dim)
    one_sentence(error, ['head_dim', str(head_dim)])


@pytest.mark.parametrize('head_dim, axes', [(6, 2), (8, 3), (5, 1), (None, 2)])
def test_axial_rotary_needs_pairs_for_every_axis(head_dim, axes):
    with pytest.raises(InputError) as error:
        build_rpe(dict(type='RotaryRPE', mode='axial'), num_heads=2, window_size=(3, ) * axes, head_dim=head_dim)
    one_sentence(error, ['head_dim', str(head_dim)])
    build_rpe(dict(type='RotaryRPE', mode='axial'), num_heads=2, window_size=(3, ) * axes, head_dim=2 * axes)


@pytest.mark.parametrize('kind', ['ContextualRPE', 'DecomposedRPE', 'DynamicRPE'])
def test_channels_must_be_known(kind):
    with pytest.raises(InputError) as error:
        build_rpe(dict(type=kind), num_heads=2, window_size=(3, 3))
    one_sentence(error, ['head_dim', kind])


@pytest.mark.parametrize('kind', ['TableRPE', 'RotaryRPE', 'LogCPB'])
@pytest.mark.parametrize('changed, words', [
    (dict(window_size=7), ['window_size', '7']), (dict(window_size=(0, 3)), ['window_size', '(0, 3)']),
    (dict(window_size=(3., 3)), ['window_size', '(3.0, 3)']), (dict(window_size=()), ['window_size', '()']),
    (dict(key_size=(3, )), ['key_size', '(3,)']), (dict(key_size=(3, -3)), ['key_size', '(3, -3)']),
    (dict(num_heads=0), ['num_heads', '0']), (dict(num_heads=2.), ['num_heads', '2.0']),
    (dict(head_dim=0), ['head_dim', '0']), (dict(head_dim='8'), ['head_dim', "'8'"])])
def test_wrong_window(kind, changed, words):
    with pytest.raises(InputError) as error:
        build_rpe(dict(type=kind), **(WINDOW | changed))
    one_sentence(error, words)


@pytest.mark.parametrize('kind', ['SwinRPE', 'ReLU', 'SwinRPE.window'])
def test_a_module_that_is_no_encoding(kind):
    for function in (check_rpe, lambda rpe: build_rpe(rpe, **WINDOW)):
        with pytest.raises(InputError) as error:
            function(dict(type=kind))
        one_sentence(error, [kind])


# ---- what is accepted ----


@pytest.mark.parametrize('name', sorted(ENCODINGS))
def test_a_config_is_left_alone_and_builds_twice(name):
    config = copy.deepcopy(ENCODINGS[name])
    check_rpe(config)
    one, other = build_rpe(config, **WINDOW), build_rpe(config, **WINDOW)
    assert config == ENCODINGS[name]
    assert isinstance(one, RelativePositionEncoding)
    assert not {id(p) for p in one.parameters()} & {id(p) for p in other.parameters()}
    assert one.window_size == (3, 3) and one.key_size == (5, 5) and one.num_heads == HEADS


def test_nothing():
    check_rpe(None)
    assert build_rpe(None, **WINDOW) is None


@pytest.mark.parametrize('scope', ['', 'swin_rpe_mm.'])
def test_scopes(scope):
    assert isinstance(build_rpe(dict(type=f'{scope}TableRPE'), **WINDOW), TableRPE)


def test_mmengine_configs():
    from mmengine.config import ConfigDict
    rpe = build_rpe(ConfigDict(type='DynamicRPE', rpe=[dict(type='TableRPE'), dict(type='RotaryRPE')]), **WINDOW)
    assert given(rpe) == {'scores', 'rotate'}


def test_resize_mode_is_an_option_of_all():
    for kind in ('TableRPE', 'RotaryRPE', 'DynamicRPE', 'LogCPB'):
        assert build_rpe(dict(type=kind, resize_mode='crop'), **WINDOW).resize_mode == 'crop'


def test_several_add_up_and_pass_queries_on():
    configs = [dict(type='RotaryRPE', mode='axial'), dict(type='DecomposedRPE'), dict(type='TableRPE')]
    total = drawn(build_rpe(configs, **WINDOW))
    assert isinstance(total, SumRPE)
    q, k = tokens(GEOMETRY)
    rotary, decomposed, table = total.encodings
    turned_q, turned_k, _ = rotary(q, k, GEOMETRY)
    q_out, k_out, bias = total(q, k, GEOMETRY)
    assert torch.equal(q_out, turned_q) and torch.equal(k_out, turned_k)
    expected = decomposed(turned_q, turned_k, GEOMETRY)[2] + table(turned_q, turned_k, GEOMETRY)[2]
    assert torch.allclose(bias, expected, atol=1e-6)


def test_several_without_a_bias():
    configs = [dict(type='RotaryRPE'), dict(type='ContextualRPE', on='v')]
    rpe = build_rpe(configs, **WINDOW)
    assert rpe(*tokens(GEOMETRY), GEOMETRY)[2] is None
    assert given(rpe) == {'rotate', 'values'}


@pytest.mark.parametrize('config, expected', [
    (dict(type='TableRPE'), {'bias'}),
    (dict(type='DecomposedRPE'), {'scores'}),
    (dict(type='RotaryRPE'), {'rotate'}),
    (dict(type='ContextualRPE', on='qk'), {'scores'}),
    (dict(type='ContextualRPE', on='qv'), {'scores', 'values'}),
    (dict(type='ContextualRPE', on='v'), {'values'}),
    (dict(type='DynamicRPE'), {'scores'}),
    (dict(type='DynamicRPE', rpe=[dict(type='ContextualRPE', on='kv'), dict(type='RotaryRPE')]),
     {'rotate', 'scores', 'values'}),
    ([dict(type='TableRPE'), dict(type='ClippedRPE')], {'bias'}),
    ([dict(type='TableRPE'), dict(type='DynamicRPE')], {'bias', 'scores'}),
    ([dict(type='RotaryRPE'), dict(type='ContextualRPE', on='kv')], {'rotate', 'scores', 'values'}),
])
def test_what_an_encoding_says_of_itself(config, expected):
    rpe = build_rpe(config, **WINDOW)
    assert given(rpe) == expected
    assert rpe.gives_bias_alone == (expected == {'bias'})


# ---- stages ----


def test_one_entry_per_stage():
    config = dict(type='LogCPB', pretrained_window_size=[8, 8, (8, 4), None], log=False)
    given = copy.deepcopy(config)
    assert [rpe_of_stage(config, stage, 4) for stage in range(4)] == [
        dict(type='LogCPB', pretrained_window_size=size, log=False) for size in (8, 8, (8, 4), None)]
    assert config == given


def test_tuples_are_for_axes():
    config = dict(type='ClippedRPE', max_distance=(3, 4))
    assert rpe_of_stage(config, 1, 4) == config


@pytest.mark.parametrize('wrap', [lambda one: one, lambda one: [one, dict(type='TableRPE')],
                                  lambda one: dict(type='DynamicRPE', rpe=one, hidden_dims=[4, 8]),
                                  lambda one: dict(type='DynamicRPE', rpe=[one, dict(type='TableRPE')])])
def test_stages_of_parts(wrap):
    config = wrap(dict(type='LowRankRPE', rank=[1, 2]))
    for stage in range(2):
        rpe = build_rpe(rpe_of_stage(config, stage, 2), **WINDOW)
        tables = [value for name, value in rpe.named_parameters() if name.endswith('bias_tables.0')]
        assert [table.shape[-1] for table in tables] == [stage + 1]
        if isinstance(config, dict) and 'hidden_dims' in config:
            assert rpe.scale_mlp[0].out_features == [4, 8][stage]


@pytest.mark.parametrize('config', [None, dict(type='TableRPE'), [dict(type='TableRPE'), dict(type='RotaryRPE')]])
def test_no_lists_no_change(config):
    assert rpe_of_stage(config, 3, 4) == config


@pytest.mark.parametrize('config', [
    dict(type='LogCPB', pretrained_window_size=[8, 8, 8]),
    [dict(type='TableRPE'), dict(type='ClippedRPE', max_distance=[8] * 5)],
    dict(type='DynamicRPE', rpe=dict(type='LowRankRPE', rank=[])),
])
def test_a_list_of_another_length(config):
    with pytest.raises(InputError) as error:
        rpe_of_stage(config, 0, 4)
    one_sentence(error, ['per stage', '4'])


# ---- one's own ----


@pytest.fixture
def own():
    """Encodings as a user writes them, registered for one test."""

    @MODELS.register_module()
    class ScaledDistanceRPE(RelativePositionEncoding):
        """ALiBi over the distance, with a slope per head to learn."""

        def __init__(self, start=0.5, **window):
            super().__init__(**window)
            self.slope = nn.Parameter(torch.full((self.num_heads, ), start))

        def bias(self, geometry):
            return -self.slope[:, None, None] * offsets(geometry, self.slope.device).abs().sum(0)

    @MODELS.register_module()
    class MeanQueryRPE(RelativePositionEncoding):
        """A number of each query for all its keys, which are doubled."""

        def __init__(self, factor=1., **window):
            super().__init__(**window)
            self.weight = nn.Parameter(pixels(self.num_heads))
            self.factor = factor

        def rotate(self, q, k, geometry):
            return q, 2 * k

        def scores(self, q, k, geometry, region):
            return self.factor * self.weight[:, None, None] * q.mean(-1)[..., None].expand(-1, -1, -1, k.shape[2])

    @MODELS.register_module()
    class NoBaseRPE(nn.Module):
        """No encoding, whatever its name."""

    classes = ScaledDistanceRPE, MeanQueryRPE, NoBaseRPE
    yield classes
    for cls in classes:
        MODELS.module_dict.pop(cls.__name__)


def test_a_bias_of_ones_own(own):
    rpe = build_rpe(dict(type='ScaledDistanceRPE', start=2.), **WINDOW)
    assert given(rpe) == {'bias'} and rpe.gives_bias_alone
    bias = rpe(*tokens(GEOMETRY), GEOMETRY)[2]
    expected = encodings.over_pairs(GEOMETRY, lambda i, j, d: -2. * torch.ones(HEADS) * sum(map(abs, d)))
    assert torch.equal(bias, expected)
    bias.sum().backward()
    before = rpe.slope
    assert rpe.resample((5, 5)) == []
    assert rpe.slope is before and rpe.window_size == (5, 5) and rpe.key_size == (7, 7)
    with pytest.raises(InputError) as error:
        check_rpe(dict(type='ScaledDistanceRPE', stat=2.))
    one_sentence(error, ['stat', "did you mean 'start'"])


def test_scores_of_ones_own(own):
    rpe = build_rpe(dict(type='MeanQueryRPE', factor=3.), **WINDOW)
    assert given(rpe) == {'rotate', 'scores'} and not rpe.gives_bias_alone
    q, k = tokens(GEOMETRY)
    q_out, k_out, scores = rpe(q, k, GEOMETRY)
    assert q_out is q and torch.equal(k_out, 2 * k)
    assert torch.equal(scores, 3. * rpe.weight[:, None, None] * q.mean(-1)[..., None].expand(-1, -1, -1, k.shape[2]))
    assert build_rpe(dict(type='MeanQueryRPE', resize_mode='crop'), **WINDOW).resize_mode == 'crop'


def test_what_has_no_base_class(own):
    for function in (check_rpe, lambda rpe: build_rpe(rpe, **WINDOW)):
        with pytest.raises(InputError) as error:
            function(dict(type='NoBaseRPE'))
        one_sentence(error, ['NoBaseRPE', 'a RelativePositionEncoding'])


def test_ones_own_among_others(own):
    config = [dict(type='MeanQueryRPE'), dict(type='TableRPE'), dict(type='ScaledDistanceRPE'),
              dict(type='DynamicRPE', rpe=dict(type='ScaledDistanceRPE'))]
    rpe = build_rpe(config, **WINDOW)
    rpe.init_weights()
    q, k = tokens(GEOMETRY)
    q_out, k_out, total = rpe(q, k, GEOMETRY)
    parts = [part(q, 2 * k, GEOMETRY)[2] for part in rpe.encodings]
    assert q_out is q and torch.equal(k_out, 2 * k) and torch.allclose(total, sum(parts), atol=1e-5)
    assert given(rpe) == {'bias', 'rotate', 'scores'}
    rpe.resample((4, 4), 'crop')
    larger = WindowGeometry((4, 4), (6, 6), (-1, -1))
    assert rpe(*tokens(larger), larger)[2].shape == (2, HEADS, 16, 36)
    again = build_rpe(config, **WINDOW)
    again.load_state_dict(rpe.state_dict())
    assert torch.equal(again.encodings[0].weight, rpe.encodings[0].weight)


def test_ones_own_inside_a_dynamic_one(own):
    rpe = build_rpe(dict(type='DynamicRPE', rpe=dict(type='MeanQueryRPE')), **WINDOW)
    assert given(rpe) == {'rotate', 'scores'}
    q, k = tokens(GEOMETRY)
    _, k_out, scores = rpe(q, k, GEOMETRY)
    assert torch.equal(k_out, 2 * k)
    assert torch.allclose(scores, rpe.inner(q, k, GEOMETRY)[2], atol=1e-6)


def test_rotary_alone_has_no_bias():
    rpe = build_rpe(dict(type='RotaryRPE'), **WINDOW)
    assert rpe(*tokens(GEOMETRY), GEOMETRY)[2] is None and rpe.bias(GEOMETRY) is None
