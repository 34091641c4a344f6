"""First convolutions for images of another number of channels, and absolute position embeddings of another size."""
import logging

import pytest
import torch
import torch.nn.functional as F
from mmengine.logging import MMLogger
from oracles.cases import SMALL, pixels, randomise
from oracles.official import official_state

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.models.embeddings import fit_embedding, fit_input_channels, size_of_embedding

CONV = 'patch_embed.projection.weight'


def model_of(channels=3, seed=None, **kwargs) -> SwinRPE:
    model = SwinRPE(**SMALL, window_size=3, in_channels=channels, **kwargs).eval()
    return model if seed is None else randomise(model, seed)


@pytest.fixture
def messages():
    seen, handler = [], logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)
    yield seen
    logger.removeHandler(handler)


# ---- channels ----

@pytest.mark.parametrize('channels', [1, 2, 4, 6, 7])
@pytest.mark.parametrize('mode', ['mean', 'tile'])
def test_weights(channels, mode):
    weight = pixels(8, 3, 4, 4)
    fitted = fit_input_channels(weight, channels, mode)
    assert fitted.shape == (8, channels, 4, 4)
    for channel in range(channels):
        source = weight.mean(1) if mode == 'mean' else weight[:, channel % 3]
        assert torch.allclose(fitted[:, channel], source * 3 / channels, atol=1e-6)


@pytest.mark.parametrize('mode', [None, 'mean', 'tile'])
def test_equal_numbers_change_nothing(mode):
    weight = pixels(8, 3, 4, 4)
    assert fit_input_channels(weight, 3, mode) is weight


@pytest.mark.parametrize('old, new, mode', [(3, 1, 'mean'), (3, 4, 'mean'), (3, 6, 'mean'), (1, 3, 'mean'),
                                            (1, 3, 'tile'), (3, 6, 'tile')])
def test_grey_images_keep_their_tokens(old, new, mode):
    """Where all channels show the same, the number of channels makes no difference."""
    weight, grey = pixels(8, old, 4, 4), pixels(1, 1, 8, 8, seed=1)
    outs = [F.conv2d(grey.expand(-1, w.shape[1], -1, -1), w, stride=4)
            for w in (weight, fit_input_channels(weight, new, mode))]
    assert torch.allclose(*outs, atol=1e-5)


@pytest.mark.parametrize('channels', [1, 4, 6])
@pytest.mark.parametrize('mode', ['mean', 'tile'])
@pytest.mark.parametrize('way', ['load_state_dict', 'init_cfg', 'inside another model'])
def test_models(channels, mode, way, messages, tmp_path):
    source = model_of(seed=0).state_dict()
    model = model_of(channels, input_weights=mode)
    if way == 'init_cfg':
        torch.save(source, tmp_path / 'a.pth')
        model.init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth'))
        model.init_weights()
    elif way == 'load_state_dict':
        model.load_state_dict(source)
    else:
        whole = torch.nn.Module()
        whole.backbone = model
        whole.load_state_dict({f'backbone.{key}': value for key, value in source.items()})
    for key, value in model.state_dict().items():
        expected = fit_input_channels(source[key], channels, mode) if key == CONV else source[key]
        assert torch.equal(value, expected)
    assert model(pixels(1, channels, 20, 30))[0].isfinite().all()
    said = [message for message in messages if 'convolution' in message]
    assert len(said) == 1 and f'3 channels was made one of {channels}' in said[0] and mode in said[0]


def test_nothing_is_said_of_equal_numbers(messages):
    model_of(4, input_weights='mean').load_state_dict(model_of(4, seed=0).state_dict())
    assert not [message for message in messages if 'convolution' in message]


def test_it_has_to_be_asked_for(tmp_path):
    torch.save(model_of(seed=0).state_dict(), tmp_path / 'rgb.pth')
    model = model_of(4, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'rgb.pth')))
    before = model.patch_embed.projection.weight.clone()
    with pytest.raises(InputError) as error:
        model.init_weights()
    sentence = str(error.value)
    assert '\n' not in sentence and '. ' not in sentence
    for part in ('rgb.pth', '3 channels', 'the model 4', "input_weights='mean'", "'tile'"):
        assert part in sentence
    assert torch.equal(model.patch_embed.projection.weight, before)


@pytest.mark.parametrize('mode', ['rgb', 'max', True, 3])
def test_unknown_mode(mode):
    with pytest.raises(InputError, match='input_weights must be None or one of mean, tile'):
        model_of(input_weights=mode)


def test_patches_of_another_size_are_not_fitted():
    """They have more weights per channel."""
    model = SwinRPE(**SMALL, in_channels=4, patch_size=2, strides=(2, 2, 2, 2), input_weights='mean')
    with pytest.raises(InputError, match='patch_size'):
        model.load_state_dict(model_of(seed=0).state_dict())


# ---- absolute position embeddings ----

def stretched(embedding: torch.Tensor, old, new) -> torch.Tensor:
    grid = embedding.transpose(1, 2).unflatten(2, old)
    return F.interpolate(grid, size=new, mode='bicubic', align_corners=False).flatten(2).transpose(1, 2)


@pytest.mark.parametrize('old, new', [(32, 48), (48, 32), (32, (24, 56)), (64, 4)])
def test_square_embedding(old, new):
    source = model_of(seed=0, use_abs_pos_embed=True, pretrain_img_size=old)
    model = model_of(use_abs_pos_embed=True, pretrain_img_size=new)
    model.load_state_dict(source.state_dict())
    sizes = [tuple(side // 4 for side in (size if isinstance(size, tuple) else (size, size))) for size in (old, new)]
    expected = stretched(source.absolute_pos_embed.detach(), *sizes)
    assert torch.allclose(model.absolute_pos_embed, expected, atol=1e-6)


def test_the_same_size_is_taken_as_it_is():
    source = model_of(seed=0, use_abs_pos_embed=True, pretrain_img_size=(24, 56))
    model = model_of(use_abs_pos_embed=True, pretrain_img_size=(24, 56))
    model.load_state_dict(source.state_dict())
    assert torch.equal(model.absolute_pos_embed, source.absolute_pos_embed)


def test_map_of_the_official_detection_code():
    """``(1, C, H, W)`` instead of ``(1, H * W, C)``, under the names of that code."""
    arch = {name: SMALL[name] for name in ('embed_dims', 'depths', 'num_heads')}
    state = official_state(**arch, window=3, map_side=8)
    state['absolute_pos_embed'] = pixels(1, 8, 8, 8, seed=3)
    for size in (32, 48):
        model = model_of(use_abs_pos_embed=True, pretrain_img_size=size)
        model.load_state_dict(state, strict=False)
        flat = state['absolute_pos_embed'].flatten(2).transpose(1, 2)
        expected = flat if size == 32 else stretched(flat, (8, 8), (12, 12))
        assert torch.allclose(model.absolute_pos_embed, expected, atol=1e-6)


def test_rectangle_of_another_size_has_to_be_built_as_it_was():
    """7 x 3 tokens are no square, and nothing else tells their sides."""
    source = model_of(seed=0, use_abs_pos_embed=True, pretrain_img_size=(28, 12))
    with pytest.raises(InputError, match='absolute_pos_embed of the checkpoint has 21 tokens.*pretrain_img_size') as e:
        model_of(use_abs_pos_embed=True, pretrain_img_size=32).load_state_dict(source.state_dict())
    assert '\n' not in str(e.value)


def test_embedding_of_the_window():
    """Its window is noted, so that rectangles are told apart."""
    source = SwinRPE(**SMALL, window_size=(3, 5), use_abs_pos_embed='window')
    randomise(source, 0)
    for window in ((5, 3), (4, 4), (3, 5)):
        model = SwinRPE(**SMALL, window_size=window, use_abs_pos_embed='window')
        model.load_state_dict(source.state_dict())
        expected = source.window_pos_embed.detach()
        if window != (3, 5):
            expected = stretched(expected, (3, 5), window)
        assert torch.allclose(model.window_pos_embed, expected, atol=1e-6)


def test_an_embedding_that_the_model_does_not_have():
    source = model_of(seed=0, use_abs_pos_embed=True, pretrain_img_size=32)
    missing, unexpected = model_of().load_state_dict(source.state_dict(), strict=False)
    assert not missing and unexpected == ['absolute_pos_embed']


def test_an_embedding_that_the_file_does_not_have():
    model = model_of(use_abs_pos_embed=True, pretrain_img_size=32)
    missing, unexpected = model.load_state_dict(model_of(seed=0).state_dict(), strict=False)
    assert not unexpected and missing == ['absolute_pos_embed']


@pytest.mark.parametrize('tokens, likely, size', [(12, (3, 4), (3, 4)), (16, (3, 4), (4, 4)), (16, (2, 8), (2, 8)),
                                                  (1, (7, 7), (1, 1))])
def test_size_of_an_embedding(tokens, likely, size):
    assert size_of_embedding('embedding', tokens, likely, 'argument') == size


def test_embeddings_are_stretched_by_the_formula():
    embedding = pixels(1, 12, 5)
    assert fit_embedding(embedding, (3, 4), (3, 4)) is embedding
    assert torch.allclose(fit_embedding(embedding, (3, 4), (6, 5)), stretched(embedding, (3, 4), (6, 5)))
