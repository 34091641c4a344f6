"""Parts of packed layouts."""
import pytest
import torch
from oracles.cases import dice, random_extents, random_size, random_window
from packing import packed

from swin_rpe_mm.executors.cpu.parts import cut_into_parts


@pytest.mark.parametrize('case', range(30))
def test_parts_hold_every_token_once(case):
    """Parts are the layout's own windows: the same tokens see each other, in windows of few different numbers."""
    rng = dice('parts', case)
    size, window = random_size(rng, 97, 3000), random_window(rng)
    extents = random_extents(rng, rng.randint(1, 3), size)
    whole = packed(size, window, tuple(w // 2 for w in window), extents,
                   mask_padding=rng.random() < 0.7)
    at_once = rng.randint(1, 40)
    pieces, tokens = cut_into_parts(whole, at_once)
    held = torch.cat([part.tokens for part in pieces])
    assert torch.equal(held.sort().values, torch.arange(len(whole.inside)))
    first = 0
    for part in pieces:
        own = part.layout
        last = first + len(own.slots)
        assert part.windows == slice(first, last)
        assert len(own.slots) <= at_once
        assert torch.equal(part.tokens[own.slots][own.valid], whole.packed_slots[first:last][own.valid])
        assert torch.equal(own.region, whole.region[first:last])
        assert torch.equal(own.image_of_token, whole.image_of_token[part.tokens])
        seen = own.region[:, :, None] == own.region[:, None]
        assert seen[:own.plain].all() and torch.equal(own.visible, seen[own.plain:])
        first = last
    assert first == len(whole.slots)
    assert tokens == 0 or any(len(part.tokens) == tokens for part in pieces)


def test_few_numbers_of_rows_whatever_the_size():
    """The rows that oneDNN makes kernels for: a handful over two hundred sizes of maps."""
    maps = [packed((20 + side, 150 - side // 2), (7, 7)) for side in range(200)]
    assert len({cut_into_parts(windows, 83).tokens for windows in maps}) <= 11
