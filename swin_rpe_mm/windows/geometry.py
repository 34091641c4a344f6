"""Where the keys of a window lie relative to its queries, in any number of axes."""
from typing import NamedTuple, Optional, Tuple


class WindowGeometry(NamedTuple):
    """A window of queries and the window of keys that they see.

    Attributes:
        query_size (tuple[int, ...]): Tokens per axis: ``(7, 7)`` for a window of a map, ``(64,)`` for a block of text.
        key_size (tuple[int, ...]): The same for the keys.
        origin (tuple[int, ...]): Coordinate of the first key relative to the first query: ``(-3, -3)`` with a halo
            of 3.
        key_stride (tuple[int, ...], optional): Tokens from one key to the next along each axis; None means 1.
    """
    query_size: Tuple[int, ...]
    key_size: Tuple[int, ...]
    origin: Tuple[int, ...]
    key_stride: Optional[Tuple[int, ...]] = None

    @classmethod
    def square(cls, window: Tuple[int, ...]) -> 'WindowGeometry':
        """Queries and keys in the same window."""
        return cls(tuple(window), tuple(window), (0, ) * len(window))

    @classmethod
    def centred(cls, window: Tuple[int, ...], key_size: Tuple[int, ...]) -> 'WindowGeometry':
        """Keys around the same centre as the queries: a halo on all sides where there are more of them."""
        return cls(tuple(window), tuple(key_size), tuple(-((wk - wq) // 2) for wq, wk in zip(window, key_size)))

    @classmethod
    def pooled(cls, window: Tuple[int, ...], reach: int) -> 'WindowGeometry':
        """One key at the centre of each window, up to ``reach`` windows away."""
        return cls(tuple(window), (2 * reach + 1, ) * len(window), tuple(w // 2 - reach * w for w in window),
                   tuple(window))
