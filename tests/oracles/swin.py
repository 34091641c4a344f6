"""The whole backbone, one image at a time, with dense attention and mmdet's parameter names."""
import torch
import torch.nn.functional as F

from oracles.attention import dense_attention


def layer_norm(params: dict, name: str, x: torch.Tensor) -> torch.Tensor:
    """Layer norm by parameter name; without such parameters the input itself."""
    if f'{name}.weight' not in params:
        return x
    return F.layer_norm(x, x.shape[-1:], params[f'{name}.weight'], params[f'{name}.bias'])


def linear(params: dict, name: str, x: torch.Tensor) -> torch.Tensor:
    """Linear layer by parameter name."""
    return F.linear(x, params[f'{name}.weight'], params.get(f'{name}.bias'))


def block_shift(size: tuple[int, int], window: tuple[int, int], shifted: bool, covered: bool) -> tuple[int, int]:
    """Shift of a block: half a window on every second block, on axes that one window covers only if ``covered``."""
    return tuple(w // 2 if shifted and (covered or w < length) else 0 for length, w in zip(size, window))


def multi_head(params: dict, name: str, x: torch.Tensor, heads: int, window, shift, qk_scale=None) -> torch.Tensor:
    """Windowed self-attention of a map ``(H, W, C)``, with the projection."""
    h, w, channels = x.shape
    q, k, v = linear(params, f'{name}.qkv', x).view(h * w, 3, heads, channels // heads).permute(1, 2, 0, 3)
    scale = qk_scale or (channels // heads)**-0.5
    out = dense_attention(q * scale, k, v, params[f'{name}.relative_position_bias_table'], (h, w), window, shift)
    return linear(params, f'{name}.proj', out.transpose(0, 1).reshape(h, w, channels))


def corner_pad(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Zeros at the bottom and right of a map ``(H, W, C)`` up to a multiple."""
    h, w = x.shape[:2]
    return F.pad(x, (0, 0, 0, -w % multiple, 0, -h % multiple))


def merge(params: dict, name: str, x: torch.Tensor) -> torch.Tensor:
    """Patch merging of a map ``(H, W, C)``: channel-major order of the four neighbours, as nn.Unfold gives it."""
    x = corner_pad(x, 2)
    four = torch.stack([x[0::2, 0::2], x[0::2, 1::2], x[1::2, 0::2], x[1::2, 1::2]], dim=-1).flatten(-2)
    return linear(params, f'{name}.reduction', layer_norm(params, f'{name}.norm', four))


def embed(params: dict, image: torch.Tensor, patch: int) -> torch.Tensor:
    """Patch embedding of an image ``(C, h, w)`` -> ``(H, W, C)``."""
    image = corner_pad(image.permute(1, 2, 0), patch).permute(2, 0, 1)
    x = F.conv2d(image[None], params['patch_embed.projection.weight'], params['patch_embed.projection.bias'],
                 stride=patch)
    return layer_norm(params, 'patch_embed.norm', x[0].permute(1, 2, 0))


def dense_swin(params: dict, image: torch.Tensor, depths, num_heads, windows, out_indices=(0, 1, 2, 3),
               shift_covered_axes: bool = True, qk_scale=None, patch: int = 4, keep=None,
               attention=multi_head) -> list[torch.Tensor]:
    """Features of one image that fills its tensor.

    Args:
        params: state dict in mmdet's layout.
        image: ``(C, h, w)``.
        windows: window ``(h, w)`` of each stage.
        keep: factor of the two branches of each block, ``{(stage, block): (attention, ffn)}``; 1 where absent.
        attention: called like :func:`multi_head`.

    Returns:
        ``(C_i, H_i, W_i)`` for each of ``out_indices``.
    """
    x = embed(params, image, patch)
    if 'absolute_pos_embed' in params:
        x = x + params['absolute_pos_embed'].view(x.shape)
    outs = []
    for i, (depth, heads, window) in enumerate(zip(depths, num_heads, windows)):
        for j in range(depth):
            name = f'stages.{i}.blocks.{j}'
            factors = (keep or {}).get((i, j), (1.0, 1.0))
            shift = block_shift(x.shape[:2], window, j % 2 == 1, shift_covered_axes)
            branch = attention(params, f'{name}.attn.w_msa', layer_norm(params, f'{name}.norm1', x), heads, window,
                               shift, qk_scale=qk_scale)
            x = x + factors[0] * branch
            hidden = F.gelu(linear(params, f'{name}.ffn.layers.0.0', layer_norm(params, f'{name}.norm2', x)))
            x = x + factors[1] * linear(params, f'{name}.ffn.layers.1', hidden)
        if i in out_indices:
            outs.append(layer_norm(params, f'norm{i}', x).permute(2, 0, 1))
        if i < max(out_indices):
            x = merge(params, f'stages.{i}.downsample', x)
    return outs
