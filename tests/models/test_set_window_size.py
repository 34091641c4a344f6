"""Windows change size at run time, between steps of training too: the same as loading into a model of that size."""
import copy

import pytest
import torch
from mmengine.runner import load_checkpoint, save_checkpoint
from oracles.cases import SMALL as SWIN
from oracles.cases import loss_of, pixels
from oracles.compare import assert_forward

from swin_rpe_mm import InputError, SwinRPE, attach_extents
from swin_rpe_mm.rpe.replacing import replace_in_optimizer

ENCODINGS = {
    'table': dict(type='TableRPE'),
    'clipped': dict(type='ClippedRPE', max_distance=3),
    'bucket': dict(type='LogBucketRPE', join='cross'),
    'log cpb': dict(type='LogCPB', hidden_dims=16),
    'log cpb of 8': dict(type='LogCPB', hidden_dims=16, pretrained_window_size=[8, 8, 8, 4]),
    'contextual': dict(type='ContextualRPE', on='qkv'),
    'decomposed': dict(type='DecomposedRPE'),
    'block': dict(type='BlockRPE'),
    'low rank': dict(type='LowRankRPE'),
    'rotary': dict(type='RotaryRPE'),
    'dynamic': dict(type='DynamicRPE'),
    'sum': [dict(type='TableRPE'), dict(type='RotaryRPE'), dict(type='DynamicRPE', rpe=dict(type='DecomposedRPE'))],
    'none': None,
}
SMALL = SWIN | dict(depths=(1, 1, 2, 1))
MODES = ['bicubic', 'linear', 'geometric', 'crop']
TABLES = ['table', 'decomposed', 'low rank', 'dynamic', 'sum']  # what runs over the offsets of the window
OLD = [(5, 5), (5, 6), (6, 5), (5, 7)]
CHANGES = {  # those that geometric can make too
    'larger': [(7, 7), (6, 7), (7, 8), (6, 10)],
    'one side': [(5, 7), (5, 7), (6, 7), (5, 8)],
}
OTHER_CHANGES = {'smaller': 3, 'one token': 1, 'rectangular': (2, 9), 'turned': [(5, 5), (6, 5), (5, 6), (7, 5)]}


def with_mode(rpe, mode: str):
    """The config with a ``resize_mode``, in what is wrapped too."""
    if isinstance(rpe, list):
        return [with_mode(part, mode) for part in rpe]
    if rpe is None:
        return None
    inner = dict(rpe=with_mode(rpe.get('rpe', dict(type='TableRPE')), mode)) if rpe['type'] == 'DynamicRPE' else {}
    return rpe | inner | dict(resize_mode=mode)


def built(rpe, window, seed=None, **kwargs) -> SwinRPE:
    model = SwinRPE(**(SMALL | dict(window_size=window, rpe=rpe) | kwargs))
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, value in sorted(model.named_parameters()):
                fan_in = value[0].numel() if value.ndim == 2 and len(value) > 1 else 4
                noise = torch.randn(value.shape, generator=generator) * fan_in**-0.5
                value.copy_(noise + (1 if 'norm' in name and name.endswith('weight') else 0))
    return model.eval()


def batch() -> torch.Tensor:
    return attach_extents(pixels(2, 3, 50, 42), [(50, 33), (21, 42)])


def assert_same(model: SwinRPE, other: SwinRPE) -> None:
    """Equal windows, state dicts and features, bit by bit."""
    assert [stage.window_size for stage in model.stages] == [stage.window_size for stage in other.stages]
    states = [m.state_dict() for m in (model, other)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert states[0]._metadata == states[1]._metadata
    with torch.no_grad():
        for a, b in zip(model(batch()), other(batch())):
            assert torch.equal(a, b)


def check_change(rpe, window, mode: str, **kwargs) -> None:
    """``set_window_size`` gives what loading into a new model gives, and new parameters only for tables."""
    model = built(rpe, OLD, 0, **kwargs)
    saved = copy.deepcopy(model.state_dict())
    before = dict(model.named_parameters())
    replaced = model.set_window_size(window, mode)
    after = dict(model.named_parameters())
    assert list(before) == list(after)
    changed = [name for name in before if before[name] is not after[name]]
    assert {(id(old), id(new)) for old, new in replaced} == {(id(before[name]), id(after[name])) for name in changed}
    assert all('bias_table' in name or name == 'window_pos_embed' for name in changed)
    loaded = built(with_mode(rpe, mode), window, 1, **kwargs)
    loaded.load_state_dict(saved)
    assert_same(model, loaded)
    outs = model.train()(batch())
    loss_of(outs).backward()
    assert all(value.grad is None or value.grad.shape == value.shape for value in model.parameters())


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize('encoding', TABLES)
def test_same_as_loading(encoding, change, mode):
    check_change(ENCODINGS[encoding], CHANGES[change], mode)


@pytest.mark.parametrize('encoding', [encoding for encoding in ENCODINGS if encoding not in TABLES])
def test_same_as_loading_without_tables(encoding):
    check_change(ENCODINGS[encoding], CHANGES['larger'], 'geometric')


@pytest.mark.parametrize('mode', ['bicubic', 'crop'])
@pytest.mark.parametrize('change', OTHER_CHANGES)
@pytest.mark.parametrize('encoding', ['table', 'low rank', 'sum', 'none'])
def test_same_as_loading_for_any_window(encoding, change, mode):
    check_change(ENCODINGS[encoding], OTHER_CHANGES[change], mode)


@pytest.mark.parametrize('kwargs', [dict(halo=2), dict(halo='window'), dict(halo=2, pooled_neighbours=1),
                                    dict(arch='v2-nano'), dict(use_abs_pos_embed='window', pretrain_img_size=40)])
@pytest.mark.parametrize('mode', ['bicubic', 'crop'])
@pytest.mark.parametrize('encoding', ['table', 'low rank'])
def test_same_as_loading_with_all_else(encoding, mode, kwargs):
    check_change(ENCODINGS[encoding], (7, 6), mode, **kwargs)


def test_halo_of_a_window_follows_and_a_number_stays():
    for halo, expected in (('window', (6, 8)), (2, (2, 2)), ((0, 3), (0, 3))):
        model = built(ENCODINGS['table'], 4, halo=halo)
        model.set_window_size((6, 8))
        for stage in model.stages:
            assert stage.halo == expected
            assert stage.blocks[0].attn.w_msa.rpe.key_size == (6 + 2 * expected[0], 8 + 2 * expected[1])


@pytest.mark.parametrize('encoding', ['table', 'decomposed', 'dynamic', 'sum'])
def test_cropping_there_and_back_changes_nothing(encoding):
    """Growing repeats the edge, which shrinking takes away again."""
    model = built(ENCODINGS[encoding], OLD, 0)
    same = copy.deepcopy(model)
    model.set_window_size([(9, 5), (5, 8), (6, 6), (8, 7)], 'crop')
    model.set_window_size(OLD, 'crop')
    assert_same(model, same)


@pytest.mark.parametrize('encoding', ['clipped', 'bucket', 'log cpb', 'log cpb of 8', 'contextual', 'rotary'])
def test_function_of_the_offset_stays(encoding):
    """Where no table runs over the window, a window that covers a small map is as good as any larger one."""
    model = built(ENCODINGS[encoding], 8, 0, shift_windows=False)
    with torch.no_grad():
        before = model(pixels(1, 3, 32, 25))
        model.set_window_size((11, 9))
        for a, b in zip(model(pixels(1, 3, 32, 25)), before):
            assert_forward(a, b)


@pytest.mark.parametrize('encoding, kind', [(encoding, torch.optim.AdamW) for encoding in ENCODINGS] + [
    (encoding, torch.optim.SGD) for encoding in TABLES])
def test_an_optimizer_goes_on(encoding, kind):
    """A step before and two after the change: averages stay but for new parameters, and these are trained."""
    model = built(ENCODINGS[encoding], OLD, 0).train()
    optimizer = kind(model.parameters(), lr=1e-3, **(dict(momentum=0.9) if kind is torch.optim.SGD else {}))

    def step():
        optimizer.zero_grad()
        loss = loss_of(model(batch()))
        loss.backward()
        optimizer.step()
        return loss  # a loop holds the last loss, and with it the graph of the old window

    held = step()
    averages = {id(value): optimizer.state[value] for value in model.parameters()}
    numbers = {id(value): copy.deepcopy(optimizer.state[value]) for value in model.parameters()}
    replaced = model.set_window_size((7, 6), optimizer=optimizer)
    assert bool(replaced) == (encoding in TABLES)
    held_by = [id(value) for group in optimizer.param_groups for value in group['params']]
    assert held_by == [id(value) for value in model.parameters()]
    new = {id(value) for _, value in replaced}
    for value in model.parameters():
        if id(value) in new:
            assert value not in optimizer.state
            continue
        assert optimizer.state[value] is averages[id(value)]
        for name, average in averages[id(value)].items():
            assert average is None or torch.equal(torch.as_tensor(average), torch.as_tensor(numbers[id(value)][name]))
    for _ in range(2):
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        held = step()
    assert held.isfinite()
    moved = set()
    for name, value in model.named_parameters():
        assert value.isfinite().all()
        if value.grad is not None and value.grad.any():
            assert not torch.equal(value, before[name]), name
            moved.add(id(value))
        for average in optimizer.state[value].values():
            assert not isinstance(average, torch.Tensor) or average.ndim == 0 or average.shape == value.shape
    assert new <= moved


def test_an_optimizer_that_is_not_told_trains_the_old_tables():
    """Which is why it must be given; what was returned can be handed to it later."""
    model = built(ENCODINGS['table'], OLD, 0).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.)
    replaced = model.set_window_size((7, 6))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for told in (False, True):
        if told:
            replace_in_optimizer(optimizer, replaced)
        loss_of(model(batch())).backward()
        optimizer.step()
        assert all(torch.equal(value, before[name]) == (not told)
                   for name, value in model.named_parameters() if 'bias_table' in name)


def test_frozen_tables_stay_frozen():
    model = built(ENCODINGS['table'], OLD, 0, frozen_stages=2)
    replaced = model.set_window_size((7, 6))
    assert [new.requires_grad for _, new in replaced] == [old.requires_grad for old, _ in replaced]
    assert any(new.requires_grad for _, new in replaced) and not all(new.requires_grad for _, new in replaced)


def test_a_change_in_inference_mode_can_be_trained():
    model = built(ENCODINGS['sum'], OLD, 0, use_abs_pos_embed='window', pretrain_img_size=40)
    with torch.inference_mode():
        model.set_window_size((7, 6))
        model(batch())
    assert not any(value.is_inference() for value in model.parameters())
    loss_of(model.train()(batch())).backward()
    assert all(value.grad is not None for name, value in model.named_parameters() if 'bias_table' in name)


def test_ema_copies_change_by_themselves():
    """A deep copy shares nothing with the model it was made of."""
    model = built(ENCODINGS['table'], 5, 0)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        before = copied(batch())
        model.set_window_size(7)
        for a, b in zip(copied(batch()), before):
            assert torch.equal(a, b)
        copied.set_window_size(7)
    assert_same(copied, model)


@pytest.mark.parametrize('encoding', ['table', 'none', 'rotary', 'sum'])
@pytest.mark.parametrize('window, mode, named', [
    (0, 'bicubic', 'window_size'), (7.5, 'bicubic', 'window_size'), ([7, 7, 7], 'bicubic', 'window_size'),
    ((7, -1), 'crop', 'window_size'), ('7', 'crop', 'window_size'), (None, 'crop', 'window_size'),
    (7, 'nearest', 'mode'), (7, None, 'mode')])
def test_refused_in_one_sentence_and_unchanged(window, mode, named, encoding):
    model = built(ENCODINGS[encoding], OLD, 0)
    same = copy.deepcopy(model)
    with pytest.raises(InputError, match=named) as error:
        model.set_window_size(window, mode)
    assert '\n' not in str(error.value)
    assert_same(model, same)


@pytest.mark.parametrize('encoding', ['table', 'low rank', 'dynamic'])
def test_what_one_stage_cannot_do_no_stage_does(encoding):
    """geometric reaches some windows only: if the last stage's is not among them, the first keeps its own as well."""
    model = built(ENCODINGS[encoding], OLD, 0, use_abs_pos_embed='window', pretrain_img_size=40)
    same = copy.deepcopy(model)
    with pytest.raises(InputError, match='geometric') as error:
        model.set_window_size([7, 7, 7, 40], 'geometric')
    assert '\n' not in str(error.value)
    assert_same(model, same)


@pytest.mark.parametrize('way', ['load_state_dict', 'init_cfg', 'load_checkpoint', 'inside a model'])
@pytest.mark.parametrize('encoding', [encoding for encoding in ENCODINGS if encoding != 'none'])
def test_every_way_of_loading(encoding, way, tmp_path):
    """A file of another window gives what ``set_window_size`` gives."""
    rpe, new, path = ENCODINGS[encoding], [(7, 6), 4, (2, 5), 5], str(tmp_path / 'saved.pth')
    source = built(rpe, OLD, 0)
    model = built(rpe, new, 1)
    if way == 'load_state_dict':
        model.load_state_dict(source.state_dict())
    elif way == 'init_cfg':
        torch.save(source.state_dict(), path)
        model = built(rpe, new, init_cfg=dict(type='Pretrained', checkpoint=path))
        model.init_weights()
    elif way == 'load_checkpoint':  # what load_from does
        save_checkpoint(dict(state_dict=source.state_dict(), meta={}), path)
        load_checkpoint(model, path, map_location='cpu', strict=True)
    else:
        save_checkpoint(dict(state_dict=torch.nn.ModuleDict(dict(backbone=source)).state_dict()), path)
        load_checkpoint(torch.nn.ModuleDict(dict(backbone=model)), path, map_location='cpu', strict=True)
    source.set_window_size(new)
    assert_same(model, source)


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_state_dict_after_a_change_is_that_of_the_new_window(encoding):
    model = built(ENCODINGS[encoding], OLD, 0)
    model.set_window_size((3, 8))
    fresh = built(ENCODINGS[encoding], (3, 8), 1)
    fresh.load_state_dict(copy.deepcopy(model.state_dict()))
    assert_same(fresh, model)


def test_nothing_is_kept_of_the_old_window():
    """After a change and back, caches included, features are those of a model that never changed."""
    model = built(ENCODINGS['log cpb'], 5, 0)
    same = copy.deepcopy(model)
    with torch.no_grad():
        for window in (3, (2, 9), 5):
            model.set_window_size(window)
            model(batch())
    assert_same(model, same)
