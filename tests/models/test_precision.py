"""Low precision stays close, masked weights are exactly zero, and covered axes keep still on request."""
import pytest
import torch
from oracles.cases import SMALL, gradients, loss_of, pixels, randomise
from oracles.compare import TOLERANCE, assert_forward, record
from oracles.swin import block_shift

from swin_rpe_mm import SwinRPE, attach_extents

BACKENDS = ['eager', 'sdpa']


def small(table_std=1.0, **kwargs) -> SwinRPE:
    return randomise(SwinRPE(**(SMALL | dict(window_size=3) | kwargs)), table_std=table_std)


def relative_distance(actual, expected) -> float:
    return ((actual.float() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('way', ['autocast', 'cast'])
def test_bfloat16_is_finite_and_close(way, backend, mask_padding):
    model = small(attn_backend=backend, embed_dims=16, mask_padding=mask_padding)
    images, extents = pixels(2, 3, 60, 70), [(60, 33), (21, 70)]
    expected = [out.detach() for out in model(attach_extents(images, extents))]
    if way == 'cast':
        model.bfloat16()
        outs = model(attach_extents(images.bfloat16(), extents))
        assert all(out.dtype == torch.bfloat16 for out in outs)
    else:
        with torch.autocast('cpu', dtype=torch.bfloat16):
            outs = model(attach_extents(images, extents))
    loss_of([out.float() for out in outs]).backward()
    assert all(value.isfinite().all() for value in gradients(model).values())
    for out, reference in zip(outs, expected):
        error = relative_distance(out, reference)
        record(f'bfloat16 by {way}, relative', error)
        assert error <= TOLERANCE['forward'][torch.bfloat16]


def connected(size, window, blocks: int) -> torch.Tensor:
    """Which tokens reach which through a number of blocks, ``(H*W, H*W)`` bool."""
    from oracles.attention import visible
    reach = torch.eye(size[0] * size[1], dtype=torch.bool)
    for j in range(blocks):
        seen = visible(size, window, block_shift(size, window, j % 2 == 1, True))
        reach = (seen.float() @ reach.float()) > 0
    return reach


@pytest.mark.parametrize('factor', [1.0, 100.0])
@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('size, window', [((7, 9), (3, 3)), ((4, 4), (4, 4)), ((5, 3), (7, 2))])
def test_masked_weight_is_exactly_zero(size, window, backend, factor):
    """However large the logits are, a token out of sight changes nothing: not even the last bit."""
    model = small(attn_backend=backend, depths=(2, ), num_heads=(2, ), strides=(4, ), out_indices=(0, ),
                  window_size=window)
    with torch.no_grad():
        for block in model.stages[0].blocks:
            block.attn.w_msa.qkv.weight[:8] *= factor
    reach = connected(size, window, 2)
    images = pixels(1, 3, 4 * size[0], 4 * size[1])
    with torch.no_grad():
        before = model(images)[0][0].flatten(1)
    assert not reach.all() or size == window
    for token in range(0, size[0] * size[1], 5):
        y, x = divmod(token, size[1])
        changed = images.clone()
        changed[..., 4 * y:4 * y + 4, 4 * x:4 * x + 4] += 3
        with torch.no_grad():
            after = model(changed)[0][0].flatten(1)
        moved = (after != before).any(0)
        assert not moved[~reach[:, token]].any()
        assert moved[token]
        if factor == 1:
            assert moved[reach[:, token]].all()
        images_grad = images.clone().requires_grad_()
        model(images_grad)[0][0].flatten(1)[:, token].square().sum().backward()
        gradient = images_grad.grad[0].unflatten(1, (size[0], 4)).unflatten(3, (size[1], 4)).abs().sum((0, 2, 4))
        assert (gradient.flatten()[~reach[token]] == 0).all()


@pytest.mark.parametrize('backend', BACKENDS)
def test_covered_axes_do_not_shift_on_request(backend):
    """With one window over a whole map, shifted blocks see everything if and only if the shift is off."""
    images = pixels(1, 3, 20, 24)
    arguments = dict(depths=(1, ) * 2, num_heads=(1, ) * 2, strides=(4, 2), out_indices=(0, 1))
    still, shifting = (small(attn_backend=backend, window_size=6, shift_covered_axes=covered,
                             **(arguments | dict(depths=(2, 1)))) for covered in (False, True))
    assert (still(images)[0] - shifting(images)[0]).abs().max() > 0.1
    # a window that covers more is the same window: only the offsets that exist count
    larger = small(attn_backend=backend, window_size=9, shift_covered_axes=False, **(arguments | dict(depths=(2, 1))))
    state = still.state_dict()
    for name, value in larger.state_dict().items():
        if name.endswith('bias_table'):
            value.view(17, 17, -1)[3:14, 3:14] = state[name].view(11, 11, -1)
        else:
            value.copy_(state[name])
    for a, b in zip(larger(images), still(images)):
        assert_forward(a, b)


def test_large_maps_shift_either_way():
    images = pixels(1, 3, 40, 44)
    arguments = dict(depths=(2, ), num_heads=(1, ), strides=(4, ), out_indices=(0, ), window_size=6)
    assert torch.equal(small(shift_covered_axes=True, **arguments)(images)[0],
                       small(shift_covered_axes=False, **arguments)(images)[0])


def test_covered_axis_is_that_of_the_extent_not_of_the_batch():
    model = small(shift_covered_axes=False, window_size=5)
    images = torch.zeros(2, 3, 60, 60)
    images[0] = pixels(3, 60, 60)
    images[1, :, :18, :60] = pixels(3, 18, 60, seed=1)
    together = model(attach_extents(images, [(60, 60), (18, 60)]))
    alone = model(images[1:, :, :18])
    for a, b in zip(together, alone):
        assert_forward(a[1:, :, :b.shape[2]], b)


@pytest.mark.parametrize('window', [1, (1, 7), (7, 1)])
def test_window_of_one_token(window):
    outs = small(window_size=window)(pixels(1, 3, 33, 50))
    assert all(out.isfinite().all() for out in outs)
