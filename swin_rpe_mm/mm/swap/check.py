"""Whether a model trains and tests: one step of each on random images, with nothing downloaded."""
from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from ...errors import InputError
from ..backbone import SwinRPE
from ..configs import check_ops, type_name, walk, without_sync_bn
from .random_batches import SIZES, random_batch

# Arguments that hold the address of a checkpoint.
_WEIGHTS = ('pretrained', 'teacher_ckpt', 'eval_teacher_ckpt')
# Where these models take their text encoder from is a hub that has to be asked.
_DOWNLOADS = ('BertModel', )
# Fewer candidates: an untrained model gives no end of them, and none with a high score.
_FEW = dict(nms_pre=100, max_per_img=100, max_num=100, num_queries=100, score_thr=0.)


class CheckFailed(RuntimeError):
    """A model could not be built, trained or tested; ``__cause__`` is what it raised.

    Attributes:
        step (str): ``'building the model'``, ``'the training step'`` or ``'the test step'``.
    """

    def __init__(self, step: str, error: Exception):
        super().__init__(f'{step} failed: {type(error).__name__}: {error}')
        self.step = step


@dataclass(frozen=True)
class CheckResult:
    """What one training step and one test step of a model gave.

    Attributes:
        parameters (int): Numbers in all parameters of the model.
        backbone_parameters (int): Those of its backbones.
        losses (dict[str, float]): Each loss of the training step; empty for models that have none of their own.
        predictions (str): What the test step found, in words.
        without_gradient (tuple[str, ...]): Trainable parameters of backbones that the losses do not reach.
        seconds (float): Time for building and both steps.
    """
    parameters: int
    backbone_parameters: int
    losses: dict[str, float]
    predictions: str
    without_gradient: tuple[str, ...]
    seconds: float


def check(cfg: Config) -> CheckResult:
    """Build the model of a config of MMDetection or MMSegmentation, and take one training and one test step.

    The images are random and small, their boxes, masks or labels fit the model. No weights are loaded and nothing is
    downloaded. The losses must be finite, and every trainable parameter of a backbone must get a finite gradient:
    training in several processes stops at one that gets none, unless the config sets ``find_unused_parameters``.

    Args:
        cfg (Config): The whole config; it stays as it is.

    Returns:
        CheckResult: Parameters, losses, predictions and time.

    Raises:
        InputError: If the config has no model, or one that needs a download or operators that are missing.
        CheckFailed: If the model cannot be built, or one of the steps fails; the original error is its cause.
    """
    start = time.perf_counter()
    cfg = prepare(cfg)
    with torch.random.fork_rng(), of_package(cfg), _quiet():
        torch.manual_seed(0)
        with _step('building the model'):
            model = build(cfg)
            model.init_weights()
        backbones = backbones_of(model)
        with _step('the training step'):
            losses = _train(model, cfg)
            silent = _without_gradient(backbones)
            if losses and silent and not _allows_unused(cfg):
                raise RuntimeError(f'{len(silent)} trainable parameters of the backbone get no gradient, such as '
                                   f'{silent[0]}')
        with _step('the test step'):
            predictions = _test(model, cfg)
    return CheckResult(
        parameters=_count(model), backbone_parameters=sum(_count(backbone) for backbone in backbones.values()),
        losses=losses, predictions=predictions, without_gradient=silent, seconds=time.perf_counter() - start)


def prepare(cfg: Config) -> Config:
    """A copy of a config whose model loads no weights, takes small images and keeps few candidates.

    Raises:
        InputError: See :func:`check`.
    """
    if cfg.get('model') is None:
        raise InputError(f'config {cfg.filename or ""} has no model to check')
    check_ops(cfg)
    cfg = deepcopy(cfg)
    for node in walk(cfg.model):
        if type_name(node) in _DOWNLOADS:
            raise InputError(f'the model holds a {type_name(node)}, which is downloaded when it is built: it cannot be '
                             'checked')
        _drop_weights(node)
        _shrink(node)
    _find_teacher(cfg)
    without_sync_bn(cfg)
    return cfg


def build(cfg: Config) -> nn.Module:
    """The model of a prepared config; where a class asks for batch norms over processes, it gets others too."""
    return revert_sync_batchnorm(MODELS.build(cfg.model))


def backbones_of(model: nn.Module) -> dict[str, nn.Module]:
    """The backbones in a model, by name: every SwinRPE, or what is called ``backbone`` if there is none."""
    modules = dict(model.named_modules())
    ours = {name: module for name, module in modules.items() if isinstance(module, SwinRPE)}
    return ours or {name: module for name, module in modules.items() if name.rpartition('.')[2] == 'backbone'}


def _drop_weights(node: dict) -> None:
    for key in _WEIGHTS:
        if isinstance(node.get(key), str):
            node[key] = None
    initial = node.get('init_cfg')
    if any('checkpoint' in inner for inner in walk(initial)):
        node['init_cfg'] = None


def _shrink(node: dict) -> None:
    for key, few in _FEW.items():
        if isinstance(node.get(key), (int, float)) and node[key] > few:
            node[key] = few
    kind = type_name(node)
    if kind in ('SegDataPreProcessor', 'SegDataPreprocessor') and node.get('size') is not None:
        node['size'] = SIZES[0]
    if kind == 'BatchFixedSizePad':
        node['size'] = SIZES[0]


def _find_teacher(cfg: Config) -> None:
    """A teacher's config is named from the root of its repository: find it in a folder above the config."""
    path = cfg.model.get('teacher_config')
    if not isinstance(path, str) or Path(path).exists():
        return
    for folder in Path(cfg.filename or '').absolute().parents:
        if (folder / path).exists():
            cfg.model.teacher_config = str(folder / path)
            return


@contextmanager
def of_package(cfg: Config) -> Iterator[None]:
    """Look names of types up in the package of the config first, as a runner does."""
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        with MODELS.switch_scope_and_registry(cfg.get('default_scope')):
            yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the line per parameter that mmengine logs while it initialises them."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise CheckFailed(name, error) from error


def _train(model: nn.Module, cfg: Config) -> dict[str, float]:
    """One training step without the optimizer's; the losses, or none for a model that is not trained as a whole."""
    model.train()
    hub = MessageHub.get_current_instance()
    for count in ('epoch', 'iter'):  # by which some losses warm up; a runner would count them
        if count not in hub.runtime_info:
            hub.update_info(count, 0)
    data = model.data_preprocessor(random_batch(model, cfg, training=True), True)
    try:
        losses = model(**data, mode='loss')
    except NotImplementedError:
        return {}
    total, values = model.parse_losses(losses)
    values = {name: float(value.detach()) for name, value in values.items()}
    if not total.isfinite():
        raise RuntimeError(f'the losses are {values}')
    total.backward()
    return values


def _without_gradient(backbones: dict[str, nn.Module]) -> tuple[str, ...]:
    """Names of the trainable parameters that got no gradient."""
    silent = []
    for prefix, backbone in backbones.items():
        for name, parameter in backbone.named_parameters(prefix):
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                raise RuntimeError(f'the gradient of {name} is not finite')
            if parameter.requires_grad and parameter.grad is None:
                silent.append(name)
    return tuple(silent)


def _allows_unused(cfg: Config) -> bool:
    wrapper = cfg.get('model_wrapper_cfg') or {}
    return bool(cfg.get('find_unused_parameters') or wrapper.get('find_unused_parameters'))


def _test(model: nn.Module, cfg: Config) -> str:
    model.eval()
    with torch.no_grad():
        samples = model.test_step(random_batch(model, cfg, training=False))
    return ', '.join(_describe(sample) for sample in samples)


def _describe(sample: Any) -> str:
    """What a data sample predicts: shapes of maps, numbers of objects."""
    if hasattr(sample, 'video_data_samples'):
        return ', '.join(_describe(frame) for frame in sample)
    found = []
    for name in sorted(key for key in sample.keys() if key.startswith('pred_')):
        value = sample.get(name)
        if hasattr(value, 'shape'):
            found.append(f'{name} {"x".join(map(str, value.shape))}')
        else:
            found.append(f'{len(value)} {name}')
    return ' and '.join(found) or 'nothing'


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
