"""One line per load says what became of a checkpoint; one that fits nothing is an error with the likeliest cause."""
import logging
import re

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.runner import load_checkpoint
from oracles.cases import SMALL, in_mm_names, pixels, randomise
from oracles.official import official_state
from oracles.swin_v2 import randomise_v2

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.checkpoints import LoadReport

ARCH = {name: SMALL[name] for name in ('embed_dims', 'depths', 'num_heads')}
V2 = SMALL | dict(arch='v2-nano')


@pytest.fixture
def log():
    """Records of the logger, from debug level on."""
    records, handler = [], logging.Handler(logging.DEBUG)
    handler.emit = records.append
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(level)


def counts(records: list) -> dict:
    """The five numbers of the one line, and its text."""
    lines = [record.getMessage() for record in records if 'keys matched' in record.getMessage()]
    assert len(lines) == 1 and '\n' not in lines[0]
    assert all(record.levelno == logging.INFO for record in records if record.getMessage() == lines[0])
    found = {name: int(number) for number, name in
             re.findall(r'(\d+) (?:keys )?(matched|converted|resampled|missing|unexpected)', lines[0])}
    return dict(found, line=lines[0])


def details(records: list) -> list:
    return [record.getMessage() for record in records if record.levelno == logging.DEBUG and 'SwinRPE' in
            record.getMessage()]


def small_model(window=3, **kwargs) -> SwinRPE:
    return SwinRPE(**(SMALL | kwargs), window_size=window)


def official(window=3, **kwargs) -> dict:
    return official_state(**(ARCH | kwargs), window=window, map_side=window * 8)


# ---- the five numbers ----

@pytest.mark.parametrize('names', [dict, in_mm_names])
@pytest.mark.parametrize('kwargs', [{}, dict(arch='v2-nano'), dict(rpe=dict(type='DynamicRPE'))])
def test_everything_matches(kwargs, names, log):
    """What only moves into its encoding is not converted."""
    state = names(small_model(**kwargs).state_dict())
    small_model(**kwargs).load_state_dict(state)
    found = counts(log)
    assert found['matched'] == len(state) and found['missing'] == found['unexpected'] == 0
    assert found.get('converted', 0) == found.get('resampled', 0) == 0
    assert not details(log)


def test_five_numbers(log):
    """From another project, of another window, without output norms, with something of another model."""
    state = official(window=2) | {'extra.weight': torch.zeros(1)}
    del state['norm.weight'], state['norm.bias']
    model = small_model(3)
    model.load_state_dict(state, strict=False)
    # weights that the classifier shares with the backbone: all but its head, its index and its masks
    shared = [key for key in state if not key.startswith(('head.', 'extra.')) and not key.endswith(('index', 'mask'))]
    found = counts(log)
    assert found['matched'] == len(shared) == len(model.state_dict()) - 8
    assert found['resampled'] == sum(SMALL['depths'])
    assert found['missing'] == 8 and found['unexpected'] == 1
    # patch merging is reordered, the rest has other names: all but patch_embed.norm; index buffers count for nothing
    assert found['converted'] == len(shared) - 2
    assert 'layout of official' in found['line']
    assert 'extra.weight' in found['line'] and 'norm0.weight' not in found['line']
    line, = details(log)
    assert all(f'norm{i}.{part}' in line for i in range(4) for part in ('weight', 'bias'))
    assert 'extra.weight' not in line


@pytest.mark.parametrize('removed, shown', [(1, True), (3, True), (4, False), (9, False)])
def test_names_are_in_the_line_when_they_are_few(removed, shown, log):
    state = small_model().state_dict()
    gone = [key for key in state if 'qkv' in key][:removed]
    for key in gone:
        del state[key]
    small_model().load_state_dict(state, strict=False)
    found = counts(log)
    assert found['missing'] == removed
    assert all((key in found['line']) == shown for key in gone)
    assert bool(details(log)) != shown
    assert shown or all(key in details(log)[0] for key in gone)


@pytest.mark.parametrize('old, new, resampled', [(3, 5, 8), ([3, 3, 5, 5], [3, 3, 3, 3], 4), ((3, 5), (5, 3), 8),
                                                 ((3, 5), (3, 5), 0)])
def test_resampled_tables_are_counted(old, new, resampled, log):
    """Also where both windows have as many offsets."""
    state = small_model(old).state_dict()
    small_model(new).load_state_dict(state)
    found = counts(log)
    assert found.get('resampled', 0) == resampled and found['matched'] == len(state)


def test_resampled_embeddings_are_counted(log):
    source = small_model(3, use_abs_pos_embed='window', pretrain_img_size=32)
    small_model(4, use_abs_pos_embed='window', pretrain_img_size=48).load_state_dict(source.state_dict())
    assert counts(log)['resampled'] == sum(SMALL['depths']) + 2


@pytest.mark.parametrize('way', ['load_state_dict', 'init_cfg', 'load_checkpoint', 'inside another model'])
def test_one_line_for_every_way(way, log, tmp_path):
    state = official()
    path = str(tmp_path / 'official.pth')
    torch.save(dict(model=state), path)
    if way == 'init_cfg':
        small_model(init_cfg=dict(type='Pretrained', checkpoint=path)).init_weights()
        assert any(path in record.getMessage() for record in log)
    elif way == 'load_checkpoint':
        load_checkpoint(small_model(), path, map_location='cpu')
    elif way == 'inside another model':
        whole = torch.nn.Module()
        whole.backbone = small_model()
        whole.load_state_dict({f'backbone.{key}': value for key, value in state.items()}, strict=False)
    else:
        small_model().load_state_dict(state, strict=False)
    assert counts(log)['matched'] == len(small_model().state_dict()) - 6


def test_a_model_that_is_loaded_without_a_backbone_says_nothing(log):
    whole = torch.nn.Module()
    whole.backbone, whole.head = small_model(), torch.nn.Linear(1, 1)
    whole.load_state_dict({f'head.{key}': value for key, value in whole.head.state_dict().items()}, strict=False)
    assert not [record for record in log if 'matched' in record.getMessage()]


# ---- what fits in part ----

def test_deeper_into_shallower(log):
    """The first blocks of each stage are taken."""
    deep = randomise(small_model(depths=(2, 2, 6, 2)), 0)
    shallow = small_model()
    missing, unexpected = shallow.load_state_dict(deep.state_dict(), strict=False)
    found = counts(log)
    assert not missing and found['missing'] == 0
    assert found['unexpected'] == len(unexpected) == 4 * 13
    assert all(re.match(r'stages\.2\.blocks\.[2-5]\.', key) for key in unexpected)
    assert all(torch.equal(value, deep.state_dict()[key]) for key, value in shallow.state_dict().items())
    assert all(key in details(log)[0] for key in unexpected)


def test_shallower_into_deeper(log):
    deep = small_model(depths=(2, 2, 4, 2))
    missing, unexpected = deep.load_state_dict(small_model().state_dict(), strict=False)
    assert not unexpected and counts(log)['missing'] == len(missing) == 2 * 13


def test_official_deeper_into_shallower_by_file(log, tmp_path):
    torch.save(dict(model=official(depths=(2, 2, 6, 2))), tmp_path / 'small.pth')
    model = small_model(init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'small.pth')))
    model.init_weights()
    found = counts(log)
    assert found['unexpected'] == 4 * 13 and found['missing'] == 6
    assert all(out.isfinite().all() for out in model(pixels(1, 3, 40, 40)))


def test_fewer_stages(log):
    """A model whose later stages are not built takes the rest."""
    source = randomise(small_model(), 0)
    model = small_model(out_indices=(0, 1))
    model.load_state_dict(source.state_dict(), strict=False)
    assert counts(log)['missing'] == 0
    for a, b in zip(model(pixels(1, 3, 40, 40)), source(pixels(1, 3, 40, 40))):
        assert torch.equal(a, b)


def test_strict_loading_stays_strict():
    state = small_model(depths=(2, 2, 6, 2)).state_dict()
    with pytest.raises(RuntimeError, match='Unexpected key'):
        small_model().load_state_dict(state)


# ---- what does not fit ----

def refused(model: SwinRPE, state: dict, tmp_path, **init_cfg) -> str:
    """The sentence of a file that does not fit; nothing of the model is changed by it."""
    path = str(tmp_path / 'file.pth')
    torch.save(state, path)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.init_cfg = dict(type='Pretrained', checkpoint=path, **init_cfg)
    with pytest.raises(InputError) as error:
        model.init_weights()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    sentence = str(error.value)
    assert '\n' not in sentence and '. ' not in sentence and path in sentence
    return sentence


def test_wrong_prefix(tmp_path):
    """The sentence names the prefix that fits, or at least the argument."""
    state = {f'encoder.{key}': value for key, value in small_model().state_dict().items()}
    assert 'prefix' in refused(small_model(), state, tmp_path, prefix='backbone.')


def test_a_swin_under_names_that_nobody_knows(tmp_path):
    state = {key.replace('stages', 'parts').replace('patch_embed', 'stem'): value
             for key, value in small_model().state_dict().items()}
    assert 'prefix' in refused(small_model(), state, tmp_path)


def test_another_model(tmp_path):
    sentence = refused(small_model(), {'layer1.0.conv1.weight': torch.zeros(1)}, tmp_path)
    assert 'layer1.0.conv1.weight' in sentence and 'another model' in sentence


def test_almost_nothing_matches(tmp_path):
    """One name of many, as two models may share by chance."""
    state = {f'layer{i}.weight': torch.zeros(1) for i in range(100)}
    state['norm0.weight'] = torch.zeros(8)
    assert 'only 1 of 101 keys' in refused(small_model(), state, tmp_path)


@pytest.mark.parametrize('layout', ['ours', 'official'])
def test_swin_into_swin_v2(layout, tmp_path):
    state = official() if layout == 'official' else small_model().state_dict()
    sentence = refused(SwinRPE(**V2, window_size=3), state, tmp_path)
    assert 'one of Swin,' in sentence and 'the model a SwinV2' in sentence and 'v2-' in sentence


def test_swin_v2_into_swin(tmp_path):
    state = randomise_v2(SwinRPE(**V2, window_size=3)).state_dict()
    sentence = refused(small_model(), state, tmp_path)
    assert 'one of SwinV2,' in sentence and 'the model a Swin;' in sentence and 'v2-' in sentence


@pytest.mark.parametrize('layout', ['ours', 'official'])
def test_wider(layout, tmp_path):
    if layout == 'ours':
        state = small_model(embed_dims=16).state_dict()
    else:
        state = official(embed_dims=16)
    sentence = refused(small_model(), state, tmp_path)
    assert '(16, 3, 4, 4)' in sentence and '(8, 3, 4, 4)' in sentence and 'arch' in sentence


@pytest.mark.parametrize('kwargs', [dict(num_heads=(2, 2, 2, 4)), dict(mlp_ratio=2), dict(patch_size=2,
                                                                                         strides=(2, 2, 2, 2))])
def test_other_arguments(kwargs, tmp_path):
    sentence = refused(small_model(), small_model(**kwargs).state_dict(), tmp_path)
    assert next(iter(kwargs)) in sentence


def test_wider_inside_another_model():
    """By load_state_dict too, strict or not, it is one sentence rather than a list of shapes."""
    whole, other = torch.nn.Module(), torch.nn.Module()
    whole.backbone, other.backbone = small_model(), small_model(embed_dims=16)
    for strict in (True, False):
        with pytest.raises(InputError, match='embed_dims'):
            whole.load_state_dict(other.state_dict(), strict=strict)


# ---- the report itself ----

def test_report_of_a_whole_model():
    report = LoadReport(['a'] * 7, ['b'], ['c', 'd'], converted=3, resampled=2, family='timm')
    assert str(report) == ('7 keys matched, 3 converted from the layout of timm, 2 resampled, 1 missing (b), '
                           '2 unexpected (c, d)')
    assert report.details() == ''


def test_many_names():
    report = LoadReport.compare(list('abcdefgh'), list('a'))
    assert str(report) == '1 keys matched, 7 missing, 0 unexpected'
    assert report.details() == 'missing: b, c, d, e, f, g, h'


@pytest.mark.parametrize('matched, file, model, fits', [(0, 5, 5, False), (1, 10, 100, True), (1, 11, 100, False),
                                                        (1, 100, 10, True), (1, 100, 11, False), (0, 0, 5, False)])
def test_how_little_is_nothing(matched, file, model, fits):
    keys = [f'k{i}' for i in range(200)]
    report = LoadReport.compare(keys[:model], keys[:matched] + keys[150:150 + file - matched])
    if fits:
        report.check('a file', 'a model')
    else:
        with pytest.raises(InputError, match='a file .*a model'):
            report.check('a file', 'a model')
