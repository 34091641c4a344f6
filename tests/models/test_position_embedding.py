"""Absolute position embeddings: a part that repeats with the window and a part stretched over the image."""
import pytest
import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from oracles.cases import SMALL, gradients, loss_of, pixels, randomise, token_size
from oracles.compare import assert_forward, assert_gradients

from swin_rpe_mm import InputError, SwinRPE, attach_extents
from swin_rpe_mm.rpe.replacing import drop_stale_averages

WINDOW, PRETRAINED = (3, 4), (32, 40)
EXTENTS = [(50, 33), (21, 70), (32, 40), (1, 1)]


def built(**kwargs) -> SwinRPE:
    return randomise(SwinRPE(**(SMALL | dict(window_size=WINDOW, use_abs_pos_embed='window',
                                             pretrain_img_size=PRETRAINED) | kwargs)))


def embedded(model: SwinRPE, image: torch.Tensor) -> torch.Tensor:
    """What the first stage gets of one image ``(C, h, w)``: patches with both parts added, ``(H, W, C)``."""
    tokens, (height, width) = model.patch_embed(image[None])
    tokens = tokens.view(height, width, -1)
    whole = model.absolute_pos_embed.view(1, PRETRAINED[0] // 4, PRETRAINED[1] // 4, -1).permute(0, 3, 1, 2)
    if (height, width) != tuple(whole.shape[-2:]):
        whole = F.interpolate(whole, size=(height, width), mode='bicubic', align_corners=False)
    of_window = model.window_pos_embed.view(*WINDOW, -1)
    rows = []
    for y in range(height):
        rows.append(torch.stack([tokens[y, x] + whole[0, :, y, x] + of_window[y % WINDOW[0], x % WINDOW[1]]
                                 for x in range(width)]))
    return torch.stack(rows)


def first_stage_input(model: SwinRPE, images) -> torch.Tensor:
    seen = []
    handle = model.stages[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(images)
    handle.remove()
    return seen[0].unflatten(1, token_size(images.shape[-2:], 0))


def test_both_parts_over_each_extent():
    """The window's part starts at each image's corner, the other is stretched over each image's own extent."""
    model, images = built(), pixels(4, 3, 50, 70)
    tokens = first_stage_input(model, attach_extents(images, EXTENTS))
    for i, extent in enumerate(EXTENTS):
        h, w = token_size(extent, 0)
        expected = embedded(model, images[i, :, :extent[0], :extent[1]])
        assert_forward(tokens[i, :h, :w], expected, 'position embeddings')


def test_gradients_of_both_parts():
    model, other = built(), built()
    images = pixels(4, 3, 50, 70)
    tokens = first_stage_input(model, attach_extents(images, EXTENTS))
    crops = [tokens[i, :token_size(e, 0)[0], :token_size(e, 0)[1]] for i, e in enumerate(EXTENTS)]
    loss_of(crops).backward()
    loss_of([embedded(other, images[i, :, :h, :w]) for i, (h, w) in enumerate(EXTENTS)]).backward()
    names = ['absolute_pos_embed', 'window_pos_embed']
    actual, expected = ({name: gradients(m)[name] for name in names} for m in (model, other))
    assert_gradients(actual, expected, 'position embeddings')


def test_alone_and_in_a_batch():
    model, images = built(), pixels(4, 3, 50, 70)
    with torch.no_grad():
        together = model(attach_extents(images, EXTENTS))
        for i, extent in enumerate(EXTENTS):
            for stage, alone in enumerate(model(images[i:i + 1, :, :extent[0], :extent[1]].clone())):
                h, w = token_size(extent, stage)
                assert_forward(together[stage][i, :, :h, :w], alone[0])


def test_image_and_window_of_pre_training_are_as_they_were():
    """At the size of pre-training both parts are added as they are, token by token."""
    model = built()
    tokens = first_stage_input(model, pixels(1, 3, *PRETRAINED))
    plain, _ = model.patch_embed(pixels(1, 3, *PRETRAINED))
    tiles = model.window_pos_embed.view(*WINDOW, -1).repeat(3, 3, 1)[:8, :10].reshape(1, 80, -1)
    assert_forward(tokens.flatten(1, 2), plain + model.absolute_pos_embed + tiles)


@pytest.mark.parametrize('window', [(3, 4), (5, 5), (4, 3), 1, (7, 2)])
def test_loading_for_another_window_stretches_the_window_part(window):
    source, model = built(), built(window_size=window)
    model.load_state_dict(source.state_dict())
    size = (window, window) if isinstance(window, int) else window
    part = source.window_pos_embed.view(1, *WINDOW, -1).permute(0, 3, 1, 2)
    if size != WINDOW:
        part = F.interpolate(part, size=size, mode='bicubic', align_corners=False)
    assert_forward(model.window_pos_embed, part.flatten(2).transpose(1, 2))
    assert torch.equal(model.absolute_pos_embed, source.absolute_pos_embed)


def test_frozen_and_trained():
    model = built(frozen_stages=0)
    assert not model.absolute_pos_embed.requires_grad and not model.window_pos_embed.requires_grad
    model = built()
    loss_of(model(pixels(1, 3, 60, 70))).backward()
    assert model.absolute_pos_embed.grad.any() and model.window_pos_embed.grad.any()


@pytest.mark.parametrize('init_cfg', [None, dict(type='Kaiming', layer='Conv2d'),
                                      [dict(type='Kaiming', layer='Conv2d')]])
@pytest.mark.parametrize('inside', [False, True])
def test_drawn_at_the_start(inside, init_cfg):
    """Whatever else an ``init_cfg`` asks for, and whoever asks."""
    model = SwinRPE(**SMALL, use_abs_pos_embed='window', window_size=7, init_cfg=init_cfg)
    whole = BaseModule()
    whole.backbone = model
    (whole if inside else model).init_weights()
    for embedding in (model.absolute_pos_embed, model.window_pos_embed):
        assert 0.01 < embedding.std() < 0.03


def test_without_a_window_part_there_is_none():
    assert built(use_abs_pos_embed=True).window_pos_embed is None
    assert not any('pos_embed' in name for name in built(use_abs_pos_embed=False).state_dict())


@pytest.mark.parametrize('value', ['windows', 'True', 2, (True, )])
def test_wrong_value(value):
    with pytest.raises(InputError, match='use_abs_pos_embed') as error:
        SwinRPE(**SMALL, use_abs_pos_embed=value)
    assert '\n' not in str(error.value)


def stepped(model: SwinRPE) -> torch.optim.Optimizer:
    """An optimizer of the model that has made a step, with gradients of another one at hand."""
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        loss_of(model(pixels(1, 3, 40, 50)), seed=step).backward()
        if step == 0:
            optimizer.step()
            optimizer.zero_grad()
    return optimizer


def test_the_same_window_again_changes_nothing():
    model = built()
    optimizer = stepped(model)
    gradient, average = model.window_pos_embed.grad, optimizer.state[model.window_pos_embed]['exp_avg']
    model.set_window_size(WINDOW)
    assert model.window_pos_embed.grad is gradient
    optimizer.step()
    assert optimizer.state[model.window_pos_embed]['exp_avg'] is average


def test_the_optimizer_goes_on_with_the_window_part_of_another_window():
    model = built()
    optimizer = stepped(model)
    before, average = model.window_pos_embed, optimizer.state[model.absolute_pos_embed]['exp_avg']
    replaced = model.set_window_size((5, 2), optimizer=optimizer)
    after = model.window_pos_embed
    assert any(old is before and new is after for old, new in replaced) and after.requires_grad
    assert not any(parameter in optimizer.state for parameter in (before, after))
    assert optimizer.state[model.absolute_pos_embed]['exp_avg'] is average
    optimizer.zero_grad()
    loss_of(model(pixels(1, 3, 40, 50))).backward()
    value = after.detach().clone()
    optimizer.step()
    assert model.window_pos_embed is after and (after != value).any() and optimizer.state[after]['step'] == 1


@pytest.mark.parametrize('change', [dict(window_size=(5, 2)), dict(pretrain_img_size=48)])
def test_resuming_for_another_size_starts_new_averages(change):
    """The file's averages are of the size that its embeddings had."""
    # what a file does not tell of the size of pre-training has to be a square
    source = built(**({} if 'window_size' in change else dict(pretrain_img_size=32)))
    averages = stepped(source).state_dict()
    model = built(**change)
    model.load_state_dict(source.state_dict())
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(averages)
    tables = sum('bias_table' in name for name, _ in model.named_parameters())
    assert drop_stale_averages(optimizer) == (1 + tables if 'window_size' in change else 1)
    loss_of(model(pixels(1, 3, 40, 50))).backward()
    optimizer.step()
    name = 'window_pos_embed' if 'window_size' in change else 'absolute_pos_embed'
    changed, kept = getattr(model, name), model.patch_embed.projection.weight
    assert optimizer.state[changed]['exp_avg'].shape == changed.shape
    assert optimizer.state[changed]['step'] == 1 and optimizer.state[kept]['step'] == 2
