"""The one tolerance table, and the errors that it bounds."""
import torch

TOLERANCE = {
    'forward': {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2e-2},
    'gradient': {torch.float32: 1e-4, torch.float64: 1e-9},
}

# Worst error seen in this run, by name: (error, number of comparisons). Printed at the end of the run.
FIGURES: dict[str, tuple[float, int]] = {}


def record(name: str, error: float, count: int = 1) -> None:
    """Keep the worst error of a named figure; ``count`` comparisons were made for this one."""
    worst, before = FIGURES.get(name, (0.0, 0))
    FIGURES[name] = (max(worst, error), before + count)


def forward_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference; NaN and infinity count as infinite."""
    assert actual.shape == expected.shape, f'{tuple(actual.shape)} is not {tuple(expected.shape)}'
    if actual.numel() == 0:
        return 0.0
    error = (actual.detach().double() - expected.detach().double()).abs().max().item()
    return error if error == error else float('inf')


def gradient_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Largest relative error over named gradients, with its name.

    Each gradient is measured against its own largest entry, or against a thousandth of the largest entry of all
    where a gradient vanishes (rounding noise has no relative size).
    """
    assert actual.keys() == expected.keys(), f'gradients of different names: {actual.keys() ^ expected.keys()}'
    floor = 1e-3 * max(value.abs().max().item() for value in expected.values())
    worst, where = 0.0, ''
    for name, value in expected.items():
        assert actual[name] is not None, f'{name} has no gradient'
        error = forward_error(actual[name], value) / max(value.abs().max().item(), floor, 1e-30)
        if error > worst:
            worst, where = error, name
    return worst, where


def assert_forward(actual: torch.Tensor, expected: torch.Tensor, name: str = '') -> None:
    """Fail where two tensors differ by more than the forward tolerance of their type."""
    error = forward_error(actual, expected)
    if name:
        record(f'{name}, forward', error)
    assert error <= TOLERANCE['forward'][expected.dtype], f'forward error {error:.2e} {name}'


def assert_gradients(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], name: str = '') -> None:
    """Fail where named gradients differ by more than the gradient tolerance of their type."""
    error, where = gradient_error(actual, expected)
    if name:
        record(f'{name}, gradient', error)
    dtype = next(iter(expected.values())).dtype
    assert error <= TOLERANCE['gradient'][dtype], f'relative gradient error {error:.2e} in {where} {name}'
