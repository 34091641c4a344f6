"""Tables of another window are resized when they are loaded."""
import pytest
import torch
import torch.nn.functional as F
from mmengine.runner import load_checkpoint, save_checkpoint
from oracles.cases import SMALL, in_mm_names, pixels, randomise
from oracles.official import offset_index

from swin_rpe_mm import InputError, SwinRPE

TABLE = 'relative_position_bias_table'
RECTANGULAR = [((3, 5), (5, 3)), ((3, 5), (4, 4)), ((7, 14), (8, 8)), ((8, 8), (7, 14)), ((2, 5), (5, 2)),
               ((1, 13), (3, 3)), ((3, 3), (1, 13))]


def model_of(window, seed=None) -> SwinRPE:
    model = SwinRPE(**SMALL, window_size=window)
    return model if seed is None else randomise(model, seed)


def stretched(table, old, new) -> torch.Tensor:
    """The table of window ``old``, interpolated to window ``new``."""
    sides = [tuple(2 * side - 1 for side in window) for window in (old, new)]
    grid = table.T.reshape(1, -1, *sides[0])
    if sides[0] != sides[1]:
        grid = F.interpolate(grid, size=sides[1], mode='bicubic', align_corners=False)
    return grid.reshape(grid.shape[1], -1).T


def check(model, source: dict, old, new) -> None:
    source = in_mm_names(source)
    for name, value in in_mm_names(model.state_dict()).items():
        expected = stretched(source[name], old, new) if name.endswith(TABLE) else source[name]
        assert torch.allclose(value, expected, atol=1e-6), name
    assert all(out.isfinite().all() for out in model(pixels(1, 3, 60, 70)))


@pytest.mark.needs_ops
@pytest.mark.parametrize('new', [(12, 12), (5, 5), (7, 7), (1, 1), (4, 9), (9, 4)])
def test_square_windows_of_mmdet(new):
    from mmdet.models.backbones import SwinTransformer
    theirs = SwinTransformer(**SMALL, window_size=7)
    theirs.load_state_dict(in_mm_names(randomise(model_of(7), 0).state_dict()), strict=False)
    model = model_of(new)
    parameters = dict(model.named_parameters())
    model.load_state_dict(theirs.state_dict(), strict=True)
    assert all(parameters[name] is value for name, value in model.named_parameters())
    check(model, theirs.state_dict(), (7, 7), new)


@pytest.mark.parametrize('old, new', RECTANGULAR)
@pytest.mark.parametrize('way', ['state dict', 'file', 'checkpoint of mmengine', 'init_cfg'])
def test_rectangular_windows(old, new, way, tmp_path):
    """Also where both windows have the same number of offsets."""
    source = model_of(old, 0)
    state = source.state_dict()
    path = str(tmp_path / 'saved.pth')
    if way == 'init_cfg':
        torch.save(state, path)
        model = SwinRPE(**SMALL, window_size=new, init_cfg=dict(type='Pretrained', checkpoint=path))
        model.init_weights()
    elif way == 'checkpoint of mmengine':
        save_checkpoint(dict(state_dict=state), path)
        load_checkpoint(model := model_of(new), path, map_location='cpu', strict=True)
    elif way == 'file':
        torch.save(state, path)
        (model := model_of(new)).load_state_dict(torch.load(path), strict=True)
    else:
        (model := model_of(new)).load_state_dict(state, strict=True)
    check(model, state, old, new)


@pytest.mark.parametrize('old, new', [(old, new) for old, new in RECTANGULAR if 1 not in old])
def test_rectangular_windows_by_their_index(old, new):
    """A file of another project says its window by the index buffers only; (1, n) and (n, 1) have the same ones."""
    state = in_mm_names(model_of(old, 0).state_dict())
    bare = state | {name.replace(TABLE, 'relative_position_index'): offset_index(old)
                          for name in state if name.endswith(TABLE)}
    (model := model_of(new)).load_state_dict(bare, strict=True)
    check(model, state, old, new)


def test_window_that_cannot_be_told_is_an_input_error():
    bare = in_mm_names(model_of((3, 5), 0).state_dict())
    with pytest.raises(InputError, match='45') as error:
        model_of((4, 4)).load_state_dict(bare)
    assert '\n' not in str(error.value)


def test_windows_that_differ_by_stage():
    source = model_of([7, 6, 5, 4], 0)
    model = model_of([3, 6, 9, 12])
    model.load_state_dict(source.state_dict(), strict=True)
    for i, (old, new) in enumerate(zip((7, 6, 5, 4), (3, 6, 9, 12))):
        name = f'stages.{i}.blocks.1.attn.w_msa.rpe.{TABLE}'
        assert torch.allclose(model.state_dict()[name], stretched(source.state_dict()[name], (old, old), (new, new)),
                              atol=1e-6)


def test_inside_another_model():
    source, target = torch.nn.Module(), torch.nn.Module()
    source.backbone, target.backbone = model_of((3, 5), 0), model_of((5, 3))
    target.load_state_dict(source.state_dict(), strict=True)
    check(target.backbone, source.backbone.state_dict(), (3, 5), (5, 3))


def test_copies_keep_their_weights():
    import copy
    source = model_of((3, 5), 0)
    images = pixels(1, 3, 40, 50)
    for a, b in zip(copy.deepcopy(source)(images), source(images)):
        assert torch.equal(a, b)


def test_absolute_position_embedding_of_another_pretrain_size():
    source = randomise(SwinRPE(**SMALL, use_abs_pos_embed=True, pretrain_img_size=32), 0)
    target = SwinRPE(**SMALL, use_abs_pos_embed=True, pretrain_img_size=48)
    target.load_state_dict(source.state_dict(), strict=True)
    grid = source.absolute_pos_embed.detach().view(1, 8, 8, 8).permute(0, 3, 1, 2)
    expected = F.interpolate(grid, size=(12, 12), mode='bicubic').flatten(2).transpose(1, 2)
    assert torch.allclose(target.absolute_pos_embed, expected, atol=1e-6)
