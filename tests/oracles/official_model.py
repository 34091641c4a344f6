"""microsoft's Swin and SwinV2 as modules with exactly the names, orders and buffers of their files.

Their repositories are no packages that could be installed, so their forward passes are stated anew here: classification
for one size of image, detection and segmentation (the code of both is the same) for any. timm reads the files of the
former, and is asked whether it computes the same.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from oracles.official import offset_index
from oracles.swin_v2 import coords_table


def split(x: torch.Tensor, window: int) -> torch.Tensor:
    """A map ``(B, H, W, C)`` in windows, ``(B * windows, window**2, C)``."""
    b, h, w, c = x.shape
    x = x.view(b, h // window, window, w // window, window, c)
    return x.transpose(2, 3).reshape(-1, window * window, c)


def join(windows: torch.Tensor, window: int, size: tuple[int, int]) -> torch.Tensor:
    """The inverse of :func:`split`."""
    h, w = size
    x = windows.view(-1, h // window, w // window, window, window, windows.shape[-1])
    return x.transpose(2, 3).reshape(-1, h, w, windows.shape[-1])


def region_mask(size: tuple[int, int], window: int, shift: int) -> torch.Tensor:
    """What is added to the logits of a rolled map, 0 or -100, ``(windows, window**2, window**2)``."""
    regions = torch.zeros(1, *size, 1)
    parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for i, rows in enumerate(parts):
        for j, columns in enumerate(parts):
            regions[:, rows, columns] = 3 * i + j
    regions = split(regions, window).squeeze(-1)
    return -100. * (regions[:, None] != regions[:, :, None])


class Attention(nn.Module):
    """``WindowAttention`` of both versions."""

    def __init__(self, dims: int, window: int, heads: int, version: int, pretrained: int):
        super().__init__()
        self.heads, self.version = heads, version
        self.qkv, self.proj = nn.Linear(dims, 3 * dims, bias=version == 1), nn.Linear(dims, dims)
        self.register_buffer('relative_position_index', offset_index((window, window)))
        if version == 1:
            self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1)**2, heads))
        else:
            self.logit_scale = nn.Parameter(torch.zeros(heads, 1, 1))
            self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, heads, bias=False))
            self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dims)), nn.Parameter(torch.zeros(dims))
            self.register_buffer('relative_coords_table', coords_table(window, pretrained or window))

    def forward(self, x: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        windows, tokens, dims = x.shape
        bias = self.qkv.bias
        if self.version == 2:
            bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        qkv = F.linear(x, self.qkv.weight, bias).view(windows, tokens, 3, self.heads, dims // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.version == 1:
            logits = q * (dims // self.heads)**-0.5 @ k.transpose(-2, -1)
            table = self.relative_position_bias_table
        else:
            scale = self.logit_scale.clamp(max=math.log(100)).exp()
            logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * scale
            table = 16 * self.cpb_mlp(self.relative_coords_table).view(-1, self.heads).sigmoid()
        logits = logits + table[self.relative_position_index].permute(2, 0, 1)
        if mask is not None:
            logits = (logits.view(-1, len(mask), *logits.shape[1:]) + mask[:, None]).view(logits.shape)
        return self.proj((logits.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):

    def __init__(self, dims: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dims, 4 * dims), nn.Linear(4 * dims, dims)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """``SwinTransformerBlock``: for maps of one ``size``, which a window is cut to, or, if it is None, for any."""

    def __init__(self, dims: int, size, heads: int, window: int, shift: int, version: int, pretrained: int):
        super().__init__()
        self.size, self.version = size, version
        if size and min(size) <= window:
            window, shift = min(size), 0
        self.window, self.shift = window, shift
        self.norm1, self.norm2 = nn.LayerNorm(dims), nn.LayerNorm(dims)
        self.attn = Attention(dims, window, heads, version, pretrained)
        self.mlp = Mlp(dims)
        self.register_buffer('attn_mask', region_mask(size, window, shift) if size and shift else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.version == 1:
            x = x + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = x + self.norm1(self.attend(x))
        return x + self.norm2(self.mlp(x))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        h, w = x.shape[1:3]
        mask, shift = self.attn_mask, (self.shift, self.shift)
        if not self.size:
            x = F.pad(x, (0, 0, 0, -w % self.window, 0, -h % self.window))
            mask = region_mask(x.shape[1:3], self.window, self.shift).to(x) if self.shift else None
        padded = x.shape[1:3]
        x = x.roll((-self.shift, -self.shift), (1, 2))
        x = join(self.attn(split(x, self.window), mask), self.window, padded)
        return x.roll(shift, (1, 2))[:, :h, :w]


class Merging(nn.Module):
    """``PatchMerging``."""

    def __init__(self, dims: int, version: int):
        super().__init__()
        self.version = version
        self.reduction = nn.Linear(4 * dims, 2 * dims, bias=False)
        self.norm = nn.LayerNorm(4 * dims if version == 1 else 2 * dims)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.reduction(self.norm(x)) if self.version == 1 else self.norm(self.reduction(x))


class Layer(nn.Module):
    """``BasicLayer``; gives the map before and after patch merging."""

    def __init__(self, dims: int, size, depth: int, heads: int, window: int, last: bool, version: int, pretrained: int):
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(dims, size, heads, window, j % 2 * (window // 2), version, pretrained) for j in range(depth))
        self.downsample = None if last else Merging(dims, version)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for block in self.blocks:
            x = block(x)
        return x, x if self.downsample is None else self.downsample(x)


class PatchEmbed(nn.Module):

    def __init__(self, dims: int):
        super().__init__()
        self.proj, self.norm = nn.Conv2d(3, dims, 4, 4), nn.LayerNorm(dims)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = F.pad(images, (0, -images.shape[3] % 4, 0, -images.shape[2] % 4))
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


class Official(nn.Module):
    """``SwinTransformer`` or ``SwinTransformerV2``; gives the maps ``(B, H, W, C)`` of its stages.

    Args:
        image (tuple[int, int], optional): The one size of image, for classification: a norm after the last stage, and
            ``head``. None is the code of detection and segmentation, for images of any size: a norm for each stage.
        position (tuple[int, int], optional): The image for which there is an absolute position embedding, as a list of
            tokens in classification, as a map otherwise.
        mask_token (bool): As SimMIM's encoders have, which have no head.
    """

    def __init__(self, image, window: int, embed_dims: int, depths, num_heads, version: int = 1, pretrained=(0, ) * 4,
                 position=None, mask_token: bool = False):
        super().__init__()
        self.image = image
        self.patch_embed = PatchEmbed(embed_dims)
        self.absolute_pos_embed = None
        if position:
            side = (position[0] // 4, position[1] // 4)
            shape = (1, side[0] * side[1], embed_dims) if image else (1, embed_dims, *side)
            self.absolute_pos_embed = nn.Parameter(torch.zeros(shape))
        if mask_token:
            self.mask_token = nn.Parameter(torch.zeros(1, 1, embed_dims))
        self.layers = nn.ModuleList()
        for i, (depth, heads) in enumerate(zip(depths, num_heads)):
            size = tuple(side // 4 // 2**i for side in image) if image else None
            self.layers.append(Layer(embed_dims * 2**i, size, depth, heads, window, i == len(depths) - 1, version,
                                     pretrained[i]))
        dims = [embed_dims * 2**i for i in range(len(depths))]
        if image:
            self.norm = nn.LayerNorm(dims[-1])
            if not mask_token:
                self.head = nn.Linear(dims[-1], 10)
        else:
            for i, width in enumerate(dims):
                self.add_module(f'norm{i}', nn.LayerNorm(width))

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = self.patch_embed(images)
        embedding = self.absolute_pos_embed
        if embedding is not None:
            if not self.image:
                embedding = F.interpolate(embedding, x.shape[1:3], mode='bicubic').flatten(2).transpose(1, 2)
            x = x + embedding.view(1, *x.shape[1:])
        maps = []
        for i, layer in enumerate(self.layers):
            out, x = layer(x)
            maps.append(out if self.image else getattr(self, f'norm{i}')(out))
        if self.image:
            maps[-1] = self.norm(x)
        return maps


class SimMIM(nn.Module):
    """The names of SimMIM's files (arXiv 2111.09886): an encoder with a mask token, and a decoder."""

    def __init__(self, encoder: Official, dims: int):
        super().__init__()
        self.encoder = encoder
        self.decoder = nn.Sequential(nn.Conv2d(dims, 3 * 32**2, 1), nn.PixelShuffle(32))


class MoBY(nn.Module):
    """The names of MoBY's files (arXiv 2105.04553): two encoders, the second of which follows the first, and heads."""

    def __init__(self, encoder: Official, encoder_k: Official, dims: int):
        super().__init__()
        self.encoder, self.encoder_k = encoder, encoder_k
        for name, width in (('projector', dims), ('projector_k', dims), ('predictor', 16)):
            head = nn.Module()
            head.linear_hidden = nn.Sequential(nn.Identity(), nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU())
            head.linear_out = nn.Linear(32, 16)
            self.add_module(name, head)
        for name in ('queue1', 'queue2'):
            self.register_buffer(name, torch.ones(16, 4))
        self.register_buffer('queue_ptr', torch.zeros(1, dtype=torch.long))
