"""Tasks that meet in batch norms give what one batch norm over all their pixels gives, and otherwise a loop."""
import copy
import threading

import pytest
import torch
from mmengine.model import revert_sync_batchnorm
from torch import nn

from swin_rpe_mm.mm.per_image.joint_batch_norm import run_side_by_side

SHAPES = {
    nn.BatchNorm1d: [(4, 3), (2, 3)],
    nn.BatchNorm2d: [(1, 3, 5, 4), (2, 3, 1, 7), (1, 3, 2, 2)],
    nn.BatchNorm3d: [(1, 3, 2, 3, 4), (1, 3, 1, 1, 2)],
}


def norms_alike(kind: type, **arguments) -> tuple[nn.Module, nn.Module]:
    norm = kind(3, **arguments)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return norm, copy.deepcopy(norm)


@pytest.mark.parametrize('kind', SHAPES)
def test_statistics_are_those_of_all_pixels(kind):
    norm, oracle = norms_alike(kind)
    inputs = [(i + torch.randn(shape)).requires_grad_() for i, shape in enumerate(SHAPES[kind])]
    copies = [given.detach().clone().requires_grad_() for given in inputs]
    found = run_side_by_side([lambda given=given: norm(given).pow(3) for given in inputs], [norm])

    pixels = torch.cat([given.transpose(0, 1).flatten(1) for given in copies], 1)  # (C, L)
    mean, var = pixels.mean(1, keepdim=True), pixels.var(1, unbiased=False, keepdim=True)
    normed = (pixels - mean) / (var + oracle.eps).sqrt() * oracle.weight[:, None] + oracle.bias[:, None]
    expected = [part.pow(3).reshape(given.transpose(0, 1).shape).transpose(0, 1)
                for part, given in zip(normed.split([given.numel() // 3 for given in copies], 1), copies)]
    sum(part.sum() for part in found).backward()
    sum(part.sum() for part in expected).backward()
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    for one, other in zip([*inputs, *norm.parameters()], [*copies, *oracle.parameters()]):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.running_mean, 0.1 * mean[:, 0].detach())
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * pixels.detach().var(1))
    assert norm.num_batches_tracked == 1


def test_the_layer_that_stands_in_for_sync_bn_meets_too():
    norm = revert_sync_batchnorm(nn.SyncBatchNorm(3))
    inputs = [torch.randn(1, 3, 2, 5), torch.randn(1, 3, 4, 1)]
    run_side_by_side([lambda given=given: norm(given) for given in inputs], [norm])
    mean = torch.cat([given.flatten(2) for given in inputs], 2).mean((0, 2))
    torch.testing.assert_close(norm.running_mean, 0.1 * mean)


def test_one_at_a_time_and_in_order():
    norms = [nn.BatchNorm2d(3), nn.BatchNorm2d(3)]
    seen, running = [], threading.Lock()

    def task(name: str) -> torch.Tensor:
        maps = torch.randn(1, 3, 2, 2)
        for step, norm in enumerate(norms):
            with running:
                seen.append((step, name, torch.rand(()).item()))
            maps = norm(maps)
        with running:
            seen.append(('end', name, torch.rand(()).item()))
        return maps

    def run() -> list:
        seen.clear()
        torch.manual_seed(3)
        return run_side_by_side([lambda name=name: task(name) for name in 'abc'], norms)

    first, first_seen = run(), list(seen)
    assert [entry[:2] for entry in seen] == [(step, name) for step in (0, 1, 'end') for name in 'abc']
    second = run()
    assert seen == first_seen
    assert all(torch.equal(one, other) for one, other in zip(first, second))


def test_who_does_not_come_is_not_waited_for():
    """Of three tasks, one skips the first norm and another the second."""
    norms = [nn.BatchNorm2d(3), nn.BatchNorm2d(3)]
    inputs = torch.randn(3, 1, 3, 4, 4)
    ways = [(0, 1), (1, ), (0, )]

    def task(given, way):
        for index in way:
            given = norms[index](given)
        return given

    found = run_side_by_side([lambda given=given, way=way: task(given, way) for given, way in zip(inputs, ways)], norms)
    first = nn.BatchNorm2d(3)(inputs[[0, 2], 0])
    second = nn.BatchNorm2d(3)(torch.stack([first[0], inputs[1, 0]]))
    for one, other in zip(found, [*second, first[1]]):
        torch.testing.assert_close(one[0], other)
    assert [norm.num_batches_tracked.item() for norm in norms] == [1, 1]


@pytest.mark.parametrize('failing', [0, 1, 2])
@pytest.mark.parametrize('before', [True, False])
def test_an_error_in_one_ends_all(failing, before):
    norm = nn.BatchNorm2d(3)
    threads = threading.active_count()

    def task(index: int) -> torch.Tensor:
        if index == failing and before:
            raise KeyError(index)
        maps = norm(torch.randn(1, 3, 2, 2))
        if index == failing:
            raise KeyError(index)
        return norm(maps)

    with pytest.raises(KeyError, match=str(failing)):
        run_side_by_side([lambda index=index: task(index) for index in range(3)], [norm])
    assert threading.active_count() == threads
    assert 'forward' not in vars(norm)


def test_an_error_in_the_norm_ends_all():
    norm = nn.BatchNorm2d(3)
    threads = threading.active_count()
    with pytest.raises(RuntimeError):
        run_side_by_side([lambda: norm(torch.randn(1, 4, 2, 2))] * 2, [norm])
    assert threading.active_count() == threads
    assert norm(torch.randn(2, 3, 1, 1)).shape == (2, 3, 1, 1)


@pytest.mark.parametrize('grad', [True, False])
@pytest.mark.parametrize('autocast', [True, False])
def test_threads_have_the_modes_of_their_caller(grad, autocast):
    norm, linear = nn.BatchNorm1d(3), nn.Linear(3, 3)

    def task():
        return linear(norm(torch.randn(4, 3)))

    with torch.set_grad_enabled(grad), torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        found = run_side_by_side([task] * 2, [norm])
    assert all(part.requires_grad == grad for part in found)
    assert all(part.dtype == (torch.bfloat16 if autocast else torch.float32) for part in found)
