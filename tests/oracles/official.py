"""The official Swin layout: random checkpoints in it, and its forward pass by its own names and orders."""
import torch
import torch.nn.functional as F

from oracles.attention import coordinates, dense_attention
from oracles.swin import block_shift, layer_norm, linear


def offset_index(window: tuple[int, int]) -> torch.Tensor:
    """The ``relative_position_index`` buffer: the table's row for every pair of slots, ``(wh * ww, wh * ww)``."""
    rows, columns = coordinates(window)
    dh, dw = rows[:, None] - rows[None], columns[:, None] - columns[None]
    return (dh + window[0] - 1) * (2 * window[1] - 1) + dw + window[1] - 1


def official_state(embed_dims: int, depths, num_heads, window: int, map_side: int, seed: int = 0) -> dict:
    """A random classification checkpoint in the layout of the official releases, with its index and mask buffers."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, std=1.0):
        return std * torch.randn(*shape, generator=generator)

    def affine(state, name, dims):
        state[f'{name}.weight'], state[f'{name}.bias'] = 1 + normal(dims, std=0.2), normal(dims, std=0.2)

    def dense(state, name, dims_in, dims_out, bias=True):
        state[f'{name}.weight'] = normal(dims_out, dims_in, std=dims_in**-0.5)
        if bias:
            state[f'{name}.bias'] = normal(dims_out, std=0.2)

    state = {'patch_embed.proj.weight': normal(embed_dims, 3, 4, 4, std=48**-0.5),
             'patch_embed.proj.bias': normal(embed_dims, std=0.2)}
    affine(state, 'patch_embed.norm', embed_dims)
    for i, (depth, heads) in enumerate(zip(depths, num_heads)):
        dims, side = embed_dims * 2**i, map_side // 2**i
        for j in range(depth):
            name = f'layers.{i}.blocks.{j}'
            if j % 2:
                state[f'{name}.attn_mask'] = torch.zeros((side // window)**2, window**2, window**2)
            affine(state, f'{name}.norm1', dims)
            state[f'{name}.attn.relative_position_bias_table'] = normal((2 * window - 1)**2, heads)
            state[f'{name}.attn.relative_position_index'] = offset_index((window, window))
            dense(state, f'{name}.attn.qkv', dims, 3 * dims)
            dense(state, f'{name}.attn.proj', dims, dims)
            affine(state, f'{name}.norm2', dims)
            dense(state, f'{name}.mlp.fc1', dims, 4 * dims)
            dense(state, f'{name}.mlp.fc2', 4 * dims, dims)
        if i < len(depths) - 1:
            dense(state, f'layers.{i}.downsample.reduction', 4 * dims, 2 * dims, bias=False)
            affine(state, f'layers.{i}.downsample.norm', 4 * dims)
    affine(state, 'norm', dims)
    dense(state, 'head', dims, 10)
    return state


def official_features(state: dict, image: torch.Tensor, depths, num_heads, window: int) -> list[torch.Tensor]:
    """Maps ``(H, W, C)`` after each stage, before any output norm, of an image whose maps are all even."""
    x = F.conv2d(image[None], state['patch_embed.proj.weight'], state['patch_embed.proj.bias'], stride=4)
    x = layer_norm(state, 'patch_embed.norm', x[0].permute(1, 2, 0))
    maps = []
    for i, (depth, heads) in enumerate(zip(depths, num_heads)):
        h, w, dims = x.shape
        for j in range(depth):
            name = f'layers.{i}.blocks.{j}'
            qkv = linear(state, f'{name}.attn.qkv', layer_norm(state, f'{name}.norm1', x))
            q, k, v = qkv.view(h * w, 3, heads, dims // heads).permute(1, 2, 0, 3)
            shift = block_shift((h, w), (window, window), j % 2 == 1, True)
            out = dense_attention(q * (dims // heads)**-0.5, k, v, state[f'{name}.attn.relative_position_bias_table'],
                                  (h, w), (window, window), shift)
            x = x + linear(state, f'{name}.attn.proj', out.transpose(0, 1).reshape(h, w, dims))
            hidden = F.gelu(linear(state, f'{name}.mlp.fc1', layer_norm(state, f'{name}.norm2', x)))
            x = x + linear(state, f'{name}.mlp.fc2', hidden)
        maps.append(x)
        if i < len(depths) - 1:
            four = torch.cat([x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2]], dim=-1)
            four = layer_norm(state, f'layers.{i}.downsample.norm', four)
            x = linear(state, f'layers.{i}.downsample.reduction', four)
    return maps
