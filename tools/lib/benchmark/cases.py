"""What is computed on: the sizes of a batch of images, and how its numbers are kept."""
from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from swin_rpe_mm.errors import InputError

PATCH = 4
DIVISOR = 32  # that mm pads a batch to
DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}
Size = tuple[int, int]


@dataclass(frozen=True)
class Numbers:
    """Where and in which type is computed.

    Attributes:
        device (str): ``cpu`` or ``cuda``.
        dtype (str): Of weights and images; with ``autocast``, what PyTorch casts float32 to as it sees fit.
        autocast (bool): Mixed precision.
        compiled (bool): Whether every model goes through ``torch.compile``.
        threads (int): Of the CPU.
    """
    device: str
    dtype: str
    autocast: bool
    compiled: bool
    threads: int

    @property
    def stored(self) -> torch.dtype:
        """Of weights and images."""
        return torch.float32 if self.autocast else DTYPES[self.dtype]

    @property
    def computed(self) -> torch.dtype:
        """Of the matrix products."""
        return DTYPES[self.dtype]

    def context(self):
        """Autocast, or nothing."""
        return torch.autocast(self.device, self.computed) if self.autocast else nullcontext()

    def synchronize(self) -> None:
        if self.device == 'cuda':
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Case:
    """A batch.

    Attributes:
        extents (tuple): Height and width of each image in pixels.
        size (tuple[int, int]): Of the batch, which images are padded to on the right and at the bottom.
    """
    extents: tuple[Size, ...]
    size: Size

    @classmethod
    def of_size(cls, size: Size, batch: int = 1) -> Case:
        return cls((size, ) * batch, size)

    @classmethod
    def of_images(cls, extents: Sequence[Size]) -> Case:
        """Images padded together, to sides that are multiples of 32."""
        return cls(tuple(extents), tuple(-(-max(sides) // DIVISOR) * DIVISOR for sides in zip(*extents)))

    @property
    def is_padded(self) -> bool:
        return any(extent != self.size for extent in self.extents)

    def __str__(self) -> str:
        if self.is_padded:
            return f'{len(self.extents)} in {name_of(self.size)}: {" ".join(map(name_of, self.extents))}'
        return f'{len(self.extents)} x {name_of(self.size)}'

    def images(self, numbers: Numbers) -> Tensor:
        """Noise with zeros as padding, without extents."""
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(len(self.extents), 3, *self.size, generator=generator)
        for image, (h, w) in zip(images, self.extents):
            image[:, h:] = image[:, :, w:] = 0
        return images.to(numbers.device, numbers.stored)

    def tokens(self, stage: int) -> int:
        """Tokens of a stage that hold a part of an image."""
        step = PATCH * 2**stage
        return sum(-(-h // step) * -(-w // step) for h, w in self.extents)


def name_of(size: Size) -> str:
    return f'{size[0]}x{size[1]}'


def read_sizes(option: str, texts: Sequence[str], multiple: int = 1) -> list[Size]:
    """Sizes that are written as ``800x1344``.

    Raises:
        InputError: If a text is none, or a side is less than 32 pixels or no multiple of ``multiple``.
    """
    sizes = []
    for text in texts:
        sides = re.fullmatch(r'(\d+)x(\d+)', text)
        size = tuple(map(int, sides.groups())) if sides else (0, 0)
        if min(size) < DIVISOR or any(side % multiple for side in size):
            kind = f' in multiples of {multiple}' if multiple > 1 else ''
            raise InputError(f'{option} must be heights and widths such as 800x1344, from {DIVISOR} pixels on{kind}; '
                             f'got {text}')
        sizes.append(size)
    return sizes
