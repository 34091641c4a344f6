"""The whole backbone equals a literal restatement of it with dense attention, one image after the other."""
import pytest
import torch
import torch.nn.functional as F
from oracles.cases import (
    SMALL,
    case_count,
    dice,
    gradients,
    loss_of,
    parameters,
    pixels,
    random_extents,
    random_size,
    random_window,
    randomise,
    token_size,
)
from oracles.compare import assert_forward, assert_gradients
from oracles.swin import dense_swin

from swin_rpe_mm import SwinRPE, attach_extents


def random_model(rng, seed: int, **kwargs) -> tuple[SwinRPE, dict]:
    """A small model with a window per stage, and the oracle's arguments."""
    windows = [random_window(rng) for _ in range(4)]
    depths = tuple(rng.choice([1, 2, 3]) for _ in range(4))
    covered = rng.random() < 0.7
    model = SwinRPE(**(SMALL | dict(depths=depths, window_size=windows, shift_covered_axes=covered) | kwargs))
    return randomise(model, seed), dict(depths=depths, num_heads=SMALL['num_heads'], windows=windows,
                                        shift_covered_axes=covered)


def crop(maps: torch.Tensor, index: int, extent) -> torch.Tensor:
    return maps[index, :, :extent[0], :extent[1]]


@pytest.mark.parametrize('backend', ['eager', 'sdpa'])
@pytest.mark.parametrize('case', range(case_count(12)))
def test_forward_and_gradient(case, backend):
    rng = dice('dense oracle', case)
    size = random_size(rng, 97)
    extents = random_extents(rng, rng.randint(1, 3), size)
    model, arguments = random_model(rng, case, attn_backend=backend)
    params = {name: value.detach().clone().requires_grad_() for name, value in parameters(model).items()}
    images = pixels(len(extents), 3, *size, seed=case).requires_grad_()
    crops = [crop(images.detach(), i, extent).clone().requires_grad_() for i, extent in enumerate(extents)]

    outs = model(attach_extents(images, extents))
    expected = [dense_swin(params, image, **arguments) for image in crops]
    loss_of([crop(out, i, token_size(extent, stage)) for i, extent in enumerate(extents)
             for stage, out in enumerate(outs)]).backward()
    loss_of([out for outs_of_image in expected for out in outs_of_image]).backward()

    for i, extent in enumerate(extents):
        for stage, out in enumerate(outs):
            assert_forward(crop(out, i, token_size(extent, stage)), expected[i][stage], f'dense oracle, {backend}')
    with torch.no_grad():  # other kernels than with gradients
        inferred = model(attach_extents(images.detach(), extents))
    for i, extent in enumerate(extents):
        for stage, out in enumerate(inferred):
            assert_forward(crop(out, i, token_size(extent, stage)), expected[i][stage],
                           f'dense oracle, {backend} without gradients')
    pixels_actual = {f'pixels {i}': crop(images.grad, i, extent) for i, extent in enumerate(extents)}
    pixels_expected = {f'pixels {i}': image.grad for i, image in enumerate(crops)}
    assert_gradients(gradients(model) | pixels_actual,
                     {name: value.grad for name, value in params.items()} | pixels_expected,
                     f'dense oracle, {backend}')


@pytest.mark.parametrize('backend', ['eager', 'sdpa'])
@pytest.mark.parametrize('case', range(4))
def test_in_double_precision(case, backend):
    rng = dice('dense oracle in double precision', case)
    size = random_size(rng, 60)
    model, arguments = random_model(rng, case, attn_backend=backend)
    model.double()
    images = pixels(1, 3, *size, seed=case).double()
    for actual, expected in zip(model(images), dense_swin(parameters(model), images[0], **arguments)):
        assert_forward(actual[0], expected)


@pytest.mark.parametrize('backend', ['eager', 'sdpa'])
@pytest.mark.parametrize('kwargs', [dict(qk_scale=0.7), dict(qkv_bias=False), dict(patch_norm=False),
                                    dict(mlp_ratio=2.5), dict(out_indices=(1, 3))])
def test_other_arguments(kwargs, backend):
    model, arguments = random_model(dice('arguments', 0), 0, attn_backend=backend, **kwargs)
    for name in ('qk_scale', 'out_indices'):
        if name in kwargs:
            arguments[name] = kwargs[name]
    images = attach_extents(pixels(2, 3, 50, 70), [(50, 33), (21, 70)])
    outs = model(images)
    for i, extent in enumerate([(50, 33), (21, 70)]):
        expected = dense_swin(parameters(model), images[i, :, :extent[0], :extent[1]], **arguments)
        for stage, out, dense in zip(kwargs.get('out_indices', range(4)), outs, expected):
            assert_forward(crop(out, i, token_size(extent, stage)), dense)


def test_absolute_position_embedding_is_stretched_over_each_extent():
    model, arguments = random_model(dice('absolute', 0), 0, use_abs_pos_embed=True, pretrain_img_size=(32, 40))
    extents = [(50, 33), (21, 70), (32, 40)]
    outs = model(attach_extents(pixels(3, 3, 50, 70), extents))
    for i, extent in enumerate(extents):
        params = parameters(model)
        grid = params['absolute_pos_embed'].transpose(1, 2).view(1, -1, 8, 10)
        if token_size(extent, 0) != (8, 10):
            grid = F.interpolate(grid, size=token_size(extent, 0), mode='bicubic', align_corners=False)
        params['absolute_pos_embed'] = grid.flatten(2).transpose(1, 2)
        expected = dense_swin(params, pixels(3, 3, 50, 70)[i, :, :extent[0], :extent[1]], **arguments)
        for stage, (out, dense) in enumerate(zip(outs, expected)):
            assert_forward(crop(out, i, token_size(extent, stage)), dense)


@pytest.mark.parametrize('backend', ['eager', 'sdpa'])
@pytest.mark.parametrize('rpe', ['frozen', 'none'])
@pytest.mark.parametrize('case', range(4))
def test_bias_that_needs_no_gradient(case, rpe, backend):
    """Other kernels serve a bias that is not trained, and attention without one."""
    rng = dice('untrained bias', case)
    size = random_size(rng, 97)
    extents = random_extents(rng, 2, size)
    model, arguments = random_model(rng, case, attn_backend=backend, **({} if rpe == 'frozen' else dict(rpe=None)))
    params = {}
    for i, window in enumerate(arguments['windows']):
        for j in range(arguments['depths'][i]):
            table = torch.zeros((2 * window[0] - 1) * (2 * window[1] - 1), SMALL['num_heads'][i])
            params[f'stages.{i}.blocks.{j}.attn.w_msa.relative_position_bias_table'] = table
    params |= {name: value.detach().clone().requires_grad_('bias_table' not in name)
               for name, value in parameters(model).items()}
    for name, value in model.named_parameters():
        value.requires_grad_('bias_table' not in name)
    images = pixels(2, 3, *size, seed=case)
    outs = model(attach_extents(images, extents))
    expected = [dense_swin(params, crop(images, i, extent), **arguments) for i, extent in enumerate(extents)]
    for i, extent in enumerate(extents):
        for stage, out in enumerate(outs):
            assert_forward(crop(out, i, token_size(extent, stage)), expected[i][stage])
    loss_of([crop(out, i, token_size(extent, stage)) for i, extent in enumerate(extents)
             for stage, out in enumerate(outs)]).backward()
    loss_of([out for outs_of_image in expected for out in outs_of_image]).backward()
    assert_gradients(gradients(model), {name: value.grad for name, value in params.items() if value.requires_grad},
                     f'dense oracle, {backend}, bias not trained')


def test_gradient_check_in_double_precision():
    model = SwinRPE(embed_dims=4, depths=(2, ), num_heads=(2, ), strides=(4, ), out_indices=(0, ), window_size=(3, 2),
                    drop_path_rate=0.0)
    randomise(model, 0).double()
    images = pixels(2, 3, 13, 18).double().requires_grad_()

    def features(images):
        return model(attach_extents(images, [(13, 9), (5, 18)]))[0]

    assert torch.autograd.gradcheck(features, (images, ), fast_mode=True)
