"""Attention in blocks of a long sequence, with and without keys from the neighbouring blocks, learned in a minute.

The task: give the symbol that stood half a block earlier. Symbols are random, so only the relative position tells which
one is meant. For half of the tokens it stands in their own block, for the others in the block before. Two models that
differ in nothing but ``neighbours`` are trained from random weights, on sequences of unequal lengths, and are evaluated
at the length of training and at four times that.
"""
from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.models import BlockLocalAttention
from tools.lib.cli import run_tool

SYMBOLS = 8
CHANNELS = 64
HEADS = 4
BATCH = 16
IGNORE = -100
NAMES = {0: 'block-local', 1: 'with neighbours'}


class Layer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, block_size: int, neighbours: int):
        super().__init__()
        # so many buckets that every offset inside of a block has one of its own: the task is about one exact offset
        rpe = dict(type='BlockRPE', num_buckets=4 * block_size, max_distance=block_size)
        self.norm1 = nn.LayerNorm(CHANNELS)
        self.attention = BlockLocalAttention(CHANNELS, HEADS, block_size, neighbours=neighbours, rpe=rpe)
        self.norm2 = nn.LayerNorm(CHANNELS)
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 2 * CHANNELS), nn.GELU(), nn.Linear(2 * CHANNELS, CHANNELS))

    def forward(self, x: Tensor, lengths: list[int]) -> Tensor:
        x = x + self.attention(self.norm1(x), lengths)
        return x + self.mlp(self.norm2(x))


class Labeller(nn.Module):
    """A label for every token; no position is given but the relative ones of attention."""

    def __init__(self, block_size: int, neighbours: int):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, CHANNELS)
        self.layers = nn.ModuleList(Layer(block_size, neighbours) for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, SYMBOLS))

    def forward(self, symbols: Tensor, lengths: list[int]) -> Tensor:
        x = self.embedding(symbols)
        for layer in self.layers:
            x = layer(x, lengths)
        return self.head(x)


def draw_batch(size: int, length: int, delay: int, random: torch.Generator) -> tuple[Tensor, Tensor, list[int]]:
    """Symbols and labels ``(size, length)``, and lengths between half of ``length`` and all of it."""
    symbols = torch.randint(SYMBOLS, (size, length), generator=random)
    lengths = torch.randint(length // 2, length + 1, (size, ), generator=random)
    lengths[0] = length
    labels = symbols.roll(delay, 1)
    labels[:, :delay] = IGNORE
    labels[torch.arange(length) >= lengths[:, None]] = IGNORE
    return symbols, labels, lengths.tolist()


def train(model: Labeller, args: Namespace) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    # a high rate, as a bias has to grow from 0.02 to several units
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, args.iters)
    random = torch.Generator().manual_seed(args.seed)
    for step in range(1, args.iters + 1):
        symbols, labels, lengths = draw_batch(BATCH, args.length, args.block_size // 2, random)
        loss = F.cross_entropy(model(symbols, lengths).flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == args.iters:
            print(f'  {step}/{args.iters}, loss {loss.item():.3f}', flush=True)


@torch.no_grad()
def accuracy(model: Labeller, length: int, args: Namespace) -> tuple[float, float]:
    """The share of right labels where the symbol stands in the own block, and where it stands in the one before."""
    delay = args.block_size // 2
    symbols, labels, lengths = draw_batch(4 * BATCH, length, delay, torch.Generator().manual_seed(args.seed + 1))
    right = model(symbols, lengths).argmax(-1) == labels
    own = torch.arange(length) % args.block_size >= delay
    return tuple(right[(labels != IGNORE) & where].float().mean().item() for where in (own, ~own))


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description='Attention in blocks, with and without keys from the neighbouring blocks.')
    parser.add_argument('--iters', type=int, default=200, help='training iterations of each model (%(default)s)')
    parser.add_argument('--block-size', type=int, default=16, help='tokens in a block (%(default)s)')
    parser.add_argument('--length', type=int, default=128, help='tokens of the longest training sequence (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='for weights and data (%(default)s)')
    args = parser.parse_args(argv)
    for option, least in (('iters', 1), ('block_size', 2), ('length', 2 * args.block_size)):
        if getattr(args, option) < least:
            raise InputError(f'--{option.replace("_", "-")} must be at least {least}, got {getattr(args, option)}')
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    started, results = time.time(), {}
    for neighbours, name in NAMES.items():
        print(f'training {name} (neighbours={neighbours})', flush=True)
        torch.manual_seed(args.seed)
        model = Labeller(args.block_size, neighbours)
        train(model, args)
        results[name] = {length: accuracy(model, length, args) for length in (args.length, 4 * args.length)}

    table = Table(title=f'Accuracy of giving the symbol of {args.block_size // 2} tokens earlier')
    for column in ('length', 'the symbol stands in', *NAMES.values(), 'chance'):
        table.add_column(column, justify='left' if ' stands ' in column else 'right')
    for length in (args.length, 4 * args.length):
        for index, place in enumerate(('the own block', 'the block before')):
            found = [f'{results[name][length][index]:.3f}' for name in NAMES.values()]
            table.add_row(str(length), place, *found, f'{1 / SYMBOLS:.3f}')
    Console(width=100).print(table)
    alone, joined = (results[name][4 * args.length][1] for name in NAMES.values())
    print(f'A block alone does not hold the symbols of the one before and has to guess them: {alone:.1%} are right at '
          f'4 times the training length, chance is {1 / SYMBOLS:.1%}. With keys from its neighbours, {joined:.1%}.\n'
          f'{time.time() - started:.0f} s')


if __name__ == '__main__':
    run_tool(main)
