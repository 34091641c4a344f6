"""What decays and what does not with the configs' ``custom_keys``, and the depth of each parameter."""
from pathlib import Path

import peers
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from oracles.cases import SMALL, mm_name
from torch import nn

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.rpe import RelativePositionEncoding

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
SCHEDULES = [
    '_base_/schedules/swin_160k.py', '_base_/schedules/adamw_small.py',
    'coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_1x_coco.py', 'coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_ms-crop-3x_coco.py']
ENCODINGS = {
    'none': None,
    'table': dict(type='TableRPE'),
    'clipped': dict(type='ClippedRPE'),
    'bucket': dict(type='LogBucketRPE'),
    'bucket cross': dict(type='LogBucketRPE', join='cross'),
    'log cpb': dict(type='LogCPB', hidden_dims=16),
    'contextual': dict(type='ContextualRPE', on='qkv', join='cross'),
    'decomposed': dict(type='DecomposedRPE'),
    'block': dict(type='BlockRPE'),
    'low rank': dict(type='LowRankRPE'),
    'axial': dict(type='RotaryRPE', mode='axial'),
    'rotary': dict(type='RotaryRPE'),
    'dynamic': dict(type='DynamicRPE', rpe=dict(type='LogCPB', hidden_dims=16)),
    'sum': [dict(type='TableRPE'), dict(type='ContextualRPE'), dict(type='DynamicRPE')],
}


def built(encoding: str, arch: str, **kwargs) -> SwinRPE:
    pooled = int(encoding not in ('axial', 'rotary'))
    return SwinRPE(**(SMALL | dict(arch=arch, rpe=ENCODINGS[encoding], pooled_neighbours=pooled, halo=1,
                                   use_abs_pos_embed='window', pretrain_img_size=32) | kwargs))


def must_not_decay(backbone: SwinRPE) -> set[int]:
    """Parameters of encodings and norms, by the modules that own them; position embeddings and temperatures."""
    exempt = [backbone.absolute_pos_embed, backbone.window_pos_embed]
    for module in backbone.modules():
        if isinstance(module, (RelativePositionEncoding, nn.LayerNorm)):
            exempt += list(module.parameters())
        if getattr(module, 'logit_scale', None) is not None:
            exempt.append(module.logit_scale)
    return {id(value) for value in exempt}


@pytest.fixture(scope='module')
def wrappers() -> dict:
    """The optimizer's part of each schedule."""
    return {name: Config.fromfile(CONFIGS / name).optim_wrapper for name in SCHEDULES}


@pytest.mark.parametrize('arch', ['nano', 'v2-nano'])
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_encodings_norms_and_embeddings_do_not_decay(encoding, arch, wrappers):
    backbone = built(encoding, arch)
    model = nn.ModuleDict(dict(backbone=backbone, head=nn.Linear(64, 3)))
    exempt = must_not_decay(backbone)
    for name, config in wrappers.items():
        base = config.optimizer.weight_decay
        assert base > 0
        groups = build_optim_wrapper(model, config).optimizer.param_groups
        decays = {id(value): group['weight_decay'] for group in groups for value in group['params']}
        assert len(decays) == sum(len(group['params']) for group in groups) == len(list(model.parameters()))
        biases_too = config.paramwise_cfg.get('bias_decay_mult') == 0
        for key, value in model.named_parameters():
            kept = id(value) not in exempt and not (biases_too and key.endswith('bias'))
            assert decays[id(value)] == (base if kept else 0), f'{key} with {name}'


@pytest.mark.parametrize('arch', ['nano', 'v2-nano'])
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_depth_rises_from_input_to_output(encoding, arch):
    """The order in which the tokens meet parameters; everything in a block has the block's depth."""
    depths = (1, 2, 3, 1)
    backbone = built(encoding, arch, depths=depths)
    steps = [['patch_embed.', 'absolute_pos_embed', 'window_pos_embed']]
    for i, depth in enumerate(depths):
        steps += [[f'stages.{i}.blocks.{j}.'] for j in range(depth)]
        steps[-1].append(f'stages.{i}.downsample.')
    steps.append([f'norm{i}.' for i in range(4)])
    found = set()
    for name, _ in backbone.named_parameters():
        expected = next(number for number, prefixes in enumerate(steps) if name.startswith(tuple(prefixes)))
        assert backbone.get_layer_depth(name) == (expected, len(steps)), name
        assert backbone.get_layer_depth(f'backbone.{name}', 'backbone.') == (expected, len(steps)), name
        found.add(expected)
    assert found == set(range(len(steps)))
    assert backbone.get_layer_depth('head.weight', 'backbone.') == (len(steps) - 1, len(steps))


def test_depths_are_those_of_mmpretrain():
    """For every parameter of its Swin; only encodings have other names here."""
    arch = {name: SMALL[name] for name in ('embed_dims', 'depths', 'num_heads')} | dict(depths=(1, 2, 3, 1))
    theirs = peers.mmpretrain('models.backbones.swin_transformer').SwinTransformer(arch, out_indices=(0, 1, 2, 3))
    ours = SwinRPE(**(SMALL | arch))
    names = {mm_name(name): name for name, _ in ours.named_parameters()}
    assert names.keys() == {name for name, _ in theirs.named_parameters()}
    for name, own in names.items():
        assert ours.get_layer_depth(own) == theirs.get_layer_depth(name), name
        assert ours.get_layer_depth(f'backbone.{own}', 'backbone.') == theirs.get_layer_depth(
            f'backbone.{name}', 'backbone.'), name
    assert ours.get_layer_depth('head.fc.weight', 'backbone.') == theirs.get_layer_depth('head.fc.weight', 'backbone.')


@pytest.mark.parametrize('encoding', ['table', 'sum'])
def test_learning_rates_that_decay_with_depth(encoding):
    """mmpretrain's constructor builds the optimizer, and a step with it moves every parameter by its rate."""
    constructor = peers.mmpretrain('engine.optimizers.layer_decay_optim_wrapper_constructor')
    backbone = built(encoding, 'nano')
    config = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05))
    wrapper = constructor.LearningRateDecayOptimWrapperConstructor(config, dict(layer_decay_rate=0.5))(backbone)
    rates = {id(value): group['lr'] for group in wrapper.optimizer.param_groups for value in group['params']}
    assert len(rates) == len(list(backbone.parameters()))
    assert rates[id(backbone.norm3.weight)] == 1e-3
    assert rates[id(backbone.stages[3].blocks[1].ffn.layers[1].weight)] == 1e-3 / 2
    assert rates[id(backbone.stages[0].downsample.reduction.weight)] == 1e-3 / 2**7
    assert rates[id(backbone.patch_embed.projection.weight)] == rates[id(backbone.window_pos_embed)] == 1e-3 / 2**9
    wrapper.update_params(sum(out.square().mean() for out in backbone(torch.ones(1, 3, 40, 40))))
