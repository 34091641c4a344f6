"""What no Swin of an architecture can be faster than: its matrix products alone, and the memory that has to be moved.

The products are those of the patch embedding and of every linear layer (qkv, projection, MLP, patch merging), on the
tokens that hold a part of an image: neither window padding nor, but for the patch embedding, batch padding counts. The
small ones inside attention are left out.

The memory is the ideal traffic of the blocks, in which everything between two products is fused with them. Per block
these are 22 values for every token and channel: 4 for the first norm, the windows and qkv (1 read, 3 written), 4 for
attention (3 read, 1 written), 3 for the projection and its shortcut, 5 for the second norm and the first half of the
MLP (1 read, 4 written), and 6 for its other half and shortcut. Patch embedding, patch merging and output norms come on
top, about a tenth of it.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tools.lib.benchmark.cases import PATCH, Case, Numbers
from tools.lib.benchmark.contestants import Architecture

PRODUCTS, READY, FLOOR = 'matrix products alone', 'the same into ready outputs', 'ideal traffic at copy speed'
VALUES_PER_BLOCK = 22
COPIED = {'cpu': 2**27, 'cuda': 2**30}  # bytes; well beyond any cache


def linear_shapes(architecture: Architecture, case: Case) -> list[tuple[int, int, int, bool]]:
    """Tokens, channels in and out, and whether there is a bias, of every linear layer."""
    shapes = []
    for stage, depth in enumerate(architecture.depths):
        tokens, c = case.tokens(stage), architecture.embed_dims * 2**stage
        hidden = int(architecture.mlp_ratio * c)
        shapes += [(tokens, c, 3 * c, True), (tokens, c, c, True), (tokens, c, hidden, True),
                   (tokens, hidden, c, True)] * depth
        if stage + 1 < len(architecture.depths):
            shapes.append((case.tokens(stage + 1), 4 * c, 2 * c, False))
    return shapes


class Products:
    """The products of one forward pass, with weights of their own each; inputs of the same shape are shared."""

    def __init__(self, architecture: Architecture, case: Case, numbers: Numbers):
        place = dict(device=numbers.device, dtype=numbers.computed)
        self.images = case.images(numbers).to(numbers.computed)
        self.kernel = torch.randn(architecture.embed_dims, 3, PATCH, PATCH, **place)
        inputs, ready = {}, {}
        self.layers = []
        for tokens, before, after, has_bias in linear_shapes(architecture, case):
            tensor = inputs.setdefault((tokens, before), torch.randn(tokens, before, **place))
            out = ready.setdefault((tokens, after), torch.empty(tokens, after, **place))
            bias = torch.randn(after, **place) if has_bias else None
            self.layers.append((tensor, torch.randn(after, before, **place), bias, out))

    @torch.no_grad()
    def alone(self) -> None:
        """Each into memory of its own, as layers do."""
        F.conv2d(self.images, self.kernel, stride=PATCH)
        for tensor, weight, bias, _ in self.layers:
            F.linear(tensor, weight, bias)

    @torch.no_grad()
    def into_ready_outputs(self) -> None:
        """Without new memory, whose pages the system must first provide on a CPU."""
        F.conv2d(self.images, self.kernel, stride=PATCH)
        for tensor, weight, bias, out in self.layers:
            if bias is None:
                torch.mm(tensor, weight.t(), out=out)
            else:
                torch.addmm(bias, tensor, weight.t(), out=out)


def ideal_traffic(architecture: Architecture, case: Case, numbers: Numbers) -> int:
    """Bytes that the blocks of a forward pass read and write at least."""
    values = sum(VALUES_PER_BLOCK * depth * case.tokens(stage) * architecture.embed_dims * 2**stage
                 for stage, depth in enumerate(architecture.depths))
    return values * numbers.computed.itemsize


class Copy:
    """A copy from memory to memory, whose time tells the bandwidth."""

    def __init__(self, numbers: Numbers):
        self.source = torch.ones(COPIED[numbers.device], dtype=torch.uint8, device=numbers.device)
        self.target = torch.ones_like(self.source)
        self.traffic = 2 * self.source.numel()  # read and written

    def __call__(self) -> None:
        self.target.copy_(self.source)


def yardsticks(architecture: Architecture, case: Case, numbers: Numbers,
               with_floor: bool) -> dict[str, tuple[Callable[[], None], float]]:
    """What takes part in the rounds beside the contestants: a call, and the factor that its time is multiplied with."""
    products = Products(architecture, case, numbers)
    found = {PRODUCTS: (products.alone, 1.), READY: (products.into_ready_outputs, 1.)}
    if with_floor:
        copy = Copy(numbers)
        found[FLOOR] = (copy, ideal_traffic(architecture, case, numbers) / copy.traffic)
    return found
