"""Show what a model sees: images as its pipeline gives them, with the boxes, masks and labels it learns from.

``python tools/analysis_tools/browse_dataset.py CONFIG --out DIR``, for detectors and segmentors. Each picture shows the
image after every crop, flip, mix and change of colours, and beside it the truth drawn on it. Normalisation is undone,
so that colours are those of the photo. What is done to whole batches, such as their padding, is not shown.
"""
from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import set_random_seed
from rich.progress import track

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import check_ops, find_data, leaf_datasets, load_config, require, type_name, walk
from swin_rpe_mm.mm.pictures import refuse_existing, write_picture
from swin_rpe_mm.mm.samples import beside, build_visualizer, draw_sample
from tools.lib.cli import run_tool
from tools.lib.data_checks import check_data


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file of a detector or segmentor')
    parser.add_argument(
        '--split', choices=['train', 'val', 'test'], default='train', help='whose data and pipeline (default: train)')
    parser.add_argument('--out', type=Path, help='folder for the pictures')
    parser.add_argument('--overwrite', action='store_true', help='replace pictures of an earlier run in --out')
    parser.add_argument('--show', action='store_true', help='show the pictures on the screen, each until a key is hit')
    parser.add_argument(
        '--num', type=int, default=16, help='pictures, of images spread over the data set (default: %(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of what pipelines choose at random (default: %(default)s)')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    if not (args.out or args.show):
        raise InputError('nothing says where the pictures should go: name a folder with --out, or add --show')
    if args.num < 1:
        raise InputError(f'--num must be at least 1, got {args.num}')
    cfg = load_config(args.config)
    require(cfg, f'{args.split}_dataloader')
    check_ops(cfg)
    for note in find_data(cfg):
        print(note)
    settings = cfg[f'{args.split}_dataloader'].dataset
    scope = cfg.get('default_scope') or 'mmdet'
    init_default_scope(scope)
    print(check_data(cfg, [args.split]))
    dataset = DATASETS.build(settings)
    chosen = np.linspace(0, len(dataset), min(args.num, len(dataset)), endpoint=False).astype(int).tolist()
    names = {index: f'{index:06d}_{Path(dataset.get_data_info(index)["img_path"]).stem}.png' for index in chosen}
    if args.out:
        refuse_existing([args.out / name for name in names.values()], args.overwrite)
    visualizer = build_visualizer(cfg.get('visualizer'), scope, dataset.metainfo)
    set_random_seed(args.seed)
    for index in track(chosen, description='pictures'):
        picture = draw(visualizer, cfg, settings, dataset[index])
        if args.out:
            write_picture(args.out / names[index], picture)
        if args.show:
            visualizer.show(picture, win_name=names[index])
    if args.out:
        print(f'{len(chosen)} pictures of {len(dataset)} images: {args.out}')


def draw(visualizer, cfg: Config, settings: ConfigDict, packed: dict) -> np.ndarray:
    """The image beside the truth on it."""
    if not isinstance(packed, dict) or not isinstance(packed.get('inputs'), torch.Tensor):
        raise InputError('the pipeline must end in PackDetInputs or PackSegInputs, and give one image at a time')
    image, sample = to_photo(packed['inputs'], cfg, settings), packed['data_samples']
    truth = draw_sample(visualizer, image, sample, 'gt')
    if truth is None:
        return beside(**{'image, without truth': image})
    times = len(truth) // len(image)
    return beside(**{f'image, {image.shape[0]}x{image.shape[1]} px': image.repeat(times, 0).repeat(times, 1),
                     'truth': truth})


def to_photo(inputs: torch.Tensor, cfg: Config, settings: ConfigDict) -> np.ndarray:
    """Turn an input of the data preprocessor, ``(C, H, W)``, into an image as people see it, ``(H, W, 3)``, RGB, uint8.

    The pipeline's own normalisation is undone where it has one. The order of channels is told by what follows: a data
    preprocessor that turns RGB into BGR gets RGB; what else there is gets the BGR that images are read in.
    """
    image = inputs.permute(1, 2, 0).float().numpy()
    is_rgb = bool((cfg.get('model', {}).get('data_preprocessor') or {}).get('rgb_to_bgr'))
    steps = [step for leaf in leaf_datasets(settings) for step in walk(leaf.get('pipeline'))]
    for step in steps:
        if type_name(step) == 'Normalize':
            image = image * np.float32(step['std']) + np.float32(step['mean'])
            is_rgb = step.get('to_rgb', True)
            break
    if image.shape[2] not in (1, 3):
        raise InputError(f'images of {image.shape[2]} channels cannot be shown: they must have 1 or 3')
    image = image.repeat(3 // image.shape[2], axis=2)
    return image.round().clip(0, 255).astype(np.uint8)[..., ::1 if is_rgb else -1]


if __name__ == '__main__':
    run_tool(main)
