"""Seeded random cases: sizes, extents, windows, weights, and small models."""
import os
import random
import re
from typing import Optional

import torch

SMALL = dict(embed_dims=8, depths=(2, 2, 2, 2), num_heads=(1, 2, 2, 4), drop_path_rate=0.0)


def case_count(default: int) -> int:
    """How many random cases to run: the environment variable ``SWIN_RPE_CASES``, else the default."""
    return int(os.environ.get('SWIN_RPE_CASES', default))


def dice(name: str, case: int) -> random.Random:
    """Random numbers of a named case, the same in every run."""
    return random.Random(f'{name} {case}')


def random_length(rng: random.Random, longest: int) -> int:
    """A length from 1 to ``longest``; short ones are as likely as long ones."""
    return max(1, min(longest, round(longest**rng.random()))) if rng.random() < 0.5 else rng.randint(1, longest)


def random_size(rng: random.Random, longest: int = 97, area: Optional[int] = None) -> tuple[int, int]:
    """A size with both lengths in 1..longest, and at most ``area`` in all."""
    while True:
        size = (random_length(rng, longest), random_length(rng, longest))
        if area is None or size[0] * size[1] <= area:
            return size


def random_extents(rng: random.Random, batch: int, size: tuple[int, int]) -> list[tuple[int, int]]:
    """Extents inside a batch of the given size; now and then one fills it, and one is a single pixel."""
    extents = []
    for _ in range(batch):
        pick = rng.random()
        if pick < 0.15:
            extents.append(size)
        elif pick < 0.25:
            extents.append((1, 1))
        else:
            extents.append((rng.randint(1, size[0]), rng.randint(1, size[1])))
    return extents


def random_window(rng: random.Random, largest: int = 7) -> tuple[int, int]:
    """A window, rectangular as often as not."""
    height = rng.randint(1, largest)
    return (height, height if rng.random() < 0.4 else rng.randint(1, largest))


def mm_name(name: str) -> str:
    """The name that mm has for what an attention's only encoding holds: Swin's table, SwinV2's network."""
    return re.sub(r'(\.attn\.w_msa)\.rpe(\.relative_position_bias_table$|\.cpb_mlp\.)', r'\1\2', name)


def in_mm_names(state: dict) -> dict:
    """A state dict as mm has it, without notes."""
    return {mm_name(name): value for name, value in state.items()}


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Trainable tensors by their names in mm."""
    return {mm_name(name): value for name, value in model.named_parameters() if value.requires_grad}


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gradients of all parameters by their names in mm."""
    return {name: value.grad for name, value in parameters(model).items()}


def randomise(model: torch.nn.Module, seed: int = 0, table_std: float = 1.0) -> torch.nn.Module:
    """Weights at which every part of the model matters: nothing is zero, nothing is one. Seeded by name order."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(parameters(model).items()):
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith('relative_position_bias_table') or name.endswith('absolute_pos_embed'):
                value = table_std * noise
            elif parameter.dim() > 1:
                value = noise * parameter[0].numel()**-0.5
            else:
                value = 0.2 * noise + (1.0 if 'norm' in name and name.endswith('weight') else 0.0)
            parameter.copy_(value)
    return model


def loss_of(outs, seed: int = 0) -> torch.Tensor:
    """A scalar that depends on every output element with its own weight."""
    generator = torch.Generator().manual_seed(seed)
    return sum((out * torch.randn(out.shape, generator=generator, dtype=out.dtype)).sum() for out in outs)


def pixels(*shape: int, seed: int = 0) -> torch.Tensor:
    """Seeded normal noise."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def token_size(extent: tuple[int, int], stage: int, patch: int = 4) -> tuple[int, int]:
    """Extent in tokens at a stage: rounded up once by the patch and once per merge."""
    size = tuple(-(-length // patch) for length in extent)
    for _ in range(stage):
        size = tuple(-(-length // 2) for length in size)
    return size
