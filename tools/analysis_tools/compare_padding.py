"""Show what padding does to a backbone's features: an image alone, and the same image in a batch with a larger one."""
from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from torch import Tensor

from swin_rpe_mm import SwinRPE, attach_extents, get_extents
from swin_rpe_mm.engine.checkpoint_files import check_checkpoint, read_safely
from swin_rpe_mm.engine.cli import run_tool
from swin_rpe_mm.engine.configs import find_data, load_config
from swin_rpe_mm.errors import InputError

_FLOOR, _CEILING = 1e-7, 1.0  # relative differences that the colours span; float32 rounds near the lower end


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file of a detector or segmentor on SwinRPE')
    parser.add_argument('checkpoint', help='its checkpoint')
    parser.add_argument('--out', default='padding.png', help='picture to write, .png or .svg (default: %(default)s)')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Draw the picture; return the largest relative difference of each kind of mask."""
    args = parse_args(argv)
    if Path(args.out).suffix not in ('.png', '.svg'):
        raise InputError(f'--out must end in .png or .svg, got {args.out}')
    cfg = load_config(args.config)
    check_checkpoint(args.checkpoint)
    find_data(cfg)
    read_safely()
    init_default_scope(cfg.get('default_scope', 'mmdet'))
    model = MODELS.build(cfg.model).eval()
    if not isinstance(model.backbone, SwinRPE):
        raise InputError(f'{args.config} has the backbone {type(model.backbone).__name__}; this tool needs SwinRPE')
    load_checkpoint(model, args.checkpoint, map_location='cpu')
    small, large = two_images(cfg, model.data_preprocessor)

    unmasked = MODELS.build({**cfg.model.backbone, 'mask_padding': False}).eval()
    unmasked.load_state_dict(model.backbone.state_dict())
    differences = {
        'SwinRPE': compare(model.backbone, small, large),
        'without padding masks\n(as mmdet, mmseg)': compare(unmasked, small, large)
    }
    draw(small, batch_of(small, large), differences, args.out)
    worst = {name.split('\n')[0]: max(float(stage.max()) for stage in stages) for name, stages in differences.items()}
    for name, value in worst.items():
        print(f'{name}: features of an image differ by at most {value:.1e} of their norm, alone and in a batch')
    print(f'picture: {args.out}')
    return worst


def two_images(cfg: Config, data_preprocessor: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """A small image of the config's test set and the largest, normalised, each a batch of its own with extents."""
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    images = [data_preprocessor(pseudo_collate([dataset[i]]))['inputs'] for i in range(min(len(dataset), 64))]
    images.sort(key=lambda image: np.prod(get_extents(image)[0]))
    return images[0], images[-1]


def batch_of(*images: Tensor) -> Tensor:
    """One batch of images padded with zeros, with extents."""
    extents = [get_extents(image)[0] for image in images]
    size = [max(sides) for sides in zip(*(image.shape[-2:] for image in images))]
    batch = images[0].new_zeros((len(images), images[0].shape[1], *size))
    for place, image, (h, w) in zip(batch, images, extents):
        place[:, :h, :w] = image[0, :, :h, :w]
    return attach_extents(batch, extents)


@torch.no_grad()
def compare(backbone: SwinRPE, image: Tensor, companion: Tensor) -> list[np.ndarray]:
    """Per stage, the map of the distance between the image's features alone and in a batch, over their mean norm."""
    h, w = get_extents(image)[0]
    alone = backbone(attach_extents(image[:, :, :h, :w].contiguous(), [(h, w)]))
    together = backbone(batch_of(image, companion))
    maps = []
    for one, two in zip(alone, together):
        distance = (one[0] - two[0, :, :one.shape[2], :one.shape[3]]).norm(dim=0)
        maps.append((distance / one[0].norm(dim=0).mean()).numpy())
    return maps


def draw(image: Tensor, batch: Tensor, differences: dict[str, list[np.ndarray]], out: str) -> None:
    """The image, the batch, and a row of difference maps for each kind of mask."""
    stages = len(next(iter(differences.values())))
    # a figure of its own rather than pyplot's: needs no screen and leaves no state behind
    figure = Figure(figsize=(2.4 * (stages + 1.4), 2.5 * len(differences)), layout='constrained')
    axes = figure.subplots(len(differences), stages + 1)
    h, w = get_extents(image)[0]
    low, high = image.amin(), image.amax()
    for axis, picture, (height, width), title in ((axes[0, 0], image[0], (h, w), f'alone, {h}x{w} px'),
                                                  (axes[1, 0], batch[0], tuple(batch.shape[-2:]),
                                                   f'in a batch, {batch.shape[2]}x{batch.shape[3]} px')):
        pixels = ((picture[:, :height, :width] - low) / (high - low)).clamp(0, 1).permute(1, 2, 0).numpy().copy()
        pixels[h:], pixels[:, w:] = 1, 1
        axis.imshow(pixels)
        axis.add_patch(Rectangle((-.5, -.5), width, height, fill=False, color='0.5', clip_on=False))
        axis.set_title(title, fontsize=9)
    for row, (name, maps) in zip(axes, differences.items()):
        for stage, (axis, values) in enumerate(zip(row[1:], maps)):
            drawn = axis.imshow(np.maximum(values, _FLOOR), norm=LogNorm(_FLOOR, _CEILING), cmap='viridis')
            axis.set_title(f'stage {stage + 1}: max {values.max():.1g}', fontsize=9)
        row[1].set_ylabel(name, fontsize=9)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(drawn, ax=axes, label='change of features alone -> in a batch, relative', shrink=.8)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)


if __name__ == '__main__':
    run_tool(main)
