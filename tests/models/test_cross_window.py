"""Keys beyond the window: a halo around it, and one pooled key for each window near it."""
from functools import partial

import pytest
import torch
from oracles.cases import (
    SMALL,
    case_count,
    dice,
    loss_of,
    pixels,
    random_extents,
    random_size,
    random_window,
    randomise,
    token_size,
)
from oracles.cells import cell_attention
from oracles.compare import TOLERANCE, assert_forward, assert_gradients, record
from oracles.swin import dense_swin
from torch.utils._python_dispatch import TorchDispatchMode

from swin_rpe_mm import InputError, SwinRPE, attach_extents
from swin_rpe_mm.executors import tuning
from swin_rpe_mm.executors.cpu.packed import PackedLayout
from swin_rpe_mm.executors.cpu.rows import attend_rows, prepare
from swin_rpe_mm.models import SwinBlock, WindowAttention
from swin_rpe_mm.rpe.base import _keep
from swin_rpe_mm.windows import PaddedWindows, ShiftedWindows, WindowLayout, tokens_inside

ENCODINGS = {
    'none': None,
    'table': dict(type='TableRPE'),
    'block': dict(type='BlockRPE', num_buckets=2, max_distance=5),
    'rotary': dict(type='RotaryRPE'),
    'axial': dict(type='RotaryRPE', mode='axial'),
    'contextual': dict(type='ContextualRPE', on='qkv', form='sign_log', num_buckets=2, max_distance=5),
    'decomposed': dict(type='DecomposedRPE'),
    'dynamic': dict(type='DynamicRPE', hidden_dims=5),
    'log cpb': dict(type='LogCPB', hidden_dims=8, pretrained_window_size=4),
    'sum': [dict(type='TableRPE'), dict(type='ContextualRPE', on='kv'), dict(type='DynamicRPE', hidden_dims=5)],
    'rotary, dynamic': [dict(type='RotaryRPE'), dict(type='DynamicRPE', hidden_dims=5, rpe=dict(type='LowRankRPE'))],
}
ROTATING = ('rotary', 'axial', 'rotary, dynamic')


def named(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters, for the oracle."""
    return {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}


def grads(params) -> dict[str, torch.Tensor]:
    return {name: value.grad for name, value in params if value.grad is not None}


def random_weights(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Zero-initialised parts get weights too; logits stay moderate."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, value in sorted(module.named_parameters()):
            fan_in = value[0].numel() if value.ndim == 2 and value.shape[0] > 1 else 4
            value.copy_(torch.randn(value.shape, generator=generator) * fan_in**-0.5)
    return module


def compare_grads(actual: dict, expected: dict, name: str) -> None:
    """Gradients by name; a parameter without one, such as that of an offset that never occurs, has zeros."""
    zeros = {key: torch.zeros_like(value) for key, value in expected.items()}
    assert_gradients(zeros | actual, expected, name)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returned."""
    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out, ):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


# ---- one attention module against the oracle ----


def run_windows(module, maps, window, shift, extents, halo=(0, 0), pooled=0) -> torch.Tensor:
    """Maps ``(B, H, W, C)`` through the module, zero outside the extents."""
    kind = (PaddedWindows if pooled else ShiftedWindows)(window, halo, shift)
    layout = WindowLayout.build(kind, len(maps), tuple(maps.shape[1:3]), torch.tensor(extents),
                                pooled_neighbours=pooled)
    inside = tokens_inside(torch.tensor(extents), tuple(maps.shape[1:3]))
    return torch.where(inside, module(maps.flatten(1, 2), layout), 0).view_as(maps)


def check_module(rng, case: int, rpe, pooled: int, cosine: bool, name: str) -> None:
    window, halo = random_window(rng, 4), (rng.randint(0, 3), rng.randint(0, 3))
    shift = (rng.randint(0, window[0] - 1), rng.randint(0, window[1] - 1))
    size = random_size(rng, 12, area=80)
    extents = random_extents(rng, rng.randint(1, 3), size)
    module = random_weights(WindowAttention(16, 2, window, rpe, halo=halo, pooled_neighbours=pooled, cosine=cosine),
                            case)
    dtype = torch.float64 if cosine else torch.float32  # a temperature multiplies rounding too
    params = named(module.to(dtype))
    maps = pixels(len(extents), *size, 16, seed=case).to(dtype)
    crops = [maps[i, :h, :w].clone().requires_grad_() for i, (h, w) in enumerate(extents)]
    maps.requires_grad_()
    out = run_windows(module, maps, window, shift, extents, halo, pooled)
    expected = [cell_attention({f'attn.{key}': value for key, value in params.items()}, 'attn', crop, 2, window, shift,
                               halo, rpe, pooled) for crop in crops]
    inside = [out[i, :h, :w] for i, (h, w) in enumerate(extents)]
    for actual, dense in zip(inside, expected):
        assert_forward(actual, dense, name)
    loss_of(inside).backward()
    loss_of(expected).backward()
    actual = grads(module.named_parameters()) | {f'map {i}': maps.grad[i, :h, :w] for i, (h, w) in enumerate(extents)}
    compare_grads(actual, grads(params.items()) | {f'map {i}': crop.grad for i, crop in enumerate(crops)}, name)
    with torch.no_grad():  # other kernels than with gradients
        inferred = run_windows(module, maps, window, shift, extents, halo, pooled)
    for i, (h, w) in enumerate(extents):
        assert_forward(inferred[i, :h, :w], expected[i])
        inferred[i, :h, :w] = 0
    assert (inferred == 0).all()


@pytest.mark.parametrize('case', range(case_count(2)))
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_halo(encoding, case):
    rng = dice(f'halo {encoding}', case)
    check_module(rng, case, ENCODINGS[encoding], 0, rng.random() < 0.3, 'halo')


@pytest.mark.parametrize('case', range(case_count(2)))
@pytest.mark.parametrize('encoding', [encoding for encoding in ENCODINGS if encoding not in ROTATING])
def test_pooled_neighbours(encoding, case):
    rng = dice(f'pooled {encoding}', case)
    check_module(rng, case, ENCODINGS[encoding], rng.randint(1, 2), rng.random() < 0.3, 'pooled neighbours')


@pytest.mark.parametrize('case', range(case_count(4)))
def test_halo_without_masks(case):
    """Window padding takes part as zeros before the projection, and so does the halo's; beyond it there is nothing."""
    rng = dice('halo without masks', case)
    window, halo = random_window(rng, 4), (rng.randint(0, 5), rng.randint(0, 5))
    shift = (rng.randint(0, window[0] - 1), rng.randint(0, window[1] - 1))
    size = random_size(rng, 12, area=80)
    rpe = ENCODINGS[rng.choice(['table', 'block', 'rotary'])]
    module = random_weights(WindowAttention(16, 2, window, rpe, halo=halo), case)
    x = pixels(1, *size, 16, seed=case)
    layout = WindowLayout.build(ShiftedWindows(window, halo, shift), 1, size, mask_padding=False)
    padded = torch.nn.functional.pad(x[0], (0, 0, 0, -size[1] % window[1], 0, -size[0] % window[0]))
    params = {f'attn.{key}': value for key, value in module.named_parameters()}
    expected = cell_attention(params, 'attn', padded, 2, window, shift, halo, rpe)[:size[0], :size[1]]
    assert_forward(module(x.flatten(1, 2), layout).view_as(expected), expected, 'halo without masks')


@pytest.mark.parametrize('encoding', ROTATING)
def test_pooled_neighbours_and_rotation_are_refused(encoding):
    with pytest.raises(InputError, match='pooled_neighbours') as error:
        SwinRPE(**SMALL, rpe=ENCODINGS[encoding], pooled_neighbours=1)
    assert '\n' not in str(error.value)


# ---- the backbone ----


def halo_of(rng, windows):
    """A halo as a config may give it, and what it means for each stage."""
    kind = rng.choice(['window', 'number', 'pair', 'list'])
    if kind == 'window':
        return 'window', windows
    if kind == 'number':
        return 2, [(2, 2)] * 4
    if kind == 'pair':
        return (1, 3), [(1, 3)] * 4
    return [0, 2, (3, 1), (0, 2)], [(0, 0), (2, 2), (3, 1), (0, 2)]


def random_backbone(rng, seed: int, longest: int = 4, **kwargs):
    """A backbone with random windows, and its attention for the oracle."""
    windows = [random_window(rng, longest) for _ in range(4)]
    halo, halos = halo_of(rng, windows)
    pooled, shifting = rng.choice([0, 1, 2]), rng.random() < 0.7
    rpe = kwargs.get('rpe', dict(type='TableRPE'))
    model = SwinRPE(**(SMALL | dict(window_size=windows, halo=halo, pooled_neighbours=pooled, shift_windows=shifting)
                       | kwargs))
    randomise(model, seed)

    def attend(params, name, x, heads, window, shift, qk_scale):
        stage = int(name.split('.')[1])
        return cell_attention(params, name, x, heads, window, shift if shifting else (0, 0), halos[stage], rpe, pooled,
                              qk_scale)

    return model, partial(dense_swin, depths=SMALL['depths'], num_heads=SMALL['num_heads'], windows=windows,
                          attention=attend)


@pytest.mark.parametrize('case', range(case_count(5)))
def test_backbone(case):
    rng = dice('backbone with a halo', case)
    size = random_size(rng, 70, area=2000)
    extents = random_extents(rng, rng.randint(1, 2), size)
    model, dense = random_backbone(rng, case, rpe=rng.choice([dict(type='TableRPE'), dict(type='BlockRPE')]))
    params = named(model)
    images = pixels(len(extents), 3, *size, seed=case)
    outs = model(attach_extents(images, extents))
    expected = [dense(params, images[i, :, :h, :w]) for i, (h, w) in enumerate(extents)]
    inside = []
    for i, extent in enumerate(extents):
        for stage, out in enumerate(outs):
            h, w = token_size(extent, stage)
            inside.append(out[i, :, :h, :w])
            assert_forward(inside[-1], expected[i][stage], 'backbone with a halo')
    loss_of(inside).backward()
    loss_of([out for image in expected for out in image]).backward()
    compare_grads(grads(model.named_parameters()), grads(params.items()), 'backbone with a halo')


@pytest.mark.parametrize('case', range(4))
def test_whole_window_as_halo_reaches_the_eight_around_it(case):
    """The table has a row for each of ``4w - 1`` offsets per axis; a change one window away is felt, two are not."""
    rng = dice('whole window', case)
    window = random_window(rng, 4)
    model = randomise(SwinRPE(embed_dims=8, depths=(1, ), num_heads=(2, ), strides=(4, ), out_indices=(0, ),
                              window_size=window, halo='window', drop_path_rate=0.))
    table = model.state_dict()['stages.0.blocks.0.attn.w_msa.rpe.relative_position_bias_table']
    assert len(table) == (4 * window[0] - 1) * (4 * window[1] - 1)
    size = (5 * window[0], 5 * window[1])
    images = pixels(1, 3, 4 * size[0], 4 * size[1])
    changed = images.clone()
    y, x = 2 * window[0] + window[0] // 2, 2 * window[1] + window[1] // 2  # a token of the middle window
    changed[..., 4 * y:4 * y + 4, 4 * x:4 * x + 4] += 3
    with torch.no_grad():
        moved = (model(images)[0] != model(changed)[0])[0].any(0)
    by_window = moved.unflatten(1, (5, window[1])).unflatten(0, (5, window[0])).permute(0, 2, 1, 3).flatten(2)
    assert by_window[1:4, 1:4].all()
    assert by_window.sum() == by_window[1:4, 1:4].sum()


@pytest.mark.parametrize('poison', [1e4, float('nan')])
@pytest.mark.parametrize('encoding', ['table', 'contextual', 'dynamic', 'sum', 'rotary, dynamic'])
def test_nothing_outside_an_image_leaks(encoding, poison):
    """Whatever is in the batch padding, outputs and gradients are bit-equal, at the corners of images too."""
    extents = [(41, 70), (70, 33), (9, 9)]
    clean = torch.zeros(3, 3, 70, 70)
    poisoned = torch.full_like(clean, poison)
    for i, (h, w) in enumerate(extents):
        for images in (clean, poisoned):
            images[i, :, :h, :w] = pixels(3, h, w, seed=i)
    results = []
    for images in (clean, poisoned):
        model = random_weights(SwinRPE(**SMALL, window_size=(3, 2), rpe=ENCODINGS[encoding], halo=(2, 3),
                                       pooled_neighbours=0 if encoding in ROTATING else 1), 0)
        outs = model(attach_extents(images.requires_grad_(), extents))
        loss_of(outs).backward()
        results.append((outs, grads(model.named_parameters()), images.grad))
    for a, b in zip(results[0][0], results[1][0]):
        assert torch.equal(a, b)
    assert results[0][1].keys() == results[1][1].keys()
    for name, gradient in results[0][1].items():
        assert torch.equal(gradient, results[1][1][name]), name
    assert torch.equal(results[0][2], results[1][2])


def test_tokens_outside_an_image_leak_through_no_layout():
    """The same one level down: tokens of the batch padding, which the module is handed on the map."""
    module = random_weights(WindowAttention(8, 2, (3, 2), dict(type='TableRPE'), halo=(2, 3), pooled_neighbours=2), 0)
    extents = [(7, 9), (10, 4), (1, 1)]
    maps = torch.full((3, 10, 9, 8), 1e4)
    for i, (h, w) in enumerate(extents):
        maps[i, :h, :w] = pixels(h, w, 8, seed=i)
    with torch.no_grad():
        out = run_windows(module, maps, (3, 2), (1, 1), extents, (2, 3), 2)
        for i, (h, w) in enumerate(extents):
            alone = run_windows(module, maps[i:i + 1, :h, :w], (3, 2), (1, 1), [(h, w)], (2, 3), 2)
            assert_forward(out[i, :h, :w], alone[0])


@pytest.mark.parametrize('encoding', [encoding for encoding in ENCODINGS if encoding != 'axial'])
def test_alone_and_in_any_batch(encoding):
    rng = dice(f'invariance with a halo {encoding}', 0)
    size = random_size(rng, 80)
    extents = random_extents(rng, 3, size)
    model = random_weights(SwinRPE(**SMALL, window_size=[random_window(rng, 5) for _ in range(4)], halo=(1, 2),
                                   pooled_neighbours=0 if encoding in ROTATING else 1, rpe=ENCODINGS[encoding]), 0)
    images = pixels(3, 3, *size)
    with torch.no_grad():
        together = model(attach_extents(images, extents))
        for i, (h, w) in enumerate(extents):
            for stage, alone in enumerate(model(images[i:i + 1, :, :h, :w].clone())):
                th, tw = token_size((h, w), stage)
                assert_forward(together[stage][i, :, :th, :tw], alone[0], 'halo, alone against in a batch')


@pytest.mark.parametrize('mask_padding', [True, False])
@pytest.mark.parametrize('encoding', ['table', 'contextual', 'dynamic', 'rotary'])
def test_a_few_windows_at_a_time(encoding, mask_padding):
    """However many windows are attended to at once, features and gradients are the same."""
    results = []
    for keys_at_once in (10**9, 500, 1):
        model = random_weights(SwinRPE(**SMALL, window_size=(3, 2), rpe=ENCODINGS[encoding], halo=2, pooled_neighbours=(
            0 if encoding in ROTATING else 1), mask_padding=mask_padding), 0)
        with tuning(keys_at_once=keys_at_once):
            outs = model(attach_extents(pixels(2, 3, 30, 40), [(30, 21), (12, 40)]))
            loss_of(outs).backward()
        results.append((outs, grads(model.named_parameters())))
    for outs, gradients in results[1:]:
        for a, e in zip(outs, results[0][0]):
            assert_forward(a, e)
        compare_grads(gradients, results[0][1], 'windows at a time')


@pytest.mark.parametrize('arch', ['nano', 'v2-nano'])
def test_recomputed_blocks_recompute_their_windows(arch):
    """``with_cp`` around what is recomputed anyway: the same draws, the same gradients."""
    results = []
    for with_cp in (False, True):
        model = random_weights(SwinRPE(**(SMALL | dict(arch=arch, window_size=3, halo=2, with_cp=with_cp,
                                                       drop_path_rate=0.3, rpe=ENCODINGS['sum']))), 0).train()
        torch.manual_seed(0)
        with tuning(keys_at_once=500):
            loss_of(model(attach_extents(pixels(2, 3, 40, 50), [(40, 31), (22, 50)]))).backward()
        results.append(grads(model.named_parameters()))
    compare_grads(results[1], results[0], 'recomputed blocks')


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('way', ['autocast', 'cast'])
@pytest.mark.parametrize('encoding', ['table', 'contextual', 'rotary', 'dynamic'])
def test_half_precision_is_finite_and_close(encoding, way, dtype):
    rotating = encoding in ROTATING
    model = randomise(SwinRPE(**(SMALL | dict(embed_dims=16)), window_size=3, halo=2, rpe=ENCODINGS[encoding],
                              pooled_neighbours=0 if rotating else 1))
    images, extents = pixels(2, 3, 60, 70), [(60, 33), (21, 70)]
    expected = [out.detach() for out in model(attach_extents(images, extents))]
    if way == 'cast':
        model.to(dtype)
        images = images.to(dtype)
    with torch.autocast('cpu', dtype=dtype, enabled=way == 'autocast'), tuning(keys_at_once=500):
        outs = model(attach_extents(images, extents))
    loss_of([out.float() for out in outs]).backward()
    for name, value in model.named_parameters():
        assert value.grad is None or value.grad.isfinite().all(), name
    for out, reference in zip(outs, expected):
        assert way == 'autocast' or out.dtype == dtype
        error = ((out.float() - reference).norm() / reference.norm()).item()
        record(f'halo, {dtype} by {way}, relative'.replace('torch.', ''), error)
        assert error <= TOLERANCE['forward'][torch.bfloat16]


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_inference_mode_leaves_nothing_behind(encoding):
    """What an evaluation in inference mode puts in a cache must serve training as well."""
    _keep.cache_clear()
    model = random_weights(SwinRPE(**SMALL, window_size=(2, 3), halo=(5, 1), rpe=ENCODINGS[encoding],
                                   pooled_neighbours=0 if encoding in ROTATING else 3), 0)
    images = attach_extents(pixels(2, 3, 47, 58), [(47, 30), (18, 58)])
    with torch.inference_mode():
        inferred = model(images)
    outs = model(images)
    loss_of(outs).backward()
    for a, b in zip(outs, inferred):
        assert_forward(a, b)


@pytest.mark.parametrize('encoding', ['table', 'dynamic', 'sum'])
def test_every_parameter_gets_a_gradient(encoding):
    model = random_weights(SwinRPE(**SMALL, window_size=3, halo='window', pooled_neighbours=2, shift_windows=False,
                                   rpe=ENCODINGS[encoding]), 0)
    loss_of(model(pixels(1, 3, 260, 260))).backward()
    for name, value in model.named_parameters():
        assert value.grad is not None and value.grad.abs().max() > 0, name


@pytest.mark.parametrize('training', [True, False])
def test_memory_does_not_grow_with_the_halo(training):
    """No tensor of nine copies of the map's keys is made by an executor, forward or backward."""
    window, channels, size = (4, 4), 16, (64, 64)
    layout = PackedLayout.build(ShiftedWindows(window, halo=window), size)
    assert layout.key_slots.numel() == 9 * 64 * 64
    tokens = pixels(64 * 64, channels).requires_grad_(training)
    block = SwinBlock(channels, 4, num_heads=2, window_size=window, rpe=dict(type='TableRPE'), halo=window)

    def run():
        with tuning(keys_at_once=2048, keys_in_cache=2048):
            return attend_rows(block.attn.w_msa, prepare(block), tokens, layout, True)

    run()  # index tensors are made once and kept
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    with Largest() as largest, torch.set_grad_enabled(training):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = run()
        if training:
            out.sum().backward()
    assert largest.elements <= 64 * 64 * 3 * channels  # q, k and v of the map
    assert sum(kept.values()) < 64 * 64 * 9 * channels  # what is kept for the backward pass


@pytest.mark.parametrize('halo', [-1, 'windows', (1, 2, 3), [1, 2, 3], 1.5, [1, 2, 3, -4]])
def test_wrong_halo(halo):
    with pytest.raises(InputError, match='halo') as error:
        SwinRPE(**SMALL, halo=halo)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('pooled', [-1, 1.5, 'window', None, (1, 1)])
def test_wrong_pooled_neighbours(pooled):
    with pytest.raises(InputError, match='pooled_neighbours') as error:
        SwinRPE(**SMALL, pooled_neighbours=pooled)
    assert '\n' not in str(error.value)
