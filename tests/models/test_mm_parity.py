"""With ``mask_padding=False`` the numbers are those of mmdet's and mmseg's SwinTransformer, at every size."""
from importlib import import_module

import pytest
import torch
from oracles.cases import (
    SMALL,
    case_count,
    dice,
    gradients,
    in_mm_names,
    loss_of,
    pixels,
    random_length,
    randomise,
)
from oracles.compare import assert_forward, assert_gradients

from swin_rpe_mm import SwinRPE, attach_extents

PEERS = [pytest.param('mmdet', marks=pytest.mark.needs_ops), 'mmseg']


def in_turn(count: int) -> list:
    """Parameters ``(peer, case)``: each peer has every second case."""
    return [('mmseg', case) if case % 2 else pytest.param('mmdet', case, marks=pytest.mark.needs_ops)
            for case in range(count)]


def swin_of(peer: str) -> type[torch.nn.Module]:
    """The peer's ``SwinTransformer``; mmdet cannot be imported without mmcv's operators."""
    return import_module(f'{peer}.models.backbones').SwinTransformer


def pair(peer: str, seed: int, **kwargs) -> tuple[SwinRPE, torch.nn.Module]:
    """Ours and theirs with the same random weights."""
    shared = {name: value for name, value in kwargs.items() if name != 'attn_backend'}
    ours, theirs = SwinRPE(**(SMALL | kwargs), mask_padding=False), swin_of(peer)(**(SMALL | shared))
    theirs.load_state_dict(in_mm_names(randomise(ours, seed).state_dict()), strict=False)
    return ours, theirs


def results(model, images) -> tuple[list, dict]:
    """Outputs, and the gradients of every parameter and of the images."""
    images = images.clone().requires_grad_()
    outs = model(images)
    loss_of(outs).backward()
    return outs, gradients(model) | dict(images=images.grad)


def check(peer, ours, theirs, images) -> None:
    (actual, actual_grads), (expected, expected_grads) = results(ours, images), results(theirs, images)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert_forward(a, e, f'parity with {peer}')
    assert_gradients(actual_grads, expected_grads, f'parity with {peer}')


@pytest.mark.parametrize('peer, case', in_turn(case_count(30)))
def test_random_sizes(peer, case):
    rng = dice('parity', case)
    window = rng.randint(1, 8)
    backend = rng.choice(['eager', 'sdpa'])
    size = (random_length(rng, 300), random_length(rng, 500))
    images = pixels(1 if size[0] * size[1] > 20_000 else rng.randint(1, 3), 3, *size, seed=case)
    check(peer, *pair(peer, case, window_size=window, attn_backend=backend), images)


@pytest.mark.parametrize('peer, case', in_turn(6))
def test_in_double_precision(peer, case):
    rng = dice('parity in double precision', case)
    ours, theirs = pair(peer, case, window_size=rng.randint(1, 8))
    images = pixels(2, 3, random_length(rng, 97), random_length(rng, 97), seed=case).double()
    (actual, actual_grads), (expected, expected_grads) = (results(m.double(), images) for m in (ours, theirs))
    for a, e in zip(actual, expected):
        assert_forward(a, e)
    assert_gradients(actual_grads, expected_grads)


@pytest.mark.parametrize('size', [(1, 1), (3, 1), (17, 31), (32, 33), (112, 224), (300, 500)])
@pytest.mark.parametrize('peer', PEERS)
def test_window_of_seven(peer, size):
    check(peer, *pair(peer, 0, window_size=7), pixels(1, 3, *size))


@pytest.mark.parametrize('kwargs', [
    dict(qk_scale=0.7), dict(qkv_bias=False), dict(patch_norm=False), dict(in_channels=4), dict(mlp_ratio=2),
    dict(patch_size=2, strides=(2, 2, 2, 2)), dict(strides=(4, 2, 1, 2)), dict(out_indices=(3, )),
    dict(act_cfg=dict(type='ReLU')), dict(norm_cfg=dict(type='LN', eps=1e-3)), dict(depths=(1, 3), num_heads=(2, 4),
                                                                                   strides=(4, 2), out_indices=(0, 1)),
    dict(use_abs_pos_embed=True, pretrain_img_size=48)])
@pytest.mark.parametrize('peer', PEERS)
def test_other_arguments(peer, kwargs):
    size = (48, 48) if 'use_abs_pos_embed' in kwargs else (41, 58)
    channels = kwargs.get('in_channels', 3)
    check(peer, *pair(peer, 0, window_size=3, **kwargs), pixels(2, channels, *size))


def test_mlp_ratio_that_is_no_integer():
    check('mmseg', *pair('mmseg', 0, window_size=3, mlp_ratio=2.5), pixels(1, 3, 41, 58))


@pytest.mark.needs_ops
def test_extents_change_nothing_without_masks():
    ours, theirs = pair('mmdet', 0, window_size=3)
    images = pixels(2, 3, 41, 58)
    for a, e in zip(ours(attach_extents(images.clone(), [(9, 58), (41, 20)])), theirs(images)):
        assert_forward(a, e)


@pytest.mark.parametrize('use_abs_pos_embed', [False, True])
@pytest.mark.parametrize('peer', PEERS)
def test_state_dicts_have_the_same_keys_and_shapes(peer, use_abs_pos_embed):
    """But for the tables, which belong to the encoding here."""
    arguments = SMALL | dict(use_abs_pos_embed=use_abs_pos_embed, pretrain_img_size=48)
    ours, theirs = SwinRPE(**arguments), swin_of(peer)(**arguments)
    theirs_shapes = {name: value.shape for name, value in theirs.state_dict().items()
                     if not name.endswith('relative_position_index')}
    assert {name: value.shape for name, value in in_mm_names(ours.state_dict()).items()} == theirs_shapes
    ours.load_state_dict(theirs.state_dict(), strict=True)
    missing, unexpected = theirs.load_state_dict(in_mm_names(randomise(ours).state_dict()), strict=False)
    assert not unexpected and all(name.endswith('relative_position_index') for name in missing)
    for name, value in in_mm_names(ours.state_dict()).items():
        assert torch.equal(value, theirs.state_dict()[name]), name


@pytest.mark.parametrize('arch, embed_dims, depths, num_heads', [
    ('nano', 32, (2, 2, 2, 2), (1, 2, 4, 8)), ('tiny', 96, (2, 2, 6, 2), (3, 6, 12, 24)),
    ('small', 96, (2, 2, 18, 2), (3, 6, 12, 24)), ('base', 128, (2, 2, 18, 2), (4, 8, 16, 32)),
    ('large', 192, (2, 2, 18, 2), (6, 12, 24, 48))])
def test_arch_names(arch, embed_dims, depths, num_heads):
    model = SwinRPE(arch=arch)
    assert tuple(model.num_features) == tuple(embed_dims * 2**i for i in range(4))
    assert tuple(len(stage.blocks) for stage in model.stages) == depths
    tables = {name: value.shape for name, value in model.state_dict().items() if 'bias_table' in name}
    assert len(tables) == sum(depths)
    for i, heads in enumerate(num_heads):
        assert tables[f'stages.{i}.blocks.0.attn.w_msa.rpe.relative_position_bias_table'] == (169, heads)


def test_arguments_override_the_arch():
    model = SwinRPE(arch='nano', embed_dims=16, depths=(1, 2, 1, 1))
    assert tuple(model.num_features) == (16, 32, 64, 128)
    assert [len(stage.blocks) for stage in model.stages] == [1, 2, 1, 1]


@pytest.mark.parametrize('peer', PEERS)
def test_attributes_that_others_read(peer):
    arguments = SMALL | dict(out_indices=(1, 3), frozen_stages=1)
    ours, theirs = SwinRPE(**arguments), swin_of(peer)(**arguments)
    assert list(ours.num_features) == list(theirs.num_features)
    assert list(ours.out_indices) == list(theirs.out_indices)
    assert ours.frozen_stages == theirs.frozen_stages


@pytest.mark.needs_ops
def test_same_distribution_of_initial_weights():
    """Like mm's, but for the tables: mm leaves them at zero, the paper draws them with a deviation of 0.02."""
    ours, theirs = SwinRPE(arch='nano'), swin_of('mmdet')(**(SMALL | dict(embed_dims=32, num_heads=(1, 2, 4, 8))))
    ours.init_weights()
    theirs.init_weights()
    other = theirs.state_dict()
    for name, value in in_mm_names(ours.state_dict()).items():
        if name.endswith('relative_position_bias_table'):
            assert 0.01 < value.std() < 0.03
        elif value.dim() == 1 and 'patch_embed.projection' not in name:
            assert torch.equal(value, other[name]), name
        else:
            assert abs(value.std() / other[name].std() - 1) < 0.15, name
