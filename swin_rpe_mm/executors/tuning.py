"""Numbers that decide how much is done at a time: the results do not depend on them."""
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Iterator


@dataclass(frozen=True)
class Tuning:
    """For a CPU's cache.

    Attributes:
        tokens_at_once (int): Tokens of the windows taken at a time: with many more, what is made of them leaves it.
        values_at_once (int): And of these, channels times tokens; twice as many in training.
        rows_at_once (int): Rows that a single layer takes at a time.
        keys_at_once (int): Where windows share keys: keys gathered at a time, about as many as a large map has tokens.
        keys_in_cache (int): The same in inference.
        logits_at_once (int): And logits of those.
        few_parts (int): Weights are laid out for rows of one number only where more parts than this use them.
        few_keys (int): PyTorch's fused attention is the faster one with this many keys or more.
        window_step (int): Numbers of windows are multiples of this, so that few numbers of tokens occur.
    """
    tokens_at_once: int = 4096
    values_at_once: int = 2**19
    rows_at_once: int = 2048
    keys_at_once: int = 2**16
    keys_in_cache: int = 2**13
    logits_at_once: int = 2**24
    few_parts: int = 2
    few_keys: int = 160
    window_step: int = 8


_current = [Tuning()]


def current() -> Tuning:
    """The numbers in force."""
    return _current[-1]


@contextmanager
def tuning(**changes: int) -> Iterator[Tuning]:
    """Other numbers for a while, such as ``tuning(tokens_at_once=300)``."""
    _current.append(replace(current(), **changes))
    try:
        yield current()
    finally:
        _current.pop()
