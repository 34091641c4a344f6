"""Counting the multiply-adds of a model, part by part."""
from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode, flop_registry


class Count(NamedTuple):
    """What :func:`count_multiply_adds` found.

    Attributes:
        multiply_adds (Counter): By a module's name in the model, those of what it contains included; ``''`` is the
            whole model.
        uncounted (list[str]): Types of the layers that ran with weights of their own and gave no operation that can be
            counted.
    """
    multiply_adds: Counter
    uncounted: list[str]


def count_multiply_adds(model: nn.Module, images: Tensor, run: Callable[[Tensor], Any] | None = None) -> Count:
    """Count the multiply-adds of convolutions and matrix products, attention's two among them, in a forward pass.

    Norms, activations, biases, softmax and resizing are not products and count nothing. Window padding counts where it
    is computed: SwinRPE projects none, but windows attend with all their slots and keys; mm's ``SwinTransformer``
    projects padding too.

    The pass is one that could be followed by a backward pass, so that no model takes kernels that hide products.
    PyTorch's ``FlopCounterMode`` sees each product, which then is not computed but gives zeros; nothing is saved for a
    backward pass. So a count takes seconds, and the memory of inference.

    Args:
        model (nn.Module): The model, in ``eval`` mode and on the CPU.
        images (Tensor): Its input. Gradients are turned on for it.
        run (Callable, optional): Called with ``images`` instead of the model.

    Returns:
        Count: Multiply-adds by part.
    """
    images.requires_grad_()
    counter = FlopCounterMode(display=False, custom_mapping=_IN_PLACE)
    own, ran, running, counted = Counter(), set(), [''], 0

    def settle() -> None:
        nonlocal counted
        own[running[-1]] += counter.get_total_flops() - counted
        counted = counter.get_total_flops()

    def credited(name: str, forward: Callable) -> Callable:
        @functools.wraps(forward)
        def run_forward(*args, **kwargs):
            settle()
            running.append(name)
            ran.add(name)
            try:
                return forward(*args, **kwargs)
            finally:
                settle()
                running.pop()

        return run_forward

    # forward and not hooks of modules, which mm's heads pass by when they call forward themselves
    modules = {name: module for name, module in model.named_modules() if name}
    for name, module in modules.items():
        module.forward = credited(name, module.forward)
    try:
        with torch.enable_grad(), saved_tensors_hooks(_nothing, _nothing), sdpa_kernel(SDPBackend.MATH):
            with _ZeroProducts(), counter:
                (run or model)(images)
                settle()
    finally:
        for module in modules.values():
            del module.forward

    multiply_adds = Counter()
    for name, flops in own.items():
        while True:
            multiply_adds[name] += flops // 2
            if not name:
                break
            name = name.rpartition('.')[0]
    silent = {type(modules[name]).__name__ for name in ran if _is_layer(modules[name]) and not own[name]}
    return Count(multiply_adds, sorted(silent))


def _nothing(*_) -> None:
    pass


def _is_layer(module: nn.Module) -> bool:
    weight = getattr(module, 'weight', None)
    return isinstance(weight, Tensor) and weight.ndim > 1 and not isinstance(module, nn.Embedding)


def _added_product(_, a_shape: torch.Size, b_shape: torch.Size, *__, **___) -> int:
    return 2 * math.prod(a_shape) * b_shape[-1]


# mmcv's deformable convolutions add products in place, which FlopCounterMode does not know
_IN_PLACE = {torch.ops.aten.addmm_: _added_product, torch.ops.aten.baddbmm_: _added_product}


class _ZeroProducts(TorchDispatchMode):
    """Gives zeros of the right shape instead of what ``FlopCounterMode`` counts, which is nearly all of a model's work.

    Everything else is computed, so that code that looks at values goes on.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry or func._schema.is_mutable:
            return func(*args, **kwargs)
        shapes = func(*tree_map_only(Tensor, _shape, args), **tree_map_only(Tensor, _shape, kwargs))
        return tree_map_only(Tensor, lambda shape: torch.zeros_like(shape, device='cpu'), shapes)


def _shape(x: Tensor) -> Tensor:
    return x.to('meta')
