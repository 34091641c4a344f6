"""Dense attention over all tokens of one image, allowed where two tokens fall in the same window by coordinates."""
import torch


def first_of_cell(coordinates: torch.Tensor, window: int, shift: int) -> torch.Tensor:
    """First coordinate of the grid cell that holds each coordinate: the grid is cut at ``shift + k * window``."""
    return torch.div(coordinates - shift, window, rounding_mode='floor') * window + shift


def coordinates(size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of every token of a map, each ``(H*W,)``."""
    rows, columns = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing='ij')
    return rows.flatten(), columns.flatten()


def visible(size: tuple[int, int], window: tuple[int, int], shift: tuple[int, int],
            halo: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """Which query (row) sees which key (column), ``(H*W, H*W)`` bool."""
    result = torch.ones(size[0] * size[1], size[0] * size[1], dtype=torch.bool)
    for place, w, s, h in zip(coordinates(size), window, shift, halo):
        first = first_of_cell(place, w, s)[:, None]
        result &= (place[None] >= first - h) & (place[None] < first + w + h)
    return result


def offset_bias(table: torch.Tensor, size: tuple[int, int], window: tuple[int, int], seen: torch.Tensor,
                halo: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """Bias of every pair by its offset, ``(heads, H*W, H*W)``; pairs that do not see each other get any entry.

    Args:
        table: ``((2(wh + hh) - 1)(2(ww + hw) - 1), heads)``.
    """
    rows, columns = coordinates(size)
    dh, dw = rows[:, None] - rows[None], columns[:, None] - columns[None]
    reach = (window[0] + halo[0] - 1, window[1] + halo[1] - 1)
    index = (dh + reach[0]) * (2 * reach[1] + 1) + dw + reach[1]
    return table[torch.where(seen, index, 0)].permute(2, 0, 1)


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, size: tuple[int, int],
                    window: tuple[int, int], shift: tuple[int, int], halo: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """Attention of one image.

    Args:
        q, k, v: ``(heads, H*W, d)``; q is scaled already.
        table: relative position bias table, ``(offsets, heads)``.

    Returns:
        ``(heads, H*W, d)``.
    """
    seen = visible(size, window, shift, halo)
    logits = q @ k.transpose(-2, -1) + offset_bias(table, size, window, seen, halo)
    return logits.masked_fill(~seen, float('-inf')).softmax(-1) @ v
