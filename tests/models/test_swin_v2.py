"""SwinV2 equals mmpretrain's and transformers' with the same weights, and dense attention written out."""
import math

import peers
import pytest
import torch
import torch.nn.functional as F
from mmengine.runner import load_checkpoint
from oracles.cases import (
    SMALL,
    case_count,
    dice,
    gradients,
    in_mm_names,
    loss_of,
    parameters,
    pixels,
    random_extents,
    random_size,
    random_window,
    token_size,
)
from oracles.compare import TOLERANCE, assert_forward, assert_gradients, forward_error, gradient_error, record
from oracles.swin_v2 import dense_swin_v2, from_mmpretrain, from_transformers, randomise_v2, to_official

from swin_rpe_mm import InputError, SwinRPE, attach_extents

V2 = SMALL | dict(arch='v2-nano')


def ours_with(state: dict, **kwargs) -> SwinRPE:
    """Our SwinV2 with weights under our names; output norms that are not among them leave their input normalised."""
    model = SwinRPE(**(V2 | kwargs), mask_padding=False)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(name.split('.')[0][:-1] == 'norm' for name in missing)
    return model


def assert_same(ours: torch.nn.Module, theirs: torch.nn.Module, size, to_maps, to_our_names, name: str) -> None:
    """Features and gradients of two implementations.

    In double precision, since norms behind small branches multiply float32's rounding. The peers keep their coordinates
    in float32 all the same, so that the tolerances are those of float32.
    """
    results = []
    for model, read in ((ours, tuple), (theirs, to_maps)):
        images = pixels(2, 3, *size).double().requires_grad_()
        outs = read(model.double()(images))
        loss_of(outs).backward()
        results.append((outs, gradients(model) | dict(images=images.grad)))
    for a, e in zip(results[0][0], results[1][0]):
        error = forward_error(a, e)
        record(f'SwinV2, {name}, forward', error)
        assert error <= TOLERANCE['forward'][torch.float32], f'forward error {error:.2e}'
    expected = to_our_names(results[1][1])
    error, where = gradient_error({name: results[0][1][name] for name in expected}, expected)
    record(f'SwinV2, {name}, gradient', error)
    assert error <= TOLERANCE['gradient'][torch.float32], f'relative gradient error {error:.2e} in {where}'


def crop(maps: torch.Tensor, index: int, extent) -> torch.Tensor:
    return maps[index, :, :extent[0], :extent[1]]


# ---- peers: name of the case, arguments, size of the image ----

MMPRETRAIN = {
    'maps as large as windows': (dict(window=[8, 8, 8, 4]), (128, 128)),
    'pre-trained with larger windows': (dict(window=[6, 5, 4, 3], pretrained=[12, 12, 7, 6]), (96, 96)),
    'pre-trained with smaller windows': (dict(window=[12, 8, 4, 2], pretrained=[3, 5, 2, 2]), (192, 96)),
    'rectangular image': (dict(window=[4, 4, 3, 2]), (96, 160)),
    'padded, small maps too': (dict(window=[7, 4, 5, 3], pretrained=[0, 8, 0, 2], pad_small_map=True), (75, 101)),
    'one pixel': (dict(window=[2, 2, 2, 2], pad_small_map=True), (1, 1)),
}


def mmpretrain_pair(window, pretrained=None, pad_small_map: bool = False, seed: int = 0):
    """Theirs with random weights, and ours with the same, read by name."""
    arch = {name: V2[name] for name in ('embed_dims', 'depths', 'num_heads')}
    theirs = peers.mmpretrain('models.backbones.swin_transformer_v2').SwinTransformerV2(
        arch=arch | dict(extra_norm_every_n_blocks=0), window_size=window, out_indices=(0, 1, 2, 3),
        pretrained_window_sizes=pretrained or [0] * 4, pad_small_map=pad_small_map, drop_path_rate=0.)
    randomise_v2(theirs, seed)
    ours = ours_with(from_mmpretrain(theirs.state_dict()), window_size=window, shift_covered_axes=pad_small_map,
                     rpe=dict(type='LogCPB', pretrained_window_size=pretrained or 0))
    return ours, theirs


@pytest.mark.parametrize('case', MMPRETRAIN)
def test_features_and_gradients_of_mmpretrain(case):
    arguments, size = MMPRETRAIN[case]
    ours, theirs = mmpretrain_pair(**arguments)
    assert_same(ours, theirs, size, tuple, from_mmpretrain, 'mmpretrain')


TRANSFORMERS = {
    'windows cut to the map': (dict(window=8, image=128), (128, 128)),
    'pre-trained with other windows': (dict(window=6, image=96, pretrained=[12, 4, 9, 2]), (96, 96)),
    'image of another size': (dict(window=4, image=128, depths=(2, 2, 2, 1)), (96, 160)),
    'padded': (dict(window=5, image=160, depths=(2, 2, 2, 1)), (117, 95)),
}


def transformers_pair(kind: str, window: int, image: int, pretrained=None, depths=(2, 2, 2, 2)):
    module = peers.transformers_swin_v2()
    config = module.Swinv2Config(
        image_size=image, embed_dim=V2['embed_dims'], depths=depths, num_heads=V2['num_heads'], window_size=window,
        pretrained_window_sizes=pretrained or [0] * 4, drop_path_rate=0.,
        out_features=['stage1', 'stage2', 'stage3', 'stage4'])
    theirs = randomise_v2(getattr(module, kind)(config), 1).eval()
    windows = [min(window, image // 4 // 2**i) for i in range(4)]
    ours = ours_with(from_transformers(theirs.state_dict()), depths=depths, window_size=windows,
                     rpe=dict(type='LogCPB', pretrained_window_size=pretrained or 0))
    return ours, theirs


@pytest.mark.parametrize('case', TRANSFORMERS)
def test_features_and_gradients_of_transformers(case):
    arguments, size = TRANSFORMERS[case]
    ours, theirs = transformers_pair('Swinv2Backbone', **arguments)

    def maps(outs):  # before an output norm, which ours has with weight 1 and bias 0
        return [F.layer_norm(out.permute(0, 2, 3, 1), out.shape[1:2]).permute(0, 3, 1, 2) for out in outs.feature_maps]

    assert_same(ours, theirs, size, maps, from_transformers, 'transformers')


@pytest.mark.parametrize('case', list(TRANSFORMERS)[:2])
def test_last_features_of_transformers_model(case):
    arguments, size = TRANSFORMERS[case]
    ours, theirs = transformers_pair('Swinv2Model', **arguments)
    images = pixels(2, 3, *size)
    with torch.no_grad():
        last = ours(images)[-1].flatten(2).transpose(1, 2)
        assert forward_error(last, theirs(images).last_hidden_state) <= 1e-4


# ---- the dense oracle: any size, any extent, masks ----


def random_v2(rng, seed: int, **kwargs) -> tuple[SwinRPE, dict]:
    """A small model with a window per stage, most of them not the pre-trained one, and the oracle's arguments."""
    windows = [random_window(rng) for _ in range(4)]
    pretrained = [rng.choice([0, 1, 4, 12, (3, 8)]) for _ in range(4)]
    depths = tuple(rng.choice([1, 2]) for _ in range(4))
    covered = rng.random() < 0.5
    model = SwinRPE(**(V2 | dict(depths=depths, window_size=windows, shift_covered_axes=covered,
                                 rpe=dict(type='LogCPB', pretrained_window_size=pretrained)) | kwargs))
    taken = [given if isinstance(given, tuple) else (given or window[0], given or window[1])
             for given, window in zip(pretrained, windows)]
    return randomise_v2(model, seed), dict(depths=depths, num_heads=V2['num_heads'], windows=windows,
                                           pretrained=taken, shift_covered_axes=covered)


def check_against_dense(model, arguments, images, extents, name) -> None:
    """Features and gradients of a padded batch against those of its images one by one."""
    params = {name: value.detach().clone().requires_grad_() for name, value in parameters(model).items()}
    outs = model(attach_extents(images, extents))
    expected = [dense_swin_v2(params, crop(images, i, extent), **arguments) for i, extent in enumerate(extents)]
    inside = [[crop(out, i, token_size(extent, stage)) for stage, out in enumerate(outs)]
              for i, extent in enumerate(extents)]
    loss_of([out for image in inside for out in image]).backward()
    loss_of([out for image in expected for out in image]).backward()
    for actual, dense in zip(inside, expected):
        for a, e in zip(actual, dense):
            assert_forward(a, e, name)
    assert_gradients(gradients(model), {name: value.grad for name, value in params.items()}, name)


@pytest.mark.parametrize('case', range(case_count(8)))
def test_dense_oracle(case):
    """In double precision; single precision is then as close as its rounding lets it be."""
    rng = dice('dense SwinV2', case)
    size = random_size(rng, 97, area=5000)
    extents = random_extents(rng, rng.randint(1, 3), size)
    model, arguments = random_v2(rng, case, attn_backend=rng.choice(['eager', 'sdpa']))
    images = pixels(len(extents), 3, *size, seed=case)
    with torch.no_grad():
        single = model(attach_extents(images, extents))
    model.double()
    check_against_dense(model, arguments, images.double(), extents, 'SwinV2, dense oracle')
    with torch.no_grad():
        for out, exact in zip(single, model(attach_extents(images.double(), extents))):
            error = ((out - exact).norm() / exact.norm()).item()
            record('SwinV2, single against double precision, relative', error)
            assert error <= 1e-5


@pytest.mark.parametrize('case', range(4))
def test_logits_scaled_by_a_hundred_at_most(case):
    rng = dice('SwinV2 with large scales', case)
    size = random_size(rng, 60)
    extents = random_extents(rng, 2, size)
    model, arguments = random_v2(rng, case)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith('logit_scale'):
                value.add_(torch.tensor([0.] + [3.] * (len(value) - 1)).view(-1, 1, 1))  # e**5 would be 148
    check_against_dense(model.double(), arguments, pixels(2, 3, *size, seed=case).double(), extents,
                        'SwinV2, dense oracle')
    for name, value in model.named_parameters():
        if name.endswith('logit_scale'):
            assert (value.grad[value >= math.log(100)] == 0).all()


def test_parts_of_v2():
    """Defaults of the arch; k has no bias, and table and qkv bias are absent."""
    model = SwinRPE(arch='v2-nano')
    assert {stage.window_size for stage in model.stages} == {(8, 8)}
    names = {name for name in model.state_dict() if name.startswith('stages.0.blocks.0.attn')}
    assert names == {f'stages.0.blocks.0.attn.w_msa.{name}' for name in (
        'logit_scale', 'q_bias', 'v_bias', 'qkv.weight', 'proj.weight', 'proj.bias', 'rpe.cpb_mlp.0.weight',
        'rpe.cpb_mlp.0.bias', 'rpe.cpb_mlp.2.weight')}
    without = SwinRPE(**V2, qkv_bias=False)
    assert not any(name.endswith(('q_bias', 'v_bias', 'qkv.bias')) for name in without.state_dict())


def test_other_encoding_in_v2():
    """The block is SwinV2's with any encoding."""
    model = randomise_v2(SwinRPE(**V2, window_size=3, rpe=dict(type='TableRPE')))
    outs = model(pixels(1, 3, 80, 100))
    loss_of(outs).backward()
    assert all(value.grad.abs().max() > 0 for value in model.parameters())


@pytest.mark.parametrize('case', range(6))
def test_alone_and_in_any_batch(case):
    rng = dice('invariance of SwinV2', case)
    size = random_size(rng, 97)
    extents = random_extents(rng, 3, size)
    model, _ = random_v2(rng, case)
    images = pixels(3, 3, *size, seed=case)
    for i, extent in enumerate(extents):
        crop(images, i, (size[0], size[1]))[:, extent[0]:] = float('nan')
        crop(images, i, (size[0], size[1]))[:, :, extent[1]:] = float('nan')
    with torch.no_grad():
        together = model(attach_extents(images, extents))
        for i, extent in enumerate(extents):
            for stage, alone in enumerate(model(crop(images, i, extent)[None].clone())):
                h, w = token_size(extent, stage)
                assert_forward(crop(together[stage], i, (h, w)), alone[0], 'SwinV2, alone against in a batch')
                assert (together[stage][i, :, h:] == 0).all() and (together[stage][i, :, :, w:] == 0).all()


@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('window', [1, (1, 3), 8])
def test_map_of_one_token_and_window_of_one(window, mask_padding):
    model = randomise_v2(SwinRPE(**V2, window_size=window, mask_padding=mask_padding))
    for size in ((1, 1), (3, 40)):
        outs = model(pixels(2, 3, *size))
        loss_of(outs).backward()
        assert all(out.isfinite().all() for out in outs)
        assert all(value.grad.isfinite().all() for value in model.parameters())


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('way', ['autocast', 'cast'])
def test_half_precision_is_finite_and_close(way, dtype):
    """No further from single precision than the same formulas, one after the other, in half precision."""
    model = randomise_v2(SwinRPE(**(V2 | dict(embed_dims=16)), window_size=4))
    images, extents = pixels(2, 3, 60, 70), [(60, 33), (21, 70)]
    exact = [out.detach() for out in model(attach_extents(images, extents))]
    if way == 'cast':
        model.to(dtype)
        images = images.to(dtype)
    with torch.autocast('cpu', dtype=dtype, enabled=way == 'autocast'):
        outs = model(attach_extents(images, extents))
        with torch.no_grad():
            literal = [dense_swin_v2(parameters(model), crop(images, i, extent), V2['depths'], V2['num_heads'],
                                     [(4, 4)] * 4) for i, extent in enumerate(extents)]
    loss_of([out.float() for out in outs]).backward()
    assert all(value.isfinite().all() for value in gradients(model).values())
    errors = []
    for stage, (out, reference) in enumerate(zip(outs, exact)):
        assert way == 'autocast' or out.dtype == dtype
        off = sum((literal[i][stage].float() - crop(reference, i, token_size(extent, stage))).square().sum()
                  for i, extent in enumerate(extents)).sqrt()
        errors.append([(value / reference.norm()).item() for value in ((out.float() - reference).norm(), off)])
    ours, of_literal = map(max, zip(*errors))
    record(f'SwinV2, {dtype} by {way}, relative'.replace('torch.', ''), ours)
    assert ours <= 1.2 * of_literal


# ---- checkpoints ----


def test_state_dict_of_mmpretrain_is_read_as_it_is():
    _, theirs = mmpretrain_pair(window=[4, 4, 4, 3])
    model = SwinRPE(**V2, window_size=[4, 4, 4, 3], mask_padding=False)
    model.load_state_dict(theirs.state_dict())
    images = pixels(1, 3, 96, 96)
    for a, e in zip(model(images), theirs(images)):
        assert forward_error(a, e) <= 1e-4


@pytest.mark.parametrize('noted', [[8, 8, 8, 4], [6, 6, 6, 3]])
def test_pretrained_window_comes_with_mmpretrain_state_dict(noted):
    """Their buffers tell which window the network was trained with, when ours is another."""
    _, theirs = mmpretrain_pair(window=[4, 4, 4, 3], pretrained=noted)
    model = SwinRPE(**V2, window_size=[4, 4, 4, 3], mask_padding=False)
    model.load_state_dict(theirs.state_dict())
    assert [stage.blocks[0].attn.w_msa.rpe.pretrained_window_size for stage in model.stages] == [
        (side, side) for side in noted]
    images = pixels(1, 3, 96, 96)
    for a, e in zip(model(images), theirs(images)):
        assert forward_error(a, e) <= 1e-4


@pytest.mark.parametrize('way', ['init_cfg', 'load_checkpoint'])
@pytest.mark.parametrize('kind', ['classifier of mmpretrain', 'official'])
def test_files(kind, way, tmp_path):
    """A classifier's file as it is published, for a window of another size."""
    source = randomise_v2(SwinRPE(**V2, window_size=4), 3)
    path, name = str(tmp_path / 'saved.pth'), 'stages.2.downsample.reduction.weight'
    if kind == 'official':
        torch.save(dict(model=to_official(in_mm_names(source.state_dict()), [4] * 4)), path)
    else:
        _, theirs = mmpretrain_pair(window=[4] * 4)
        saved = in_mm_names(source.state_dict())
        theirs.load_state_dict({key.replace(f'stages.{i}.downsample', f'stages.{i + 1}.downsample'): value
                                for i in range(4) for key, value in saved.items()
                                if f'stages.{i}.downsample' in key} | {
            key: value for key, value in saved.items() if 'downsample' not in key}, strict=False)
        state = {f'backbone.{key}': value for key, value in theirs.state_dict().items()}
        torch.save(dict(state_dict=state | {'head.fc.weight': torch.zeros(3, 64)}, meta={}), path)
    model = SwinRPE(**V2, window_size=7, init_cfg=dict(type='Pretrained', checkpoint=path))
    if way == 'init_cfg':
        model.init_weights()
    else:
        load_checkpoint(model, path, map_location='cpu', revise_keys=[(r'^backbone\.', '')])
    assert torch.equal(model.state_dict()[name], source.state_dict()[name])
    source.set_window_size(7)  # the network's function of the offset stays
    for i in range(4):
        getattr(model, f'norm{i}').load_state_dict(getattr(source, f'norm{i}').state_dict())
    with torch.no_grad():
        for a, b in zip(model(pixels(1, 3, 75, 101)), source(pixels(1, 3, 75, 101))):
            assert torch.equal(a, b)


@pytest.mark.parametrize('arch, other', [('nano', 'v2-nano'), ('v2-nano', 'nano')])
def test_weights_of_the_other_version_are_refused(arch, other):
    with pytest.raises(InputError, match='SwinV2'):
        SwinRPE(**(SMALL | dict(arch=arch))).load_state_dict(SwinRPE(**(SMALL | dict(arch=other))).state_dict())


@pytest.mark.parametrize('new_window', [4, 7, (3, 6)])
@pytest.mark.parametrize('pretrained', [None, [6, 6, 12, 6]])
def test_official_checkpoint(new_window, pretrained):
    """microsoft's layout, loaded for its own window and others: the network's function of the offset stays."""
    source = randomise_v2(SwinRPE(**V2, window_size=4), 3)
    official = to_official(in_mm_names(source.state_dict()), [4] * 4, pretrained)
    model = SwinRPE(**V2, window_size=new_window)
    missing, unexpected = model.load_state_dict({'model': official}, strict=False)
    assert not unexpected
    assert {name.split('.')[0] for name in missing} == {'norm0', 'norm1', 'norm2'}  # not the last
    params = parameters(source.double())
    params |= {name: official[name.replace('norm3', 'norm')].double() for name in ('norm3.weight', 'norm3.bias')}
    params |= {name: value for name, value in parameters(model.double()).items() if name in missing}
    window = new_window if isinstance(new_window, tuple) else (new_window, new_window)
    images = pixels(1, 3, 75, 101).double()
    expected = dense_swin_v2(params, images[0], V2['depths'], V2['num_heads'], [window] * 4,
                             [(side, side) for side in pretrained or [4] * 4])
    for a, e in zip(model(images), expected):
        assert_forward(a[0], e, 'SwinV2, official checkpoint')


def test_pretrained_window_is_kept_by_our_own_state_dict():
    source = randomise_v2(SwinRPE(**V2, window_size=5, rpe=dict(type='LogCPB', pretrained_window_size=[8, 8, 8, 4])))
    same = SwinRPE(**V2, window_size=5)
    same.load_state_dict(source.state_dict())
    images = pixels(1, 3, 75, 101)
    for a, e in zip(same(images), source(images)):
        assert torch.equal(a, e)


def test_pretrained_window_of_the_config_wins():
    source = randomise_v2(SwinRPE(**V2, window_size=4))
    model = SwinRPE(**V2, window_size=4, rpe=dict(type='LogCPB', pretrained_window_size=12))
    model.load_state_dict(source.state_dict())
    images = pixels(1, 3, 75, 101).double()
    expected = dense_swin_v2(parameters(source.double()), images[0], V2['depths'], V2['num_heads'], [(4, 4)] * 4,
                             [(12, 12)] * 4)
    for a, e in zip(model.double()(images), expected):
        assert_forward(a[0], e)
