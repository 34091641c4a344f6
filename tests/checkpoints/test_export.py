"""Our weights in the layouts of mmdet, mmpretrain and timm, which load them strictly and give the same features."""
import copy

import peers
import pytest
import torch
from oracles.cases import SMALL, in_mm_names, pixels, randomise
from oracles.compare import assert_forward, forward_error, record
from oracles.official import offset_index
from oracles.swin_v2 import randomise_v2

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.checkpoints import DERIVED_BUFFERS, to_mm_layout
from swin_rpe_mm.checkpoints.export import TARGETS, note_windows, to_layout

V2 = SMALL | dict(arch='v2-nano')
ARCH = {name: SMALL[name] for name in ('embed_dims', 'depths', 'num_heads')}
OF_TIMM = dict(embed_dim=SMALL['embed_dims'], depths=SMALL['depths'], num_heads=SMALL['num_heads'], num_classes=0,
               drop_path_rate=0.)


def model_of(window=7, **kwargs) -> SwinRPE:
    return randomise(SwinRPE(**(SMALL | kwargs), window_size=window, mask_padding=False), 0).eval()


def model_v2(window=8, **kwargs) -> SwinRPE:
    return randomise_v2(SwinRPE(**(V2 | kwargs), window_size=window, mask_padding=False), 0).eval()


def features(model: torch.nn.Module, images: torch.Tensor) -> tuple:
    model.eval()  # mm's give None
    with torch.no_grad():
        return model(images)


# ---- strict loading and features ----

@pytest.mark.needs_ops
@pytest.mark.parametrize('window', [7, 4])
def test_mmdet(window):
    from mmdet.models.backbones import SwinTransformer
    ours, theirs = model_of(window), SwinTransformer(**SMALL, window_size=window)
    weights, notes = to_layout(ours.state_dict(), 'mmdet')
    assert weights.keys() == theirs.state_dict().keys() and not notes
    for key, value in theirs.state_dict().items():
        assert not key.endswith(DERIVED_BUFFERS) or torch.equal(weights[key], value)
    theirs.load_state_dict(weights, strict=True)
    for size in ((64, 64), (50, 83), (1, 7)):
        images = pixels(2, 3, *size, seed=1)
        for a, b in zip(features(theirs, images), features(ours, images)):
            assert_forward(a, b, 'exported to mmdet')


@pytest.mark.needs_ops
def test_mmdet_with_an_embedding_and_fewer_outputs():
    from mmdet.models.backbones import SwinTransformer
    kwargs = dict(use_abs_pos_embed=True, pretrain_img_size=32, out_indices=(1, 3), qkv_bias=False, patch_norm=False)
    ours, theirs = model_of(**kwargs), SwinTransformer(**SMALL, **kwargs)
    theirs.load_state_dict(to_layout(ours.state_dict(), 'mmdet')[0], strict=True)
    images = pixels(1, 3, 32, 32)  # mmdet's own size, for which it stretches nothing
    for a, b in zip(features(theirs, images), features(ours, images)):
        assert_forward(a, b, 'exported to mmdet')


def test_mmpretrain():
    theirs = peers.mmpretrain('models.backbones.swin_transformer').SwinTransformer(
        arch=ARCH, window_size=4, out_indices=(0, 1, 2, 3), pad_small_map=True)
    ours = model_of(4)
    theirs.load_state_dict(to_layout(ours.state_dict(), 'mmpretrain')[0], strict=True)
    images = pixels(1, 3, 70, 45)
    for a, b in zip(features(theirs, images), features(ours, images)):
        assert_forward(a, b, 'exported to mmpretrain')


def test_swin_v2_of_mmpretrain():
    """It deletes its own persistent buffers from what it loads, so that even its own files lack them."""
    theirs = peers.mmpretrain('models.backbones.swin_transformer_v2').SwinTransformerV2(
        arch=ARCH | dict(extra_norm_every_n_blocks=0), window_size=[8, 8, 4, 2], out_indices=(0, 1, 2, 3),
        pretrained_window_sizes=[6, 6, 6, 3], drop_path_rate=0.)
    ours = model_v2([8, 8, 4, 2], rpe=dict(type='LogCPB', pretrained_window_size=[6, 6, 6, 3]))
    weights, notes = to_layout(ours.state_dict(), 'mmpretrain')
    assert notes == ['build the model of mmpretrain with pretrained_window_sizes=[6, 6, 6, 3]']
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected and all(key.endswith(DERIVED_BUFFERS) for key in missing)
    images = pixels(1, 3, 64, 64).double()
    for a, b in zip(features(theirs.double(), images), features(ours.double(), images)):
        error = forward_error(a, b)
        record('SwinV2 exported to mmpretrain, forward', error)
        assert error <= 1e-5


@pytest.mark.parametrize('window', [4, (4, 2)])
def test_timm(window):
    theirs = peers.timm_swin().SwinTransformer(img_size=64, window_size=window, **OF_TIMM)
    ours = model_of([window] * 3 + [2], shift_covered_axes=False)  # timm cuts windows to the map
    weights, notes = to_layout(ours.state_dict(), 'timm')
    assert notes == ['left out, as timm has one output norm: norm0, norm1, norm2']
    assert set(weights) == set(theirs.state_dict())
    theirs.load_state_dict(weights, strict=True)
    images = pixels(2, 3, 64, 64)
    theirs.eval()
    with torch.no_grad():
        assert_forward(theirs.forward_features(images).permute(0, 3, 1, 2), ours(images)[3], 'exported to timm')


def test_swin_v2_of_timm():
    theirs = peers.timm_swin('swin_transformer_v2').SwinTransformerV2(
        img_size=128, window_size=8, pretrained_window_sizes=(6, 6, 6, 3), **OF_TIMM)
    ours = model_v2([8, 8, 8, 4], rpe=dict(type='LogCPB', pretrained_window_size=[6, 6, 6, 3]), out_indices=(3, ))
    weights, notes = to_layout(ours.state_dict(), 'timm')
    assert notes == ['build the model of timm with pretrained_window_sizes=[6, 6, 6, 3]']
    theirs.load_state_dict(weights, strict=True)
    images = pixels(1, 3, 128, 128).double()
    theirs.double().eval()
    with torch.no_grad():
        error = forward_error(theirs.forward_features(images).permute(0, 3, 1, 2), ours.double()(images)[0])
    record('SwinV2 exported to timm, forward', error)
    assert error <= 1e-5


def test_names_of_timm():
    """Those of timm 1.0, whether it is installed or not."""
    weights, _ = to_layout(model_of(out_indices=(3, )).state_dict(), 'timm')
    block = [*(f'norm1.{name}' for name in ('weight', 'bias')), 'attn.relative_position_bias_table', 'attn.qkv.weight',
             'attn.qkv.bias', 'attn.proj.weight', 'attn.proj.bias', 'norm2.weight', 'norm2.bias', 'mlp.fc1.weight',
             'mlp.fc1.bias', 'mlp.fc2.weight', 'mlp.fc2.bias']
    expected = {f'layers.{i}.blocks.{j}.{name}' for i in range(4) for j in range(2) for name in block}
    expected |= {f'layers.{i}.downsample.{name}' for i in (1, 2, 3)
                 for name in ('norm.weight', 'norm.bias', 'reduction.weight')}
    expected |= {f'{name}.{part}' for name in ('patch_embed.proj', 'patch_embed.norm', 'norm')
                 for part in ('weight', 'bias')}
    assert set(weights) == expected


# ---- round trips ----

ROUND_TRIPS = [('mmdet', model_of), ('mmpretrain', model_of), ('timm', model_of), ('mmpretrain', model_v2),
               ('timm', model_v2)]


@pytest.mark.parametrize('target, build', ROUND_TRIPS)
@pytest.mark.parametrize('out_indices', [(3, ), (0, 1, 2), (0, 1, 2, 3)])
def test_round_trip(target, build, out_indices):
    """Bit for bit, but for the output norms that timm does not have."""
    state = build(out_indices=out_indices).state_dict()
    there, _ = to_layout(state, target)
    assert ('norm.weight' in there) == (target == 'timm')
    back, _ = to_mm_layout(there)
    back = note_windows(back, {})
    left_out = tuple(f'norm{i}.' for i in out_indices[:-1]) if target == 'timm' else ()
    kept = {key: value for key, value in state.items() if not key.startswith(left_out)}
    assert back.keys() == kept.keys()
    assert all(torch.equal(back[key], value) for key, value in kept.items())


@pytest.mark.parametrize('target, build', ROUND_TRIPS)
def test_what_is_given_stays(target, build):
    state = build().state_dict()
    before = {key: value.clone() for key, value in state.items()}
    to_layout(state, target)
    assert list(state) == list(before) and all(torch.equal(state[key], value) for key, value in before.items())


@pytest.mark.parametrize('window', [(3, 5), (5, 3), (7, 7)])
def test_windows_of_index_buffers_become_notes(window):
    """A file of another project says a rectangular window by its index; ours says it in its metadata."""
    source = model_of(window)
    foreign = in_mm_names(source.state_dict())
    table = 'relative_position_bias_table'
    for key in [key for key in foreign if key.endswith(table)]:
        foreign[key.replace(table, 'relative_position_index')] = offset_index(window)
    metadata = {}
    weights = note_windows(foreign, metadata)
    assert weights.keys() == source.state_dict().keys()
    noted = source.state_dict()._metadata
    encodings = {key: note for key, note in metadata.items() if key}
    assert encodings == metadata['']['encodings'] and len(encodings) == 8
    assert all(note == {name: noted[key][name] for name in ('encoding', 'offset_sides')}
               for key, note in encodings.items())
    assert note_windows(weights, copy.deepcopy(metadata)) == weights


def test_the_window_of_a_bare_state_dict_is_told_by_its_rows():
    """And which encoding it has by nothing, which is said; what has mm's names is Swin's."""
    state = model_of(5).state_dict()
    for bare, said in ((dict(state), True), (in_mm_names(state), False)):
        weights, notes = to_layout(bare, 'mmdet')
        assert weights['stages.2.blocks.1.attn.w_msa.relative_position_index'].shape == (25, 25)
        assert notes == ['the file does not say which encoding it has: it was taken for the one of mmdet'] * said


# ---- what has no place there ----

def check_refused(model: SwinRPE, target: str, *words: str) -> None:
    with pytest.raises(InputError) as error:
        to_layout(model.state_dict(), target)
    assert '\n' not in str(error.value) and str(error.value).count('. ') == 0
    for word in (target, *words):
        assert word in str(error.value)


@pytest.mark.parametrize('target', TARGETS)
@pytest.mark.parametrize('rpe', [
    None, dict(type='ClippedRPE'), dict(type='LogBucketRPE'), dict(type='LogCPB'), dict(type='ContextualRPE'),
    dict(type='DecomposedRPE'), dict(type='BlockRPE'), dict(type='LowRankRPE'), dict(type='DynamicRPE'),
    dict(type='RotaryRPE'), dict(type='RotaryRPE', mode='axial'),
    [dict(type='TableRPE'), dict(type='RotaryRPE', mode='mixed')],
    [dict(type='TableRPE'), dict(type='RotaryRPE', mode='axial')], [dict(type='TableRPE'), dict(type='TableRPE')]])
def test_other_encodings(rpe, target):
    model = SwinRPE(**(SMALL | dict(num_heads=(1, 1, 1, 1))), rpe=rpe)
    check_refused(model, target, 'rpe', 'w_msa')


@pytest.mark.parametrize('target', ['mmpretrain', 'timm'])
def test_other_encodings_of_swin_v2(target):
    check_refused(SwinRPE(**V2, rpe=dict(type='TableRPE')), target, 'relative_position_bias_table', 'rpe')
    check_refused(SwinRPE(**V2, rpe=None), target, 'cpb_mlp', 'rpe')


@pytest.mark.parametrize('target', TARGETS)
@pytest.mark.parametrize('kwargs, word', [(dict(halo=2), 'halo'), (dict(halo='window'), 'halo'),
                                          (dict(pooled_neighbours=1), 'pooled_neighbours'),
                                          (dict(use_abs_pos_embed='window'), 'use_abs_pos_embed')])
def test_what_only_our_models_have(kwargs, word, target):
    check_refused(SwinRPE(**SMALL, **kwargs), target, word)


def test_absolute_position_embedding_has_no_place_in_timm():
    check_refused(SwinRPE(**SMALL, use_abs_pos_embed=True), 'timm', 'absolute_pos_embed', 'use_abs_pos_embed')


@pytest.mark.parametrize('target', ['mmdet', 'mmpretrain'])
@pytest.mark.parametrize('window, words', [((3, 5), ['stages.0', '3x5']), ([7, 7, 5, 7], ['stages.2', '5x5', '7x7'])])
def test_windows_that_mm_does_not_have(target, window, words):
    check_refused(SwinRPE(**SMALL, window_size=window), target, *words)


def test_mmdet_has_no_swin_v2():
    check_refused(model_v2(), 'mmdet', 'SwinV2')


def test_unknown_layout():
    with pytest.raises(InputError, match="mmdet, mmpretrain, timm, got 'keras'"):
        to_layout({}, 'keras')


def test_parts_of_other_models_are_named():
    with pytest.raises(InputError, match=r'neck\.conv\.weight has no place in the Swin of mmdet$'):
        to_layout(model_of().state_dict() | {'neck.conv.weight': torch.zeros(1)}, 'mmdet')
