"""What training scripts put around the weights of any project comes off, whichever way they are loaded."""
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mmengine.model import BaseModule
from mmengine.runner import Runner, load_checkpoint
from oracles.cases import pixels
from oracles.compare import forward_error, record
from oracles.families import ARCH, FAMILIES, Peer

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.checkpoints import find_prefix, to_mm_layout, unwrap
from swin_rpe_mm.mm.checkpoint_files import read_safely

NAMES = [pytest.param(name, marks=[pytest.mark.needs_ops] if name.startswith('mmdet') else []) for name in FAMILIES]


@functools.lru_cache(maxsize=None)
def build(name: str) -> Peer:
    function, cases = FAMILIES[name]
    return function(**cases[0])


def under(prefix: str, state: dict) -> dict:
    return {prefix + key: value for key, value in state.items()}


def zeros(state: dict) -> dict:
    return {key: torch.zeros_like(value) for key, value in state.items()}


# parts of whole models, some of which have names like a backbone's
PARTS = {
    'neck.lateral_convs.0.conv.weight': torch.ones(4, 8, 1, 1), 'decode_head.norm.weight': torch.ones(4),
    'decode_head.layers.0.weight': torch.ones(4), 'bbox_head.stages.0.weight': torch.ones(4),
    'head.norm3.weight': torch.ones(64), 'data_preprocessor.mean': torch.ones(3)}
TRAINING = dict(optimizer=dict(state={}, param_groups=[dict(lr=1e-4)]), epoch=299, meta=dict(epoch=12))

WRAPPERS = {
    'nothing': lambda state: state,
    'the official code': lambda state: dict(model=state, **TRAINING),
    'mmengine': lambda state: dict(state_dict=state, **TRAINING),
    'DeepSpeed': lambda state: dict(module=state, **TRAINING),
    'net': lambda state: dict(net=state),
    'entry in entry': lambda state: dict(model=dict(state_dict=state)),
    'DataParallel': lambda state: dict(state_dict=under('module.', state)),
    'DataParallel twice': lambda state: dict(model=under('module.module.', state)),
    'torch.compile': lambda state: dict(model=under('_orig_mod.', state)),
    'model': lambda state: under('model.', state),
    'encoder': lambda state: under('encoder.', state),
    'model and encoder': lambda state: dict(state_dict=under('model.encoder.', state)),
    'a whole model': lambda state: dict(state_dict=under('backbone.', state) | PARTS, **TRAINING),
    'a whole model, parts first': lambda state: PARTS | under('backbone.', state),
    'a whole model, DDP': lambda state: dict(state_dict=under('module.', under('backbone.', state) | PARTS)),
    'a whole model in another': lambda state: dict(state_dict=under('model.', under('backbone.', state) | PARTS)),
    'averages beside it': lambda state: dict(state_dict=state, state_dict_ema=zeros(state)),
    'averages of timm and DeiT': lambda state: dict(model=state, model_ema=zeros(state)),
    'averages alone': lambda state: dict(state_dict_ema=under('module.', state)),
    'averages of mmengine': lambda state: dict(
        state_dict=under('backbone.', state),
        ema_state_dict=under('module.backbone.', zeros(state)) | dict(steps=torch.tensor(7))),
    'a momentum encoder': lambda state: dict(
        state_dict=under('momentum_encoder.module.', zeros(state)) | under('backbone.', state)),
    'a second encoder': lambda state: dict(model=under('encoder_k.', zeros(state)) | under('encoder.', state)),
}


def assert_same(actual: dict, expected: dict) -> None:
    assert list(actual) == list(expected)
    assert all(torch.equal(value, expected[key]) for key, value in actual.items())


@pytest.mark.parametrize('name', NAMES)
def test_unwrap(name):
    state = build(name).state
    expected, family = to_mm_layout(unwrap(state))
    for wrapper, wrap in WRAPPERS.items():
        converted, found = to_mm_layout(unwrap(wrap(state)))
        assert found == family, wrapper
        assert_same(converted, expected)


@pytest.mark.parametrize('name', NAMES)
def test_prefix_that_is_given(name):
    """The backbone of choice among several, with and without the dot."""
    state = unwrap(build(name).state)
    several = dict(state_dict=under('student.backbone.', zeros(state)) | under('teacher.backbone.', state))
    for prefix in ('teacher.backbone', 'teacher.backbone.'):
        assert_same(unwrap(several, prefix), state)
    assert not unwrap(several, 'backbone')


def test_find_prefix():
    first = 'patch_embed.proj.weight'
    assert find_prefix([]) is None
    assert find_prefix(['backbone.conv1.weight', 'backbone.layer1.0.conv1.weight']) is None
    assert find_prefix([first]) == ''
    assert find_prefix([f'a.b.{first}']) == 'a.b.'
    assert find_prefix([f'encoder.{first}', f'model.backbone.{first}']) == 'model.backbone.'
    assert find_prefix([f'model.encoder.{first}', f'encoder.{first}']) == 'encoder.'
    assert find_prefix(['my_patch_embed.proj.weight']) is None
    assert find_prefix(['patch_embed.proj.weight.exp_avg']) is None


def test_unwrapping_leaves_the_checkpoint_and_keeps_notes():
    """What modules noted beside their weights comes along under their own names."""
    state = SwinRPE(**ARCH).state_dict()
    whole = type(state)(under('module.backbone.', state) | PARTS)
    whole._metadata = under('module.backbone.', state._metadata) | {'': dict(version=1)}
    checkpoint = dict(state_dict=whole, meta=dict(epoch=1))
    weights = unwrap(checkpoint)
    assert weights._metadata == state._metadata
    assert list(checkpoint) == ['state_dict', 'meta'] and len(whole) == len(state) + len(PARTS)


def test_parts_of_a_backbone_need_no_first_layer():
    state = SwinRPE(**ARCH).state_dict()
    part = {key: value for key, value in state.items() if key.startswith('stages.1.')}
    for prefix in ('', 'module.', 'backbone.', 'module.backbone.'):
        assert_same(unwrap(under(prefix, part)), part)


# ---- loading ----


def check(peer: Peer, name: str, model: SwinRPE) -> None:
    """``model`` gives their features under its own output norms."""
    images = pixels(1, 3, *FAMILIES[name][1][0]['image'])
    model.eval()
    with torch.no_grad():
        outs = model(images)
        for actual, expected in zip(outs, peer.features(images, model, outs)):
            error = forward_error(actual, expected)
            record('weights of all projects, wrapped', error)
            assert error <= (1e-4 if peer.arguments.get('arch') == 'v2-nano' else 1e-5)


class Whole(BaseModule):
    """A model with a backbone and a head."""

    def __init__(self, backbone: SwinRPE):
        super().__init__()
        self.backbone, self.decode_head = backbone, torch.nn.Linear(3, 2)


def whole_state(state: dict, prefix: str = '') -> dict:
    """A file of such a model in any layout."""
    return under(prefix, under('backbone.', state) | {
        'decode_head.weight': torch.full((2, 3), 5.), 'decode_head.bias': torch.full((2, ), 7.)})


def by_load_state_dict(peer: Peer, checkpoint: dict, folder: Path) -> SwinRPE:
    model = peer.ours()
    _, unexpected = model.load_state_dict(checkpoint, strict=False)
    assert not unexpected
    return model


def by_init_cfg(peer: Peer, checkpoint: dict, folder: Path) -> SwinRPE:
    torch.save(checkpoint, folder / 'a.pth')
    model = peer.ours(init_cfg=dict(type='Pretrained', checkpoint=str(folder / 'a.pth')))
    model.init_weights()
    return model


def by_load_checkpoint(peer: Peer, checkpoint: dict, folder: Path) -> SwinRPE:
    torch.save(checkpoint, folder / 'a.pth')
    model = peer.ours()
    load_checkpoint(model, str(folder / 'a.pth'), map_location='cpu')
    return model


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('load', [by_load_state_dict, by_init_cfg, by_load_checkpoint])
def test_into_a_backbone(load: Callable, name: str, tmp_path: Path):
    peer = build(name)
    check(peer, name, load(peer, WRAPPERS['a whole model, DDP'](peer.state), tmp_path))


@pytest.mark.parametrize('wrapper', WRAPPERS)
@pytest.mark.parametrize('load', [by_load_state_dict, by_init_cfg, by_load_checkpoint])
def test_every_wrapper(load: Callable, wrapper: str, tmp_path: Path):
    peer = build('official')
    check(peer, 'official', load(peer, WRAPPERS[wrapper](peer.state), tmp_path))


@pytest.mark.parametrize('name', NAMES)
def test_into_a_whole_model(name, tmp_path):
    """Its own load, strict where the file has all norms, and mmengine's, of a file that DDP wrote."""
    peer = build(name)
    model = Whole(peer.ours())
    model.load_state_dict(whole_state(peer.state), strict=len(peer.normed) == 4)
    check(peer, name, model.backbone)
    torch.save(dict(state_dict=whole_state(peer.state, 'module.')), tmp_path / 'a.pth')
    model = Whole(peer.ours())
    load_checkpoint(model, str(tmp_path / 'a.pth'), map_location='cpu')
    check(peer, name, model.backbone)
    assert (model.decode_head.bias == 7).all()


def run_from(peer: Peer, checkpoint: dict, folder: Path, **kwargs) -> Whole:
    """As our tools do: mmengine's runner with our reading of files and our report."""
    torch.save(checkpoint, folder / 'a.pth')
    read_safely()
    model = Whole(peer.ours(**kwargs))
    runner = Runner(model, str(folder), load_from=str(folder / 'a.pth'), experiment_name=f'{folder}{id(model)}',
                    custom_hooks=[dict(type='swin_rpe_mm.CheckpointReportHook')])
    runner.call_hook('before_run')
    runner.load_or_resume()
    return model


@pytest.mark.parametrize('name', NAMES)
def test_load_from_of_a_backbone_alone(name, tmp_path):
    peer = build(name)
    check(peer, name, run_from(peer, WRAPPERS['the official code'](peer.state), tmp_path).backbone)


@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_load_from_of_every_wrapper(wrapper, tmp_path):
    peer = build('official')
    check(peer, 'official', run_from(peer, WRAPPERS[wrapper](peer.state), tmp_path).backbone)


WHOLE = {
    'nothing': whole_state,
    'state_dict': lambda state: dict(state_dict=whole_state(state), **TRAINING),
    'model': lambda state: dict(model=whole_state(state), **TRAINING),
    'entry in entry': lambda state: dict(model=dict(state_dict=whole_state(state))),
    'module.': lambda state: dict(state_dict=whole_state(state, 'module.')),
    'model.': lambda state: dict(state_dict=whole_state(state, 'model.')),
    'module.module.': lambda state: dict(state_dict=whole_state(state, 'module.module.')),
    'model and model.module.': lambda state: dict(model=whole_state(state, 'model.module.')),
}


@pytest.mark.parametrize('wrapper', WHOLE)
@pytest.mark.parametrize('name', ['mmseg', 'torchvision'])
def test_load_from_of_a_whole_model(name, wrapper, tmp_path):
    """Its head comes along, wherever it is."""
    peer = build(name)
    model = run_from(peer, WHOLE[wrapper](peer.state), tmp_path)
    check(peer, name, model.backbone)
    assert (model.decode_head.weight == 5).all() and (model.decode_head.bias == 7).all()


def test_load_from_of_our_own_rectangular_windows(tmp_path):
    """What our state dicts note reaches the backbone, of a whole model and of one alone."""
    peer = build('official')
    source = peer.ours(window_size=(3, 5))
    own = Whole(source)
    for checkpoint in (source.state_dict(), own.state_dict(), dict(model=source.state_dict())):
        model = run_from(peer, checkpoint, tmp_path, window_size=(5, 3), seed=2).backbone
        source_in_it = peer.ours(window_size=(5, 3), seed=3)
        source_in_it.load_state_dict(source.state_dict())
        assert_same(model.state_dict(), source_in_it.state_dict())


def test_what_is_no_swin_is_an_error_everywhere(tmp_path):
    peer = build('official')
    other = {'conv1.weight': torch.ones(3), 'layer1.0.conv1.weight': torch.ones(3)}
    for wrapper in ('nothing', 'the official code', 'mmengine', 'DataParallel', 'model and encoder'):
        for load in (by_load_state_dict, by_init_cfg, by_load_checkpoint, run_from):
            with pytest.raises(InputError) as error:
                load(peer, WRAPPERS[wrapper](other), tmp_path)
            assert '\n' not in str(error.value)


def test_file_of_transformers(tmp_path):
    """As ``save_pretrained`` writes it."""
    name = 'transformers 4, SwinBackbone'
    peer = build(name)
    peer.model.save_pretrained(tmp_path)
    model = peer.ours(init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'model.safetensors')))
    model.init_weights()
    check(peer, name, model)
