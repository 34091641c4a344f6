"""Show what padding does to a model: its features and predictions of an image alone, and in a batch with a larger one.

``python tools/analysis_tools/compare_padding.py CONFIG CHECKPOINT`` compares the model with masks for padding, as
SwinRPE has them, and with the same weights without, as the Swins of MMDetection and MMSegmentation are. The number for
each is the share of predictions that change: of a segmentor the pixels with another label, of a detector the boxes of a
score from 0.3 on that have no partner of the same class within 1 px and a score within 0.01.
"""
from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from rich.progress import track
from torch import Tensor, nn

from swin_rpe_mm import SwinRPE, attach_extents, get_extents
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.checkpoint_files import check_checkpoint, read_safely
from swin_rpe_mm.mm.configs import check_ops, find_data, load_config, require, task_of, without_sync_bn
from tools.lib.cli import run_tool

_FLOOR, _CEILING = 1e-7, 1.0  # relative differences that the colours span; float32 rounds near the lower end
_SCORE, _NEAR_SCORE, _NEAR = 0.3, 0.01, 1.0  # of boxes: lowest score; how far scores and sides (px) of partners differ
_LOOKED_AT = 64  # images of the test set among which the smallest and the largest are found
_ALONE, _BATCH = '#0072B2', '#D55E00'  # blue and orange that colour-blind readers tell apart


class Comparison(NamedTuple):
    """One image alone and in a batch, under one kind of mask.

    Attributes:
        features (list[np.ndarray]): Per stage, the map of the distance between the features, over their mean norm.
        alone, together (BaseDataElement): The predictions.
        changed, total (int): How many boxes or pixels change, out of how many.
    """
    features: list[np.ndarray]
    alone: BaseDataElement
    together: BaseDataElement
    changed: int
    total: int


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file of a detector or segmentor on SwinRPE')
    parser.add_argument('checkpoint', help='its checkpoint')
    parser.add_argument('--out', default='padding.png', help='picture to write, .png or .svg (default: %(default)s)')
    parser.add_argument(
        '--num', type=int, default=8, help="images to compare, the smallest of the test set's first "
        f'{_LOOKED_AT}, each in a batch with the largest (default: %(default)s)')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Draw the picture; return for each kind of mask the largest change of features and the share of predictions."""
    args = parse_args(argv)
    if Path(args.out).suffix not in ('.png', '.svg'):
        raise InputError(f'--out must end in .png or .svg, got {args.out}')
    if args.num < 1:
        raise InputError(f'--num must be at least 1, got {args.num}')
    cfg = load_config(args.config)
    require(cfg, 'model', 'test_dataloader')
    check_checkpoint(args.checkpoint)
    check_ops(cfg)
    find_data(cfg)
    without_sync_bn(cfg)
    read_safely()
    init_default_scope(cfg.get('default_scope', 'mmdet'))
    models = {'SwinRPE': build_model(cfg, args), 'without padding masks': build_model(cfg, args, mask_padding=False)}
    *images, largest = load_images(cfg, args.num)
    found = {
        name: [compare(model, image, largest) for image in track(images, description=name)]
        for name, model in models.items()
    }
    numbers = {name: sum_up(comparisons) for name, comparisons in found.items()}
    unit = 'pixels' if task_of(cfg) == 'segmentation' else 'boxes'
    for name, number in numbers.items():
        print(f'{name}: {number["predictions"]:.1%} of the {unit} of {len(images)} images change, and features by at '
              f'most {number["features"]:.1e} of their norm, when an image is batched with a larger one')
    # the picture is of the image to which most happens
    index = int(np.argmax([one.changed / max(one.total, 1) for one in found['without padding masks']]))
    preprocess = models['SwinRPE'].data_preprocessor
    draw(batch_of(preprocess, images[index]), batch_of(preprocess, images[index], largest),
         {name: comparisons[index] for name, comparisons in found.items()},
         images[index]['data_samples'].ori_shape, unit, args.out)
    print(f'picture: {args.out}')
    return numbers


def build_model(cfg: Config, args: Namespace, **settings) -> nn.Module:
    """The trained model, with settings of its backbone changed."""
    model = MODELS.build(cfg.model).eval()
    if not isinstance(getattr(model, 'backbone', None), SwinRPE):
        kind = type(getattr(model, 'backbone', None)).__name__
        raise InputError(f'{args.config} has the backbone {kind}; this tool needs SwinRPE')
    model.backbone = MODELS.build({**cfg.model.backbone, **settings}).eval()
    load_checkpoint(model, args.checkpoint, map_location='cpu')
    return model


def load_images(cfg: Config, num: int) -> list[dict]:
    """Up to ``num`` of the smallest images of the test set, as its pipeline gives them, and the largest."""
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    images = [dataset[i] for i in range(min(len(dataset), _LOOKED_AT))]
    images.sort(key=lambda image: image['inputs'].shape[-2] * image['inputs'].shape[-1])
    if len(images) < 2:
        raise InputError('the test set has one image only; a batch needs two')
    return [*images[:-1][:num], images[-1]]


@torch.no_grad()
def batch_of(preprocess: nn.Module, *images: dict) -> Tensor:
    """The images normalised and filled up with zeros to the size of the largest, with extents."""
    ready = [preprocess(pseudo_collate([image]))['inputs'] for image in images]
    extents = [get_extents(image)[0] for image in ready]
    batch = ready[0].new_zeros((len(ready), ready[0].shape[1], *(max(sides) for sides in zip(*extents))))
    for place, image, (h, w) in zip(batch, ready, extents):
        place[:, :h, :w] = image[0, :, :h, :w]
    return attach_extents(batch, extents)


def compare(model: nn.Module, image: dict, companion: dict) -> Comparison:
    """Compare features and predictions of an image alone and in a batch with another."""
    features = compare_features(model, image, companion)
    alone, together = predict(model, image), predict(model, image, companion)
    if isinstance(alone, InstanceData):
        changed = without_partner(alone, together) + without_partner(together, alone)
        return Comparison(features, alone, together, changed, len(alone) + len(together))
    changed = int((alone.data != together.data).sum())
    return Comparison(features, alone, together, changed, alone.data.numel())


@torch.no_grad()
def compare_features(model: nn.Module, image: dict, companion: dict) -> list[np.ndarray]:
    """Per stage, the map of the distance between the image's features alone and in a batch, over their mean norm."""
    alone = model.backbone(batch_of(model.data_preprocessor, image))
    together = model.backbone(batch_of(model.data_preprocessor, image, companion))
    maps = []
    for one, two in zip(alone, together):
        distance = (one[0] - two[0, :, :one.shape[2], :one.shape[3]]).norm(dim=0)
        maps.append((distance / one[0].norm(dim=0).mean()).numpy())
    return maps


@torch.no_grad()
def predict(model: nn.Module, *images: dict) -> BaseDataElement:
    """The label map, or the boxes above the lowest score, of the first image of a batch."""
    images = [dict(image, data_samples=image['data_samples'].clone()) for image in images]
    if hasattr(model, 'decode_head'):
        return predict_labels(model, images)
    sample = model.test_step(pseudo_collate(images))[0]
    if 'pred_instances' not in sample or 'bboxes' not in sample.pred_instances:
        raise InputError('the model predicts neither boxes nor a label map, the two that this tool compares')
    return sample.pred_instances[sample.pred_instances.scores >= _SCORE]


def predict_labels(model: nn.Module, images: Sequence[dict]) -> PixelData:
    """The label map of the first image of a batch.

    mmseg pads batches in training, and refuses images of different sizes in testing.
    """
    batch, sample = batch_of(model.data_preprocessor, *images), images[0]['data_samples']
    h, w = get_extents(batch)[0]
    padding = (0, batch.shape[3] - w, 0, batch.shape[2] - h)
    sample.set_metainfo(dict(pad_shape=tuple(batch.shape[2:]), img_padding_size=padding))
    logits = model.encode_decode(batch, [sample.metainfo] * len(batch))
    return model.postprocess_result(logits[:1], [sample])[0].pred_sem_seg


def without_partner(boxes: InstanceData, others: InstanceData) -> int:
    """How many boxes have no other of the same class within ``_NEAR`` px and ``_NEAR_SCORE``."""
    apart = (boxes.bboxes[:, None] - others.bboxes[None]).abs().amax(-1)
    near = (apart <= _NEAR) & ((boxes.scores[:, None] - others.scores[None]).abs() <= _NEAR_SCORE)
    return int((~(near & (boxes.labels[:, None] == others.labels[None])).any(1)).sum())


def sum_up(comparisons: list[Comparison]) -> dict[str, float]:
    total = sum(one.total for one in comparisons)
    return dict(
        features=max(float(stage.max()) for one in comparisons for stage in one.features),
        predictions=sum(one.changed for one in comparisons) / max(total, 1))


def draw(image: Tensor, batch: Tensor, found: dict[str, Comparison], size: tuple[int, int], unit: str,
         out: str) -> None:
    """The image, the batch, and a row of difference maps and predictions for each kind of mask.

    ``size`` is height and width of the image's file, in whose pixels predictions are.
    """
    h, w = get_extents(image)[0]
    low, high = image.amin(), image.amax()
    photo, padded = (((pixels[0] - low) / (high - low)).clamp(0, 1).permute(1, 2, 0).numpy().copy()
                     for pixels in (image[..., :h, :w], batch))
    padded[h:], padded[:, w:] = 1, 1
    stages = len(next(iter(found.values())).features)
    # a figure of its own rather than pyplot's: needs no screen and leaves no state behind
    figure = Figure(figsize=(1.95 * (stages + 2) + 1, 2.3 * len(found)), layout='constrained')
    axes = figure.subplots(len(found), stages + 2)
    for axis, pixels, title in ((axes[0, 0], photo, f'alone, {h}x{w} px'),
                                (axes[1, 0], padded, f'in a batch, {padded.shape[0]}x{padded.shape[1]} px')):
        axis.imshow(pixels)
        axis.add_patch(Rectangle((-.5, -.5), pixels.shape[1], pixels.shape[0], fill=False, color='0.5', clip_on=False))
        axis.set_title(title, fontsize=8)
    for row, (name, comparison) in zip(axes, found.items()):
        for stage, (axis, values) in enumerate(zip(row[1:], comparison.features)):
            maps = axis.imshow(np.maximum(values, _FLOOR), norm=LogNorm(_FLOOR, _CEILING), cmap='viridis')
            axis.set_title(f'stage {stage + 1}: max {values.max():.1g}', fontsize=8)
        row[1].set_ylabel(name, fontsize=8)
        draw_predictions(row[-1], photo, comparison, size)
        row[-1].set_title(f'{comparison.changed} of {comparison.total} {unit} change', fontsize=8)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(maps, ax=axes[:, :-1], label='change of features', shrink=.8, pad=.01)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)


def draw_predictions(axis: Axes, photo: np.ndarray, comparison: Comparison, size: tuple[int, int]) -> None:
    """The image in grey with its boxes alone and in a batch, or with the pixels whose label changes."""
    grey = np.repeat(photo.mean(2, keepdims=True), 3, axis=2)
    extent = (0, size[1], size[0], 0)
    axis.imshow(grey, extent=extent)
    if not isinstance(comparison.alone, InstanceData):
        changed = (comparison.alone.data != comparison.together.data)[0].numpy()
        axis.imshow(np.where(changed, 1., np.nan), cmap='autumn', vmin=1, vmax=2, extent=extent,
                    interpolation='nearest')
        return
    for boxes, color, style in ((comparison.alone, _ALONE, '-'), (comparison.together, _BATCH, '--')):
        for left, top, right, bottom in boxes.bboxes.tolist():
            axis.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, color=color, ls=style))
    axis.legend([Line2D([], [], color=_ALONE), Line2D([], [], color=_BATCH, ls='--')], ['alone', 'in a batch'],
                fontsize=6, loc='upper center', bbox_to_anchor=(.5, 0), ncols=2, frameon=False)


if __name__ == '__main__':
    run_tool(main)
