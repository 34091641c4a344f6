"""Train and evaluate a detector and a segmentor on the Shapes data set, from random weights, in minutes on two cores.

Draws the data, trains Mask R-CNN and UPerNet on a nano Swin-RPE side by side with one thread each, evaluates both on
the validation images, draws predictions beside the truth, and ends with a table. Every run has a work folder of its
own, so nothing is overwritten and nothing of an earlier run is used but the data, which the seed determines.
"""
from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, VISUALIZERS, init_default_scope
from mmengine.runner import load_checkpoint
from mmengine.structures import InstanceData, PixelData

from swin_rpe_mm import make_padding_invariant
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.checkpoint_files import read_safely
from swin_rpe_mm.mm.configs import has_ops
from tools.lib.cli import run_tool

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / 'data' / 'shapes'
PICTURES = 6
ENLARGE = 4
MIN_SCORE = 0.5
DRAWN = ('gt_instances', 'pred_instances', 'gt_sem_seg', 'pred_sem_seg')
SMOKE_ITERS = 16
REPORT_SECONDS = 10


@dataclass
class Task:
    """One of the two trainings: its config, and the metrics that the table shows with what to expect of them."""
    name: str
    config: str
    metrics: dict[str, tuple[str, float, float]]  # name in the table: name in the log, factor, expected at least
    work_dir: Path = field(init=False)
    max_iters: int = field(init=False)
    process: subprocess.Popen = field(init=False)

    @property
    def log(self) -> Path:
        return self.work_dir / 'train.log'

    def records(self) -> list[dict[str, Any]]:
        """What mmengine has logged so far: one record per logged iteration, then one for the validation."""
        lines = ''.join(path.read_text() for path in self.work_dir.glob('*/vis_data/scalars.json')).splitlines(True)
        return [json.loads(line) for line in lines if line.endswith('\n')]

    def losses(self) -> list[dict[str, Any]]:
        return [record for record in self.records() if 'loss' in record]

    def checkpoint(self) -> Path:
        return self.work_dir / f'iter_{self.max_iters}.pth'


def make_tasks() -> list[Task]:
    """Both tasks, or segmentation alone where detectors cannot run."""
    tasks = [
        Task('Mask R-CNN', 'mask-rcnn_swin-rpe-nano_fpn_shapes.py', {
            'box AP': ('coco/bbox_mAP', 1., 0.30),
            'mask AP': ('coco/segm_mAP', 1., 0.30)
        }),
        Task('UPerNet', 'upernet_swin-rpe-nano_shapes.py', {'mIoU': ('mIoU', 0.01, 0.60)}),
    ]
    if has_ops():
        return tasks
    say('mmcv has no compiled operators here, so Mask R-CNN is left out: install a C++ compiler, then run make setup')
    return tasks[1:]


def say(text: str) -> None:
    print(text, flush=True)


def clock(seconds: float) -> str:
    return f'{int(seconds) // 60:02d}:{int(seconds) % 60:02d}'


def draw_data(out: Path, smoke: bool) -> None:
    """Run the generator; it does nothing when the same data is already there."""
    counts = ['--train', '32', '--val', '8'] if smoke else []
    command = [sys.executable, str(ROOT / 'tools' / 'dataset_converters' / 'shapes.py'), '--out', str(out), *counts]
    if subprocess.run(command).returncode:
        raise InputError(f'the Shapes data set could not be made in {out}: see the message above')


def options(task: Task, data: Path, smoke: bool) -> list[str]:
    """The settings that differ from the config, for ``--cfg-options``."""
    found = [f'{split}_dataloader.dataset.data_root={data}/' for split in ('train', 'val', 'test')]
    if 'box AP' in task.metrics:
        found += [f'{split}_evaluator.ann_file={data}/annotations/instances_val.json' for split in ('val', 'test')]
    if smoke:
        found += [f'{key}={SMOKE_ITERS}' for key in (
            'train_cfg.max_iters', 'train_cfg.val_interval', 'default_hooks.checkpoint.interval')]
        found.append('default_hooks.logger.interval=1')
        if 'box AP' in task.metrics:
            found.append('model.test_cfg.rcnn.score_thr=0.')  # mmdet gives no metric at all for no detections
    return found


@contextmanager
def training(tasks: list[Task], data: Path, work_dir: Path, smoke: bool) -> Iterator[None]:
    """Start ``tools/train.py`` for every task, and leave no process behind."""
    env = {**os.environ, 'OMP_NUM_THREADS': str(max(1, (os.cpu_count() or 1) // len(tasks)))}
    started = []
    try:
        for task in tasks:
            config = ROOT / 'configs' / 'demo' / task.config
            task.work_dir = work_dir / config.stem
            task.work_dir.mkdir()
            task.max_iters = SMOKE_ITERS if smoke else Config.fromfile(config).train_cfg.max_iters
            command = [
                sys.executable, str(ROOT / 'tools' / 'train.py'), str(config), '--work-dir', str(task.work_dir),
                '--cfg-options', *options(task, data, smoke)
            ]
            with task.log.open('w') as log:
                task.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=env)
            started.append(task.process)
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def progress(task: Task) -> tuple[str, float]:
    """Return one task's part of the progress line, and the seconds of training that are left."""
    losses = task.losses()
    if not losses:
        return f'{task.name} starting', math.inf
    done, loss = losses[-1]['step'], losses[-1]['loss']
    if not math.isfinite(loss):
        raise InputError(f'the loss of {task.name} is {loss} at iteration {done}: see {task.log}')
    state = f'{done}/{task.max_iters}'
    if done == task.max_iters:
        state = 'validating' if task.process.poll() is None else 'done'
    return f'{task.name} {state}, loss {loss:.2f}', losses[-1]['time'] * (task.max_iters - done)


def watch(tasks: list[Task]) -> None:
    """Print progress until every training has ended; a failed one ends the demo."""
    started, reported = time.time(), 0.
    while True:
        running = [task for task in tasks if task.process.poll() is None]
        for task in tasks:
            if task.process.poll():
                tail = '\n'.join(task.log.read_text().splitlines()[-15:])
                raise InputError(
                    f'{task.name} stopped with status {task.process.returncode}, see {task.log}; it ends:\n{tail}')
        if time.time() - reported > REPORT_SECONDS or not running:
            parts, left = zip(*(progress(task) for task in tasks))
            eta = f' | about {clock(max(left))} of training left' if 0 < max(left) < math.inf else ''
            say(f'  {clock(time.time() - started)}  ' + ' | '.join(parts) + eta)
            reported = time.time()
        if not running:
            return
        time.sleep(0.5)


def enlarge(data: Any) -> Any:
    """Return the truth, or what is predicted with confidence, as it is on the image enlarged ``ENLARGE`` times."""
    if isinstance(data, PixelData):
        return PixelData(data=torch.as_tensor(data.data).repeat_interleave(ENLARGE, 1).repeat_interleave(ENLARGE, 2))
    if 'scores' in data:
        data = data[data.scores > MIN_SCORE]
    masks = data.masks if isinstance(data.masks, torch.Tensor) else torch.as_tensor(data.masks.to_ndarray())
    masks = masks.repeat_interleave(ENLARGE, 1).repeat_interleave(ENLARGE, 2).bool()
    large = InstanceData(bboxes=data.bboxes * ENLARGE, labels=data.labels, masks=masks)
    if 'scores' in data:
        large.scores = data.scores
    return large


def draw_predictions(task: Task, pictures: Path) -> None:
    """Draw the truth (left) beside the saved checkpoint's prediction (right) for the first validation images."""
    cfg = Config.fromfile(task.work_dir / task.config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    read_safely()
    load_checkpoint(model, str(task.checkpoint()), map_location='cpu')
    model = make_padding_invariant(model).eval()
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    visualizer = VISUALIZERS.build({**cfg.visualizer, 'name': task.name, 'vis_backends': None})
    visualizer.dataset_meta = dataset.metainfo
    for index in range(min(PICTURES, len(dataset))):
        with torch.no_grad():
            sample = model.test_step(pseudo_collate([dataset[index]]))[0]
        for name, data in list(sample.items()):
            if name in DRAWN:
                setattr(sample, name, enlarge(data))
        image = cv2.imread(sample.img_path)[..., ::-1].repeat(ENLARGE, 0).repeat(ENLARGE, 1)
        out = pictures / f'{task.work_dir.name}_{Path(sample.img_path).stem}.png'
        visualizer.add_datasample(out.stem, image, sample, out_file=str(out))


def measured(task: Task) -> dict[str, float]:
    """The metrics of the validation at the end of training, as fractions."""
    last = task.records()[-1]
    missing = [key for key, _, _ in task.metrics.values() if key not in last]
    if missing:
        raise InputError(f'{task.name} ended without its validation ({", ".join(missing)} missing): see {task.log}')
    return {name: last[key] * factor for name, (key, factor, _) in task.metrics.items()}


def table(tasks: list[Task], results: dict[str, float], pictures: Path, seconds: float, smoke: bool) -> str:
    """The closing table: metrics, places and the next command."""
    rows = ['', f'{"":10}measured  ' + ('(a smoke run is too short to learn)' if smoke else 'expected')]
    for task in tasks:
        for name, (_, _, expected) in task.metrics.items():
            rows.append(f'{name:10}{results[name]:8.3f}  ' + ('' if smoke else f'>= {expected:.2f}'))
    rows.append(f'{"pictures":12}{pictures}  (truth left, prediction right)')
    rows += [f'{"checkpoint" if not index else "":12}{task.checkpoint()}' for index, task in enumerate(tasks)]
    rows.append(f'{"total time":12}{clock(seconds)} (min:s)')
    first = tasks[0]
    rows.append(f'{"try next":12}{sys.executable} {ROOT / "tools" / "test.py"} \\')
    rows.append(f'{"":12}    {first.work_dir / first.config} \\\n{"":12}    {first.checkpoint()}')
    return '\n'.join(rows)


def run(out: Path, smoke: bool) -> None:
    """Run the whole chain in a new folder below ``out``."""
    started = time.time()
    work_dir = out.resolve() / time.strftime('%Y%m%d_%H%M%S')
    work_dir.mkdir(parents=True)
    say(f'Work folder: {work_dir} (new; nothing is overwritten)')
    data = work_dir / 'shapes' if smoke else DATA
    say('1/4 drawing the Shapes data set')
    draw_data(data, smoke)
    tasks = make_tasks()
    say('2/4 training ' + ' and '.join(task.name for task in tasks) + ' from random weights, then validating')
    with training(tasks, data, work_dir, smoke):
        watch(tasks)
    say('3/4 reading the metrics of pycocotools and mmseg')
    results = {name: value for task in tasks for name, value in measured(task).items()}
    say('4/4 drawing predictions')
    pictures = work_dir / 'pictures'
    with (work_dir / 'draw.log').open('w') as log, redirect_stdout(log), redirect_stderr(log):
        for task in tasks:
            draw_predictions(task, pictures)
    seconds = time.time() - started
    (work_dir / 'results.json').write_text(json.dumps({**results, 'seconds': seconds}))
    say(table(tasks, results, pictures, seconds, smoke))


def main() -> None:
    parser = ArgumentParser(description='Train and evaluate a detector and a segmentor on the Shapes data set.')
    parser.add_argument(
        '--out', type=Path, default=ROOT / 'work_dirs' / 'demo', help='each run makes a new folder here (%(default)s)')
    parser.add_argument(
        '--smoke', action='store_true', help='the whole chain on a few images and iterations: shows that it runs')
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the trainings are ended too
    run(args.out, args.smoke)


if __name__ == '__main__':
    run_tool(main)
