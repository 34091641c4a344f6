"""The two processes that the tests of sharding share."""
from collections.abc import Callable
from itertools import count

import pytest
import torch.distributed as dist
from ranks import Ranks


@pytest.fixture(scope='session')
def pool(tmp_path_factory):
    """Gives the two processes, new ones after a failure has ended them."""
    numbers, started = count(), []

    def get() -> Ranks:
        if not started or not started[-1].alive:
            started.append(Ranks(str(tmp_path_factory.mktemp('meeting') / str(next(numbers)))))
        return started[-1]

    yield get
    for ranks in started:
        ranks.end()


@pytest.fixture
def together(pool) -> Callable[..., list]:
    """``together(function, *args)`` calls it in two processes that talk through gloo; returns both results."""
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip('needs torch.distributed with gloo, which this PyTorch was built without')
    return lambda function, *args: pool().run(function, *args)
