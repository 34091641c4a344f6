"""SwinV2: the whole backbone with dense attention over one image, and the parameter names of other projects."""
import math
from typing import Optional

import torch
import torch.nn.functional as F

from oracles.attention import coordinates, visible
from oracles.cases import parameters, randomise
from oracles.swin import block_shift, corner_pad, embed, layer_norm, linear


def randomise_v2(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Weights at which every part matters; logits are scaled by about 10, as in training."""
    randomise(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in sorted(parameters(model).items()):
            if name.endswith('logit_scale'):
                value.copy_(math.log(10) + 0.4 * torch.randn(value.shape, generator=generator))
    return model


def log_cpb(params: dict, name: str, offsets: torch.Tensor, pretrained: tuple[int, int]) -> torch.Tensor:
    """Bias of offsets ``(pairs, 2)`` for every head, ``(pairs, heads)``; SwinV2, arXiv 2111.09883, equation 4, as the
    official code scales it."""
    inputs = []
    for axis, side in enumerate(pretrained):
        x = 8 * offsets[:, axis].to(params[f'{name}.0.weight']) / max(side - 1, 1)
        inputs.append(torch.sign(x) * torch.log2(1 + x.abs()) / math.log2(8))
    hidden = F.relu(linear(params, f'{name}.0', torch.stack(inputs, dim=-1)))
    return 16 * torch.sigmoid(F.linear(hidden, params[f'{name}.2.weight']))


def cosine_attention(params: dict, name: str, x: torch.Tensor, heads: int, window, shift, pretrained) -> torch.Tensor:
    """Attention of a map ``(H, W, C)``, with the projection; pairs that do not see each other have no logit at all."""
    h, w, channels = x.shape
    no_bias = x.new_zeros(channels)
    bias = torch.cat([params.get(f'{name}.q_bias', no_bias), no_bias, params.get(f'{name}.v_bias', no_bias)])
    qkv = F.linear(x, params[f'{name}.qkv.weight'], bias)
    q, k, v = qkv.view(h * w, 3, heads, channels // heads).permute(1, 2, 0, 3)
    q, k = (t / t.norm(dim=-1, keepdim=True).clamp(min=1e-12) for t in (q, k))
    scale = params[f'{name}.logit_scale'].clamp(max=math.log(100)).exp()

    seen = visible((h, w), window, shift)
    rows, columns = coordinates((h, w))
    offsets = torch.stack([rows[:, None] - rows[None], columns[:, None] - columns[None]], dim=-1)
    logits = (q @ k.transpose(-2, -1) * scale)[:, seen] + log_cpb(params, f'{name}.cpb_mlp', offsets[seen],
                                                                  pretrained).T
    weights = torch.full((heads, *seen.shape), float('-inf'), dtype=logits.dtype).masked_scatter(seen, logits)
    out = weights.softmax(-1).to(v.dtype) @ v
    return linear(params, f'{name}.proj', out.transpose(0, 1).reshape(h, w, channels))


def merge_v2(params: dict, name: str, x: torch.Tensor) -> torch.Tensor:
    """Patch merging of a map ``(H, W, C)`` with the norm after the projection."""
    x = corner_pad(x, 2)
    four = torch.stack([x[0::2, 0::2], x[0::2, 1::2], x[1::2, 0::2], x[1::2, 1::2]], dim=-1).flatten(-2)
    return layer_norm(params, f'{name}.norm', linear(params, f'{name}.reduction', four))


def dense_swin_v2(params: dict, image: torch.Tensor, depths, num_heads, windows, pretrained=None,
                  shift_covered_axes: bool = False) -> list[torch.Tensor]:
    """Features of one image ``(C, h, w)`` that fills its tensor: ``(C_i, H_i, W_i)`` after each stage's norm.

    Args:
        params: state dict of the package.
        windows: window ``(h, w)`` of each stage.
        pretrained: window of pre-training of each stage; None for the windows themselves.
    """
    x = embed(params, image, 4)
    outs = []
    for i, (depth, heads, window) in enumerate(zip(depths, num_heads, windows)):
        for j in range(depth):
            name = f'stages.{i}.blocks.{j}'
            shift = block_shift(x.shape[:2], window, j % 2 == 1, shift_covered_axes)
            branch = cosine_attention(params, f'{name}.attn.w_msa', x, heads, window, shift,
                                      window if pretrained is None else pretrained[i])
            x = x + layer_norm(params, f'{name}.norm1', branch)
            hidden = F.gelu(linear(params, f'{name}.ffn.layers.0.0', x))
            x = x + layer_norm(params, f'{name}.norm2', linear(params, f'{name}.ffn.layers.1', hidden))
        outs.append(layer_norm(params, f'norm{i}', x).permute(2, 0, 1))
        if i + 1 < len(depths):
            x = merge_v2(params, f'stages.{i}.downsample', x)
    return outs


# ---- names and orders of other projects ----


def _from_by_token(weight: torch.Tensor) -> torch.Tensor:
    """Patch merging's weight ``(out, 4C)``, from the tokens (0,0), (1,0), (0,1), (1,1) one after the other, as the
    official code joins them, to those of nn.Unfold, channel by channel."""
    channels = weight.shape[1] // 4
    result = torch.empty_like(weight)
    for token, (row, column) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        for channel in range(channels):
            result[:, 4 * channel + 2 * row + column] = weight[:, token * channels + channel]
    return result


def from_transformers(state: dict) -> dict:
    """A state dict of transformers' ``Swinv2Model`` or ``Swinv2Backbone`` under the package's names.

    ``Swinv2Backbone`` has no output norms, ``Swinv2Model`` only the last.
    """
    renamed = [('embeddings.patch_embeddings.', 'patch_embed.'), ('embeddings.norm.', 'patch_embed.norm.'),
               ('encoder.layers.', 'stages.'), ('attention.self.continuous_position_bias_mlp', 'attn.w_msa.cpb_mlp'),
               ('attention.self.query.bias', 'attn.w_msa.q_bias'), ('attention.self.value.bias', 'attn.w_msa.v_bias'),
               ('attention.self.', 'attn.w_msa.'), ('attention.output.dense', 'attn.w_msa.proj'),
               ('intermediate.dense', 'ffn.layers.0.0'), ('output.dense', 'ffn.layers.1'),
               ('layernorm_before', 'norm1'), ('layernorm_after', 'norm2'), ('layernorm.', 'norm3.')]
    ours = {}
    for name, value in state.items():
        for theirs, own in renamed:
            name = name.replace(theirs, own)
        ours[name] = _from_by_token(value) if name.endswith('reduction.weight') else value
    for name in [name for name in ours if name.endswith('.query.weight')]:
        parts = [ours.pop(name.replace('query', part)) for part in ('query', 'key', 'value')]
        ours[name.replace('query', 'qkv')] = torch.cat(parts)
    return ours


def from_mmpretrain(state: dict) -> dict:
    """A state dict of mmpretrain's ``SwinTransformerV2`` under the package's names: its patch merging opens the next
    stage, and it saves buffers that follow from the window."""
    ours = {}
    for name, value in state.items():
        if name.endswith(('relative_coords_table', 'relative_position_index')):
            continue
        parts = name.split('.')
        if parts[0] == 'stages' and parts[2] == 'downsample':
            parts[1] = str(int(parts[1]) - 1)
        ours['.'.join(parts)] = value
    return ours


def to_official(state: dict, windows, pretrained: Optional[list] = None) -> dict:
    """A state dict of the package as microsoft's classification code would have saved it, with its buffers."""
    official = {}
    for name, value in state.items():
        for own, theirs in [('patch_embed.projection', 'patch_embed.proj'), ('stages.', 'layers.'),
                            ('.attn.w_msa.', '.attn.'), ('.ffn.layers.0.0.', '.mlp.fc1.'),
                            ('.ffn.layers.1.', '.mlp.fc2.'), ('norm3.', 'norm.')]:
            name = name.replace(own, theirs)
        if name.startswith(('norm0', 'norm1', 'norm2')):
            continue
        if name.endswith('reduction.weight'):
            channels = value.shape[1] // 4
            by_token = torch.empty_like(value)
            for token, (row, column) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
                for channel in range(channels):
                    by_token[:, token * channels + channel] = value[:, 4 * channel + 2 * row + column]
            value = by_token
        official[name] = value
        if name.endswith('.attn.logit_scale'):
            stage = int(name.split('.')[1])
            buffer = coords_table(windows[stage], (pretrained or windows)[stage])
            official[name.replace('logit_scale', 'relative_coords_table')] = buffer
            official[name.replace('logit_scale', 'relative_position_index')] = torch.zeros(
                windows[stage]**2, windows[stage]**2, dtype=torch.long)
    official['head.weight'], official['head.bias'] = torch.zeros(10, len(state['norm3.bias'])), torch.zeros(10)
    return official


def coords_table(window: int, pretrained: int) -> torch.Tensor:
    """The ``relative_coords_table`` buffer of a square window, ``(1, 2w - 1, 2w - 1, 2)``."""
    rows, columns = coordinates((2 * window - 1, 2 * window - 1))
    x = 8 * (torch.stack([rows, columns], dim=-1) - (window - 1)) / (pretrained - 1)
    return (x.sign() * torch.log2(1 + x.abs()) / 3).view(1, 2 * window - 1, 2 * window - 1, 2)
