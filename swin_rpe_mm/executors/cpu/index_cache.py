"""Keeping index tensors from one call to the next."""
from functools import cached_property, lru_cache
from typing import Callable

import torch


def index_cache(maxsize: int) -> Callable:
    """``lru_cache`` for functions that make index tensors.

    What is made under ``torch.inference_mode()`` cannot take part in training afterwards, so such a function runs
    outside of it, whoever happens to call it first.
    """

    def decorator(function: Callable) -> Callable:
        return lru_cache(maxsize)(torch.inference_mode(False)(function))

    return decorator


def index_property(method: Callable) -> cached_property:
    """``cached_property`` for the same."""
    return cached_property(torch.inference_mode(False)(method))
