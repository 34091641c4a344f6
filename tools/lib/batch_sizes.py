"""How a checkpoint does at one test batch size: AP or mIoU to four decimals, and the time that the model takes."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from tempfile import TemporaryDirectory

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.fileio import get_local_path, load
from mmengine.runner import Runner
from torch import nn

from swin_rpe_mm.mm.configs import as_list, task_of, type_name

_AP = dict(bbox='box AP', segm='mask AP')


def take_mixed_sizes(cfg: Config) -> list[str]:
    """Let a segmentor be tested on batches of images of different sizes, which mmseg's own preprocessor refuses."""
    preprocessor = cfg.model.get('data_preprocessor')
    if task_of(cfg) != 'segmentation' or type_name(preprocessor or {}) != 'SegDataPreProcessor':
        return []
    preprocessor['type'] = 'swin_rpe_mm.SegDataPreprocessor'
    return ["mmseg's data preprocessor takes images of one size per batch: taking swin_rpe_mm.SegDataPreprocessor"]


def evaluate(model: nn.Module, cfg: Config, batch_size: int,
             advance: Callable[[int], None] = lambda images: None) -> dict[str, float]:
    """Test a model on the config's test set.

    Args:
        model (nn.Module): A detector or segmentor with its weights.
        cfg (Config): The config with ``test_dataloader`` and ``test_evaluator``.
        batch_size (int): Images per batch.
        advance (Callable): Called with the number of images after each batch.

    Returns:
        dict[str, float]: ``box AP``, ``mask AP``, ``mIoU`` and what comes with it as fractions, as far as the
        evaluators have them, other metrics as their evaluator gives them, and ``seconds per image``, which is the
        model's time with its data preprocessor, without loading and evaluating.
    """
    loader = Runner.build_dataloader({**cfg.test_dataloader, 'batch_size': batch_size})
    evaluator = Evaluator(as_list(cfg.test_evaluator))
    evaluator.dataset_meta = loader.dataset.metainfo
    was_training, seconds, images = model.training, 0., 0
    model.eval()
    with torch.no_grad():
        for data in loader:
            start = _now()
            samples = model.test_step(data)
            seconds += _now() - start
            evaluator.process(samples, data)
            images += len(samples)
            advance(len(samples))
    model.train(was_training)
    found = {}
    for metric, settings in zip(evaluator.metrics, as_list(cfg.test_evaluator)):
        found.update(_average_precisions(metric, settings, images) if _has_precise_ap(settings) else
                     _others(metric, settings, images))
    return {**found, 'seconds per image': seconds / images}


def _now() -> float:
    """The time when all that was asked of the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _has_precise_ap(settings: dict) -> bool:
    """Whether AP is taken from pycocotools, because the evaluator rounds it to three decimals."""
    return (type_name(settings) == 'CocoMetric' and settings.get('ann_file') is not None
            and all(kind in _AP for kind in as_list(settings.get('metric', 'bbox'))))


def _average_precisions(metric: BaseMetric, settings: dict, images: int) -> dict[str, float]:
    """As mmdet's ``CocoMetric`` computes them, from the files that it writes."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval
    found = {}
    with TemporaryDirectory() as folder, _quiet(), get_local_path(settings['ann_file']) as annotations:
        metric.format_only, metric.outfile_prefix = True, f'{folder}/results'
        metric.evaluate(images)
        truth = COCO(annotations)
        for kind in metric.metrics:
            predictions = load(f'{folder}/results.{kind}.json')
            if kind == 'segm':
                for one in predictions:  # else pycocotools takes the box's area for the mask's
                    one.pop('bbox', None)
            if not predictions:
                found[_AP[kind]] = 0.
                continue
            evaluation = COCOeval(truth, truth.loadRes(predictions), kind)
            evaluation.params.catIds, evaluation.params.imgIds = metric.cat_ids, metric.img_ids
            evaluation.params.maxDets, evaluation.params.iouThrs = list(metric.proposal_nums), metric.iou_thrs
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            found[_AP[kind]] = float(evaluation.stats[0])
    return found


def _others(metric: BaseMetric, settings: dict, images: int) -> dict[str, float]:
    """As the evaluator gives them; those of mmseg's ``IoUMetric`` are percentages with two decimals."""
    unit = 100 if type_name(settings) == 'IoUMetric' else 1
    return {name: float(value) / unit for name, value in metric.evaluate(images).items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without pycocotools' own prints."""
    with redirect_stdout(StringIO()):
        yield
