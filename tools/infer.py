"""Detect or segment what images show, with a trained model: ``python tools/infer.py CONFIG CHECKPOINT IMAGES...``.

For each image a picture, OUT/NAME.png, and beside it OUT/NAME.json. Of a detector it holds
``{"image", "height", "width", "instances": [{"label", "class", "score", "bbox": [x1, y1, x2, y2], "mask"}]}``, in
pixels of the image, with masks in COCO's run-length code. Of a segmentor it holds
``{"image", "height", "width", "label_map", "classes": [{"label", "class", "share"}]}``: the file of the label map,
OUT/labels/NAME.png, whose pixels are labels, and the share of the pixels that each class has.
"""
from __future__ import annotations

import json
import sys
import warnings
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.infer import BaseInferencer
from mmengine.registry import DATASETS, init_default_scope
from mmengine.structures import BaseDataElement, InstanceData
from mmengine.visualization import Visualizer
from pycocotools import mask as coco_masks
from rich.progress import MofNCompleteColumn, Progress

from swin_rpe_mm import make_padding_invariant
from swin_rpe_mm.checkpoints import LoadReport, innermost, read_checkpoint
from swin_rpe_mm.checkpoints.files import TRUST_HELP
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.checkpoint_files import check_checkpoint, read_safely
from swin_rpe_mm.mm.configs import (
    check_ops,
    find_data,
    ignores_padding,
    load_config,
    require,
    task_of,
    type_name,
    walk,
)
from swin_rpe_mm.mm.pictures import read_picture, refuse_existing, result_names, write_file, write_picture
from swin_rpe_mm.mm.samples import build_visualizer, default_visualizer, draw_sample
from tools.lib.cli import run_tool
from tools.lib.data_checks import fault_of_image

_SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm'}


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file of a detector or segmentor')
    parser.add_argument('checkpoint', help='its checkpoint')
    parser.add_argument(
        'images', nargs='+', help='image files, folders of images, and quoted patterns such as "photos/**/*.jpg"')
    parser.add_argument('--out', type=Path, required=True, help='folder for pictures and json files')
    parser.add_argument('--overwrite', action='store_true', help='replace files of an earlier run in --out')
    parser.add_argument(
        '--score-thr', type=float, default=0.3,
        help='score from which on a detected object is drawn and listed (default: %(default)s)')
    parser.add_argument('--batch-size', type=int, default=1, help='images at a time (default: %(default)s)')
    parser.add_argument('--device', help='such as cpu or cuda:1; default: the GPU if there is one')
    parser.add_argument('--trust-checkpoint', action='store_true', help=TRUST_HELP)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    if args.batch_size < 1:
        raise InputError(f'--batch-size must be at least 1, got {args.batch_size}')
    if not 0 <= args.score_thr <= 1:
        raise InputError(f'--score-thr must lie between 0 and 1, got {args.score_thr}')
    device = find_device(args.device)
    cfg = load_config(args.config)
    require(cfg, 'model', 'test_dataloader')
    check_checkpoint(args.checkpoint)
    images = find_images(args.images)
    names = dict(zip(images, result_names(images)))
    places = [args.out / f'{name}.{kind}' for name in names.values() for kind in ('png', 'json')]
    if task_of(cfg) == 'segmentation':
        places += [label_map(args.out, name) for name in names.values()]
    refuse_existing(places, args.overwrite)
    check_ops(cfg)
    read_safely(args.trust_checkpoint)
    find_data(cfg)

    inferencer = build_inferencer(cfg, args.checkpoint, device)
    weights = innermost(read_checkpoint(args.checkpoint, 'cpu', args.trust_checkpoint))
    keys = [key.removeprefix('module.') for key in weights]
    LoadReport.compare(inferencer.model.state_dict(), keys).check(f'checkpoint {args.checkpoint}', 'the model')
    visualizer = build_visualizer(cfg.visualizer, inferencer.scope, inferencer.model.dataset_meta)
    faults = []
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn()) as progress:
        bar = progress.add_task('images', total=len(images))
        for batch in batches(images, args.batch_size, task_of(cfg), faults):
            for (path, image), sample in zip(batch, predict(inferencer, [path for path, _ in batch])):
                draw_and_describe(visualizer, path, image, sample, args.out, names[path], args.score_thr)
            progress.update(bar, completed=progress.tasks[0].completed + len(batch))
        progress.update(bar, completed=len(images))
    print(f'pictures and json files of {len(images) - len(faults)} images: {args.out}')
    if faults:
        raise InputError(f'{len(faults)} of {len(images)} images cannot be read and were left out: {", ".join(faults)}')


def find_device(name: str | None) -> str:
    """The device that is asked for, if it is there; else mmengine's choice."""
    try:
        torch.zeros(1, device=name or get_device())
    except (RuntimeError, AssertionError) as error:
        raise InputError(f'--device {name} cannot be used here: {str(error).splitlines()[0]}') from error
    return name or get_device()


def find_images(arguments: Sequence[str]) -> list[str]:
    """The files that arguments mean, each once, in their order; those of a folder or pattern sorted."""
    found = []
    for argument in arguments:
        if Path(argument).is_dir():
            paths = [str(path) for path in sorted(Path(argument).rglob('*')) if path.suffix.lower() in _SUFFIXES]
            missing = f'holds no file that ends in {", ".join(sorted(_SUFFIXES))}'
        elif Path(argument).is_file():
            paths = [argument]
        else:
            paths = [path for path in sorted(glob(argument, recursive=True)) if Path(path).is_file()]
            missing = 'matches no file' if has_magic(argument) else 'does not exist'
        if not paths:
            raise InputError(f'IMAGES: {argument} {missing}')
        found += paths
    return list(dict.fromkeys(found))


def build_inferencer(cfg: Config, checkpoint: str, device: str) -> BaseInferencer:
    """mmdet's or mmseg's inferencer, its model on ``device``, with the classes and colours of the config's data."""
    scope = cfg.get('default_scope') or 'mmdet'
    init_default_scope(scope)
    pipelines = [node['pipeline'] for node in walk(cfg.test_dataloader.dataset) if node.get('pipeline')]
    for pipeline in pipelines:  # there is no truth to load
        pipeline[:] = [step for step in pipeline if 'Annotation' not in type_name(step)]
    cfg.visualizer = {**(cfg.get('visualizer') or default_visualizer(scope)), 'vis_backends': []}  # it writes nothing
    dataset = cfg.test_dataloader.dataset
    with warnings.catch_warnings():
        # the classes are the config's: checkpoints of other projects lack them
        warnings.filterwarnings('ignore', message='dataset_meta or class names')
        if scope == 'mmseg':
            from mmseg.apis import MMSegInferencer
            inferencer = MMSegInferencer(cfg, checkpoint, device=device)
        else:
            from mmdet.apis import DetInferencer
            inferencer = DetInferencer(cfg, checkpoint, device=device, scope=scope)
    if ignores_padding(cfg):
        make_padding_invariant(inferencer.model)
    inferencer.show_progress = False
    inferencer.model.dataset_meta = dict(DATASETS.build({**dataset, 'lazy_init': True}).metainfo)
    return inferencer


def batches(images: Sequence[str], size: int, task: str, faults: list[str]) -> Iterator[list[tuple[str, np.ndarray]]]:
    """Up to ``size`` images at a time, of equal sizes for segmentors; what cannot be read is told and added to faults.

    mmseg takes a batch to be of one size.
    """

    def readable() -> Iterator[tuple[str, np.ndarray]]:
        for path in images:
            fault = fault_of_image(path)
            image = None if fault else read_picture(path)
            if image is None:
                print(f'image {path} {fault or "is not an image"}: left out', file=sys.stderr, flush=True)
                faults.append(path)
            else:
                yield path, image

    for _, group in groupby(readable(), lambda item: item[1].shape if task == 'segmentation' else None):
        batch = []
        for item in group:
            batch.append(item)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch


def predict(inferencer: BaseInferencer, paths: list[str]) -> list[BaseDataElement]:
    """One data sample per image."""
    found = inferencer(paths, batch_size=len(paths), return_datasamples=True)
    if isinstance(found, dict):
        found = found['predictions']
    return found if isinstance(found, list) else [found]


def draw_and_describe(visualizer: Visualizer, path: str, image: np.ndarray, sample: BaseDataElement, out: Path,
                      name: str, score_thr: float) -> None:
    """Write the picture and the json file of one image, and its label map if there is one."""
    sample, classes = sample.cpu(), visualizer.dataset_meta.get('classes')
    described = dict(image=str(Path(path).absolute()), height=image.shape[0], width=image.shape[1])
    if 'pred_instances' in sample:
        sample.pred_instances = sample.pred_instances[sample.pred_instances.scores >= score_thr]
        described['instances'] = list_instances(sample.pred_instances, classes)
    elif 'pred_sem_seg' in sample and 'data' in sample.pred_sem_seg:
        labels = sample.pred_sem_seg.data[0].numpy()
        place = label_map(out, name)
        write_picture(place, labels.astype(np.uint8 if labels.max() < 256 else np.uint16))
        described['label_map'] = place.relative_to(out).as_posix()
        present, counts = np.unique(labels, return_counts=True)
        described['classes'] = [
            dict(label=int(label), **class_of(classes, label), share=float(count / labels.size))
            for label, count in zip(present, counts)
        ]
    else:
        raise InputError('the model predicts neither instances nor a label map, but '
                         f'{", ".join(sorted(sample.keys())) or "nothing"}')
    picture = draw_sample(visualizer, image, sample, 'pred')
    write_picture(out / f'{name}.png', picture)
    write_file(out / f'{name}.json', json.dumps(described).encode())


def label_map(out: Path, name: str) -> Path:
    return out / 'labels' / f'{name}.png'


def class_of(classes: Sequence[str] | None, label: int) -> dict[str, str]:
    return {'class': classes[label]} if classes else {}


def list_instances(instances: InstanceData, classes: Sequence[str] | None) -> list[dict]:
    """What json can hold of the instances, the surest first."""
    found = []
    for index in instances.scores.argsort(descending=True).tolist():
        label = int(instances.labels[index])
        entry = dict(label=label, **class_of(classes, label), score=float(instances.scores[index]))
        if 'bboxes' in instances:
            entry['bbox'] = instances.bboxes[index].tolist()
        if 'masks' in instances:
            code = coco_masks.encode(np.asfortranarray(instances.masks[index].numpy().astype(np.uint8)))
            entry['mask'] = dict(size=code['size'], counts=code['counts'].decode())
        found.append(entry)
    return found


if __name__ == '__main__':
    run_tool(main)
