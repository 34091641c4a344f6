"""Whatever is done to a module, in every mode: the result is that of the changed module, and hooks fire once."""
import copy

import pytest
import torch
from oracles.cases import pixels
from oracles.compare import assert_forward, assert_gradients
from small import build, counted
from torch import nn
from torch.nn.modules import module as of_all_modules
from torch.nn.utils import parametrize

ENCODINGS = [dict(type='TableRPE'), dict(type='LogCPB', hidden_dims=5)]
IMAGES = pixels(2, 3, 41, 52)
EXTENTS = [(41, 33), (25, 52)]
TOKENS = {0: 2 * 11 * 13, 1: 2 * 6 * 7}  # of both images, in the first stage and in the second


def parts_of(model: nn.Module) -> list[str]:
    """Every module that is called, by its path; lists of modules are not."""
    return [name for name, module in model.named_modules()
            if name and type(module).forward is not nn.Module.forward and not isinstance(module, nn.ModuleList)]


PARTS = parts_of(build(rpe=ENCODINGS))
MODES = ['train', 'eval', 'no_grad']


def calls_of(path: str) -> int:
    """How often a module is called: the two branches of a block share their drop path."""
    return 2 if path.endswith('.drop_path') else 1


def scaled(out):
    """What a module gave, half as large again; encodings and patch layers give tuples."""
    if isinstance(out, tuple):
        return tuple(scaled(part) if isinstance(part, torch.Tensor) else part for part in out)
    return out * 1.5


def replace(model: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition('.')
    setattr(model.get_submodule(parent), name, new)


def subclass(model: nn.Module, path: str) -> None:
    """A class of one's own in the module's place."""
    module = model.get_submodule(path)
    module.__class__ = type('Own', (type(module), ), dict(
        forward=lambda self, *arguments: scaled(super(type(self), self).forward(*arguments))))


class Hiding(nn.Module):
    """An adapter around a module, which shows nothing of it."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments):
        return scaled(self.inner(*arguments))


class Wrapper(Hiding):
    """One that shows that module's attributes."""

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules['inner'], name)


def wrap(model: nn.Module, path: str) -> None:
    replace(model, path, Wrapper(model.get_submodule(path)))


def hide(model: nn.Module, path: str) -> None:
    replace(model, path, Hiding(model.get_submodule(path)))


def patch(model: nn.Module, path: str) -> None:
    """A forward of the instance's own, as some libraries set it."""
    module = model.get_submodule(path)
    module.forward = lambda *arguments, old=module.forward: scaled(old(*arguments))


class Scaled(nn.Module):

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 1.5 * weight


def parametrise(model: nn.Module, path: str) -> None:
    module = model.get_submodule(path)
    for name in [name for name, _ in module.named_parameters(recurse=False)]:
        parametrize.register_parametrization(module, name, Scaled())


def hook(model: nn.Module, path: str) -> None:
    model.get_submodule(path).register_forward_hook(lambda module, arguments, out: scaled(out))


def hook_before(model: nn.Module, path: str) -> None:
    model.get_submodule(path).register_forward_pre_hook(
        lambda module, arguments: (arguments[0] * 1.5, *arguments[1:]))


CHANGES = [subclass, wrap, hide, patch, parametrise, hook, hook_before]


def asked(path: str) -> bool:
    """An encoding is asked what it gives, and a stage whether patch merging follows."""
    return path.endswith('.rpe') or path.split('.')[-2:-1] == ['encodings'] or path.count('.') == 1


# the second stage's blocks are made as the first one's
CASES = [pytest.param(path, change, marks=[pytest.mark.exhaustive] if path.startswith('stages.1.blocks.') else [])
         for path in PARTS for change in CHANGES if not (change is hide and asked(path))]


def run(model: nn.Module, mode: str, extents=EXTENTS):
    """Features, and the gradients of all parameters where there are any."""
    model.train(mode == 'train')
    model.zero_grad()
    with torch.set_grad_enabled(mode != 'no_grad'):
        outs = model(IMAGES, extents)
        if mode != 'no_grad':
            sum((out * torch.arange(out.shape[1])[:, None, None]).sin().sum() for out in outs).backward()
    gradients = {} if mode == 'no_grad' else {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return outs, gradients


@pytest.fixture(scope='module')
def unchanged():
    return {mode: run(build(rpe=ENCODINGS), mode)[0] for mode in MODES}


@pytest.mark.parametrize('path, change', CASES, ids=lambda given: getattr(given, '__name__', given))
def test_the_changed_module_is_what_counts(path, change, unchanged):
    results = {}
    for backend in ('auto', 'plain'):
        model = build(rpe=ENCODINGS, backend=backend)
        change(model, path)
        results[backend] = {mode: run(model, mode) for mode in MODES}
    own_parameters = any(True for _ in build(rpe=ENCODINGS).get_submodule(path).parameters(recurse=False))
    for mode in MODES:
        (outs, gradients), (expected, wanted) = results['auto'][mode], results['plain'][mode]
        for actual, other in zip(outs, expected):
            scale = max(1, other.abs().max().item())
            assert_forward(actual / scale, other / scale, 'a changed module')
        if gradients:
            assert_gradients(gradients, wanted, 'a changed module')
        if change is not parametrise or own_parameters:
            assert any(not torch.equal(a, b) for a, b in zip(expected, unchanged[mode])), 'the change does nothing'


def test_other_blocks_stay_fast():
    model = build()
    hook(model, 'stages.0.blocks.1.ffn')
    with counted() as counts, torch.no_grad():
        model(IMAGES)
    assert counts['cpu_inference'] == 3


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('path', PARTS)
def test_hooks_fire_once_with_all_tokens_in_the_order_of_the_map(path, mode):
    """What a forward hook sees is what the plain model gives there."""
    seen = {}
    for backend in ('auto', 'plain'):
        model, found = build(rpe=ENCODINGS, backend=backend), []
        handle = model.get_submodule(path).register_forward_hook(
            lambda module, arguments, out, found=found: found.append(out))
        run(model, mode, None)
        assert len(found) == calls_of(path)
        handle.remove()
        seen[backend] = [part for part in (found[0] if isinstance(found[0], tuple) else found)
                         if isinstance(part, torch.Tensor)]
    for actual, expected in zip(seen['auto'], seen['plain']):
        scale = max(1, expected.abs().max().item())
        assert_forward(actual / scale, expected / scale)
    part = path.split('.')
    if part[0] == 'stages' and '.rpe' not in path and 'downsample' not in path:
        first = seen['auto'][0]
        assert first.numel() // first.shape[-1] == TOKENS[int(part[1])], 'not all tokens'
        assert first.ndim == 3, 'no (B, L, C)'


@pytest.mark.parametrize('mode', ['train', 'eval'])
def test_backward_hooks_fire_once_and_change_gradients(mode):
    """On every module that gets a tensor whose gradient is asked for."""
    results, fired = {}, {}
    for backend in ('auto', 'plain'):
        model = build(rpe=ENCODINGS, backend=backend)
        fired[backend] = dict.fromkeys(PARTS, 0)

        def note(path, counts):
            def doubled(module, grad_input, grad_output):
                counts[path] += 1
                return tuple(None if grad is None else 2 * grad for grad in grad_input)

            return doubled

        for path in PARTS:
            model.get_submodule(path).register_full_backward_hook(note(path, fired[backend]))
        results[backend] = run(model, mode)
    assert fired['auto'] == fired['plain']
    assert all(count in (0, calls_of(path)) for path, count in fired['auto'].items())
    linear = [path for path in PARTS if isinstance(build(rpe=ENCODINGS).get_submodule(path), (nn.Linear, nn.LayerNorm))]
    assert all(fired['auto'][path] == 1 for path in linear)
    assert_gradients(results['auto'][1], results['plain'][1], 'backward hooks')


@pytest.mark.parametrize('register', [
    of_all_modules.register_module_forward_hook, of_all_modules.register_module_forward_pre_hook,
    of_all_modules.register_module_full_backward_hook], ids=lambda register: register.__name__)
def test_hooks_of_all_modules_see_all_modules(register):
    model, seen = build(), set()
    handle = register(lambda module, *_: seen.add(module) and None)
    try:
        run(model, 'train')
    finally:
        handle.remove()
    expected = {model.get_submodule(path) for path in parts_of(model) if 'drop' not in path}
    backward = register is of_all_modules.register_module_full_backward_hook
    expected = {module for module in expected if isinstance(module, nn.Linear)} if backward else expected
    assert expected <= seen


def test_functional_call_uses_all_that_it_is_given():
    model = build().eval()
    larger = {name: value * 1.1 for name, value in model.state_dict().items()}
    other = copy.deepcopy(model)
    other.load_state_dict(larger)
    with torch.no_grad():
        for actual, expected in zip(torch.func.functional_call(model, larger, IMAGES), other(IMAGES)):
            assert_forward(actual, expected)


def test_patched_class_is_called(monkeypatch):
    from swin_rpe_mm.models import FFN
    model, calls, forward = build(), [], FFN.forward
    monkeypatch.setattr(FFN, 'forward', lambda self, x: calls.append(x.shape) or forward(self, x))
    with torch.no_grad():
        model(IMAGES)
    assert len(calls) == 4
