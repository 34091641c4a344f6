"""Mistyped names and impossible combinations fail at construction, with one sentence."""
import pytest
import torch
from mmengine.config import ConfigDict
from oracles.cases import SMALL, pixels, randomise

from swin_rpe_mm import InputError, SwinRPE

WRONG = [
    (dict(arch='tinny'), 'arch'),
    (dict(arch='tinny'), 'tiny'),
    (dict(rpe=dict(type='TabelRPE')), 'TableRPE'),
    (dict(rpe='TableRPE'), 'rpe'),
    (dict(rpe=dict(window_size=7)), 'rpe'),
    (dict(attn_backend='flash'), 'sdpa'),
    (dict(window_size=[7, 7, 7]), 'window_size'),
    (dict(window_size=[7, 7, 7, 7, 7]), 'window_size'),
    (dict(window_size=(7, 7, 7)), 'window_size'),
    (dict(window_size=0), 'window_size'),
    (dict(window_size=(7, -1)), 'window_size'),
    (dict(window_size=7.5), 'window_size'),
    (dict(window_size='7'), 'window_size'),
    (dict(embed_dims=10, num_heads=(3, 6, 12, 24)), 'num_heads'),
    (dict(embed_dims=0), 'embed_dims'),
    (dict(num_heads=(1, 2, 4)), 'num_heads'),
    (dict(num_heads=(0, 2, 4, 8)), 'num_heads'),
    (dict(depths=(2, 2, 2)), 'depths|num_heads'),
    (dict(depths=(2, 0, 2, 2)), 'depths'),
    (dict(out_indices=(0, 4)), 'out_indices'),
    (dict(out_indices=(-1, )), 'out_indices'),
    (dict(out_indices=()), 'out_indices'),
    (dict(strides=(4, 2, 2)), 'strides'),
    (dict(patch_size=2), 'patch'),
    (dict(drop_path_rate=1.5), 'drop_path_rate'),
    (dict(frozen_stages=5), 'frozen_stages'),
    (dict(in_channels=0), 'in_channels'),
    (dict(mlp_ratio=0), 'mlp_ratio'),
    (dict(pretrained='a.pth', init_cfg=dict(type='Pretrained', checkpoint='b.pth')), 'init_cfg'),
]


@pytest.mark.parametrize('arguments, named', WRONG)
def test_one_sentence(arguments, named):
    with pytest.raises(InputError, match=named) as error:
        SwinRPE(**(dict(arch='nano') | arguments))
    assert '\n' not in str(error.value)


def test_unknown_argument_is_an_error():
    with pytest.raises(TypeError, match='window'):
        SwinRPE(arch='nano', windowsize=7)


@pytest.mark.parametrize('shape', [(1, 3, 0, 5), (1, 3, 5, 0), (0, 3, 5, 5), (3, 5, 5)])
def test_no_images_or_no_pixels(shape):
    with pytest.raises(InputError, match='images must have the shape'):
        SwinRPE(**SMALL)(torch.zeros(shape))


@pytest.mark.parametrize('window, per_stage', [
    (5, [(5, 5)] * 4), ((3, 5), [(3, 5)] * 4), ([3, 4, (5, 2), 6], [(3, 3), (4, 4), (5, 2), (6, 6)])])
def test_ways_to_write_a_window(window, per_stage):
    model = SwinRPE(**SMALL, window_size=window)
    tables = model.state_dict()
    for i, (h, w) in enumerate(per_stage):
        table = tables[f'stages.{i}.blocks.0.attn.w_msa.rpe.relative_position_bias_table']
        assert len(table) == (2 * h - 1) * (2 * w - 1)
    assert len(model(pixels(1, 3, 33, 50))) == 4


def test_arguments_read_from_a_config():
    config = ConfigDict(**SMALL, window_size=[3, [4, 4], (5, 2), 6], rpe=dict(type='TableRPE'))
    config.depths = list(config.depths)
    assert len(SwinRPE(**config)(pixels(1, 3, 33, 50))) == 4


def test_no_relative_position_encoding():
    model = SwinRPE(**SMALL, rpe=None)
    assert not any('bias_table' in name for name in model.state_dict())
    assert all(out.isfinite().all() for out in model(pixels(1, 3, 33, 50)))


def test_defaults_are_not_shared_between_models():
    rpe, init_cfg = dict(type='TableRPE'), dict(type='Normal', layer='Linear', std=0.5)
    first, second = (SwinRPE(**SMALL, rpe=rpe, init_cfg=init_cfg) for _ in range(2))
    assert rpe == dict(type='TableRPE') and init_cfg == dict(type='Normal', layer='Linear', std=0.5)
    randomise(first)
    assert not torch.equal(first.state_dict()['norm0.weight'], second.state_dict()['norm0.weight'])


def test_other_initialisation():
    model = SwinRPE(**SMALL, init_cfg=dict(type='Constant', layer='Linear', val=0.25))
    model.init_weights()
    assert (model.stages[0].blocks[0].attn.w_msa.proj.weight == 0.25).all()
