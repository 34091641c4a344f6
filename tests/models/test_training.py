"""What training needs: drop path per image, checkpointing, freezing, and a gradient for every parameter."""
import itertools
import warnings

import pytest
import torch
from oracles.cases import SMALL, gradients, loss_of, parameters, pixels, randomise, token_size
from oracles.compare import assert_forward, assert_gradients, forward_error
from oracles.swin import dense_swin

from swin_rpe_mm import SwinRPE, attach_extents

ONE_STAGE = dict(embed_dims=8, depths=(2, ), num_heads=(2, ), strides=(4, ), out_indices=(0, ), window_size=3)
RATE = 0.4


def small(**kwargs) -> SwinRPE:
    return randomise(SwinRPE(**(SMALL | dict(window_size=3) | kwargs)))


def kept_branches(model, images, extents, rate) -> list[tuple[bool, bool]]:
    """Which branches of the second block each image kept: exactly one combination explains its whole map."""
    out = model(attach_extents(images, extents))[0]
    arguments = dict(depths=(2, ), num_heads=(2, ), windows=[(3, 3)], out_indices=(0, ))
    draws = []
    for i, (h, w) in enumerate(extents):
        th, tw = token_size((h, w), 0)
        explained = []
        for kept in itertools.product([False, True], repeat=2):
            factors = tuple(kept_branch / (1 - rate) for kept_branch in kept)
            dense = dense_swin(parameters(model), images[i, :, :h, :w], keep={(0, 1): factors}, **arguments)[0]
            if forward_error(out[i, :, :th, :tw], dense) < 1e-4:
                explained.append(kept)
        assert len(explained) == 1, f'{len(explained)} combinations explain image {i}'
        draws += explained
    return draws


@torch.no_grad()
def test_drop_path_drops_whole_images():
    model = randomise(SwinRPE(**ONE_STAGE, drop_path_rate=RATE)).train()
    draws = []
    for seed in range(15):
        images = pixels(12, 3, 32, 40, seed=seed)
        extents = [(32, 40), (17, 40), (32, 9)] * 4
        draws += kept_branches(model, images, extents, RATE)
    assert len(set(draws)) == 4
    for branch in range(2):
        share = sum(draw[branch] for draw in draws) / len(draws)
        assert abs(share - (1 - RATE)) < 3 * (RATE * (1 - RATE) / len(draws))**0.5


@torch.no_grad()
def test_drop_path_is_off_in_evaluation():
    model = randomise(SwinRPE(**ONE_STAGE, drop_path_rate=RATE)).eval()
    images = pixels(4, 3, 32, 40)
    assert kept_branches(model, images, [(32, 40)] * 4, 0.0) == [(True, True)] * 4


def test_drop_path_rises_with_depth():
    model = SwinRPE(**(SMALL | dict(drop_path_rate=0.7)))
    rates = [getattr(block.drop_path, 'rate', 0.) for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0.1 * i for i in range(8)])


@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('kwargs', [{}, dict(drop_path_rate=0.3, drop_rate=0.1, attn_drop_rate=0.1)])
def test_checkpointing_gives_the_same_gradients(kwargs, mask_padding):
    results = []
    for with_cp in (False, True):
        model = small(with_cp=with_cp, mask_padding=mask_padding, **kwargs).train()
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter('error', UserWarning)  # torch warns where use_reentrant is left open
            loss_of(model(attach_extents(pixels(2, 3, 40, 50), [(40, 31), (22, 50)]))).backward()
        results.append(gradients(model))
    assert_gradients(results[1], results[0])


def test_checkpointing_recomputes_without_reentry():
    """Every block runs twice; ``torch.autograd.grad`` refuses the reentrant kind."""
    calls = []
    model = small(with_cp=True).train()
    model.stages[0].blocks[0].attn.register_forward_hook(lambda *_: calls.append(1))
    grads = torch.autograd.grad(loss_of(model(pixels(1, 3, 16, 16))), list(model.parameters()))
    assert len(calls) == 2
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize('out_indices', [indices for n in range(1, 5)
                                         for indices in itertools.combinations(range(4), n)])
@pytest.mark.parametrize('use_abs_pos_embed', [False, True])
def test_every_parameter_gets_a_gradient(out_indices, use_abs_pos_embed):
    model = small(out_indices=out_indices, use_abs_pos_embed=use_abs_pos_embed, pretrain_img_size=32)
    outs = model(pixels(1, 3, 80, 100))  # two rows and columns at least in every shifted window, or tables have no say
    assert len(outs) == len(out_indices)
    assert [out.shape[1] for out in outs] == [8 * 2**i for i in out_indices]
    loss_of(outs).backward()
    for name, value in model.named_parameters():
        assert value.grad is not None and value.grad.abs().max() > 0, name


@pytest.mark.parametrize('out_indices', [(0, ), (1, 3), (2, )])
def test_outputs_are_those_of_the_whole_model(out_indices):
    whole, part = small(), SwinRPE(**(SMALL | dict(window_size=3, out_indices=out_indices)))
    missing, _ = part.load_state_dict(whole.state_dict(), strict=False)
    assert not missing
    images = pixels(1, 3, 40, 50)
    for out, i in zip(part(images), out_indices):
        assert_forward(out, whole(images)[i])


def test_train_and_eval_return_the_model():
    model = small()
    assert model.train() is model
    assert model.eval() is model
    assert model.train(False) is model


@pytest.mark.parametrize('frozen_stages', [-1, 0, 1, 3, 4])
def test_frozen_stages_right_after_build_and_after_train(frozen_stages):
    model = small(frozen_stages=frozen_stages, use_abs_pos_embed=True, pretrain_img_size=32, drop_rate=0.1)
    frozen = ['patch_embed.', 'absolute_pos_embed'] if frozen_stages >= 0 else []
    for i in range(max(frozen_stages, 0)):
        frozen += [f'stages.{i}.', f'norm{i}.']

    def check():
        for name, value in model.named_parameters():
            assert value.requires_grad == (not name.startswith(tuple(frozen))), name

    check()
    for mode in (True, False, True):
        model.train(mode)
        check()
    for name, module in model.named_modules():
        if name:
            assert module.training == (not f'{name}.'.startswith(tuple(frozen))) or name == 'drop_after_pos' or (
                name == 'stages'), name
    if frozen_stages >= 0:
        assert not model.drop_after_pos.training


def test_frozen_parameters_stay_and_the_others_move():
    model = small(frozen_stages=2).train()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    loss_of(model(pixels(1, 3, 80, 100))).backward()
    optimizer.step()
    for name, value in model.named_parameters():
        frozen = name.startswith(('patch_embed', 'stages.0', 'stages.1', 'norm0', 'norm1'))
        assert torch.equal(before[name], value) == frozen, name


def test_dropout_is_drawn_in_training_only():
    model, images = small(drop_rate=0.2, attn_drop_rate=0.2), pixels(1, 3, 40, 50)
    assert not torch.equal(model.train()(images)[-1], model.train()(images)[-1])
    assert torch.equal(model.eval()(images)[-1], model.eval()(images)[-1])


def test_in_channels():
    model = small(in_channels=4)
    assert [tuple(out.shape) for out in model(pixels(1, 4, 40, 50))] == [
        (1, 8, 10, 13), (1, 16, 5, 7), (1, 32, 3, 4), (1, 64, 2, 2)]


@pytest.mark.parametrize('size', [(1, 1), (32, 32), (33, 70), (97, 5)])
def test_absolute_position_embedding_at_any_size(size):
    model = small(use_abs_pos_embed=True, pretrain_img_size=32)
    outs = model(pixels(1, 3, *size))
    assert all(out.isfinite().all() for out in outs)
    assert tuple(outs[0].shape[-2:]) == token_size(size, 0)
    with torch.no_grad():
        model.absolute_pos_embed.zero_()
    assert (model(pixels(1, 3, *size))[0] - outs[0]).abs().max() > 0.1
