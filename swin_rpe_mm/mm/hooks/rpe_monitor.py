"""What position encodings do to attention while a model is trained."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import partial

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...errors import InputError
from ...models import Swin, WindowAttention
from ...registry import HOOKS
from ...visualization.statistics import logit_statistics, saturated_share, total_norm
from ...visualization.window_logits import spread_windows, window_logits
from ...windows import WindowLayout

_LARGEST_TEMPERATURE = math.log(100)  # of cosine attention, arXiv 2111.09883
# columns of the table in the text log, and what they are called there
_COLUMNS = dict(
    content_std='content std', content_max='max', bias_std='bias std', bias_max='max', ratio='ratio',
    entropy='entropy', saturated='saturated', clamped='clamped', bias_grad_norm='grad norm')


@HOOKS.register_module()
class RPEMonitorHook(Hook):
    """Log every ``interval`` iterations what content and position encoding give to the attention of each layer.

    Logits of a few windows, always the same ones of a layout, are computed once more when the model runs, without
    gradients; training computes the same, but for rounding, and no random number is drawn. Figures go through the
    visualizer to all its backends (json files, TensorBoard, W&B), as ``rpe/LAYER/NAME`` with a layer such as
    ``stages.0.blocks.1``, and as a table to the text log:

    * ``content_mean``, ``content_std``, ``content_max``: of the logits without bias. The standard deviation is that
      over the keys of a query, since softmax does not see more; the maximum is that of the magnitude.
    * ``bias_mean``, ``bias_std``, ``bias_max``: the same of the bias. Encodings that rotate have none.
    * ``ratio``: ``bias_std / content_std``. Far above 1, the content of an image hardly matters.
    * ``entropy``: of the attention weights, mean over queries as a share of the largest possible.
    * ``saturated``: the share of the sigmoids of ``LogCPB`` and ``DynamicRPE`` that lie within 0.01 of an end.
    * ``clamped``: with cosine attention, the share of heads whose temperature is at its limit.
    * ``bias_grad_norm``: norm of the gradient of the encoding's parameters as the optimizer's step gets it: summed over
      accumulated iterations, averaged over processes, without the loss scale of mixed precision, and clipped. Where an
      iteration makes no step, figures are logged at the next one that does.

    A warning names a layer once when its ratio exceeds ``max_ratio``, and once when a figure is not finite.

    In a training on several processes, the main one looks at its own images alone.

    Args:
        interval (int): Iterations between two measurements.
        layers (str | Sequence[str], optional): Layers to look at, as patterns such as ``'stages.0.*'``. None means all.
        windows (int): How many windows of a layer to look at.
        max_ratio (float): The ratio from which a bias drowns the content.

    Raises:
        InputError: If an argument is not allowed, or at the start of training if the model has no such layer.
    """

    def __init__(self, interval: int = 100, layers: str | Sequence[str] | None = None, windows: int = 8,
                 max_ratio: float = 10.):
        for name, value in dict(interval=interval, windows=windows).items():
            if type(value) is not int or value < 1:
                raise InputError(f'{name} of RPEMonitorHook must be a whole number from 1, got {value!r}')
        if isinstance(max_ratio, bool) or not isinstance(max_ratio, (int, float)) or not max_ratio > 0:
            raise InputError(f'max_ratio of RPEMonitorHook must be a positive number, got {max_ratio!r}')
        patterns = ('*', ) if layers is None else (layers, ) if isinstance(layers, str) else layers
        if not isinstance(patterns, (list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
            raise InputError('layers of RPEMonitorHook must be None, or one or several patterns such as '
                             f"'stages.0.*', got {layers!r}")
        self.interval, self.patterns, self.windows, self.max_ratio = interval, patterns, windows, max_ratio
        self._layers: dict[str, WindowAttention] = {}
        self._handles: list = []
        self._found: dict[str, dict[str, Tensor]] = {}
        self._waits = False  # for the optimizer's step
        self._warned: set[tuple[str, str]] = set()

    def before_train(self, runner) -> None:
        self._layers = _chosen(runner.model, self.patterns) if is_main_process() else {}

    def before_train_iter(self, runner, batch_idx: int, data_batch: dict | None = None) -> None:
        if not self._layers or not self.every_n_train_iters(runner, self.interval):
            return
        self._log(runner, runner.iter)  # what waits for a step of the optimizer that was not made
        self._handles = [
            attention.register_forward_pre_hook(partial(self._look, name)) for name, attention in self._layers.items()
        ]
        self._handles.append(register_optimizer_step_pre_hook(self._take_gradients))
        self._waits = True

    def after_train_iter(self, runner, batch_idx: int, data_batch: dict | None = None,
                         outputs: dict | None = None) -> None:
        if self._found and not self._waits:
            self._log(runner, runner.iter + 1)

    def after_train(self, runner) -> None:
        self._log(runner, runner.iter)

    def _look(self, name: str, attention: WindowAttention, args: tuple) -> None:
        # checkpointed blocks run again in the backward pass, and a model may run its backbone more than once
        if name not in self._found:
            self._found[name] = _statistics(attention, self.windows, *args)

    def _take_gradients(self, optimizer: torch.optim.Optimizer, *_) -> None:
        # this is where gradients are complete: before it they may be partial or scaled, after it they are cleared
        self._waits = False
        scale = getattr(optimizer, 'grad_scale', None)  # fused optimizers take the loss scale out themselves
        for name, found in self._found.items():
            norm = _gradient_norm(self._layers[name])
            if norm is not None:
                found['bias_grad_norm'] = norm if scale is None else norm / scale.to(norm.device)

    def _log(self, runner, iteration: int) -> None:
        for handle in self._handles:
            handle.remove()
        layers = {name: _numbers(found) for name, found in self._found.items()}
        self._handles, self._found = [], {}
        if not layers:
            return
        runner.logger.info(f'position encodings and content in attention, iteration {iteration}:\n{_table(layers)}')
        scalars = {f'rpe/{name}/{key}': value for name, found in layers.items() for key, value in found.items()}
        runner.visualizer.add_scalars(
            dict(iter=iteration, **scalars), step=iteration, file_path=f'{runner.timestamp}.json')
        for name, found in layers.items():
            for kind, sentence in _complaints(name, found, self.max_ratio):
                if (name, kind) not in self._warned:
                    self._warned.add((name, kind))
                    runner.logger.warning(f'iteration {iteration}: {sentence}')


def _chosen(model: nn.Module, patterns: Sequence[str]) -> dict[str, WindowAttention]:
    """Layers whose short names match, by these names: those of their blocks, or their own where they are in none."""
    model = model.module if is_model_wrapper(model) else model
    backbones = [module for module in model.modules() if isinstance(module, Swin)]
    root = backbones[0] if len(backbones) == 1 else model
    layers = {name.removesuffix('.attn.w_msa'): module for name, module in root.named_modules()
              if isinstance(module, WindowAttention)}
    if not layers:
        raise InputError('RPEMonitorHook needs a model with window attention, such as one on SwinRPE, and '
                         f'{type(model).__name__} has none')
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in layers):
            raise InputError(f'layers of RPEMonitorHook holds {pattern!r}, which matches none of {", ".join(layers)}')
    return {name: layer for name, layer in layers.items() if any(fnmatch(name, pattern) for pattern in patterns)}


@torch.no_grad()
def _statistics(attention: WindowAttention, windows: int, x: Tensor, layout: WindowLayout) -> dict[str, Tensor]:
    """Figures of one call of a layer, which got the arguments from ``x`` on."""
    logits = window_logits(attention, spread_windows(layout, windows), x, layout)
    found = logit_statistics(logits.content, logits.bias, logits.visible, logits.queries)
    if logits.sigmoids:
        found['saturated'] = saturated_share(logits.sigmoids)
    if attention.logit_scale is not None:
        found['clamped'] = (attention.logit_scale >= _LARGEST_TEMPERATURE).float().mean()
    return found


def _gradient_norm(attention: WindowAttention) -> Tensor | None:
    encodings = [rpe for rpe in (attention.rpe, attention.pooled_rpe) if rpe is not None]
    gradients = [p.grad for rpe in encodings for p in rpe.parameters() if p.grad is not None]
    return total_norm(gradients) if gradients else None


def _numbers(found: dict[str, Tensor]) -> dict[str, float]:
    numbers = {key: float(value) for key, value in found.items()}
    if numbers.get('bias_std') is not None and numbers['content_std'] != 0:
        numbers['ratio'] = numbers['bias_std'] / numbers['content_std']
    return numbers


def _complaints(name: str, found: dict[str, float], max_ratio: float) -> Iterator[tuple[str, str]]:
    """Kind and sentence of what is wrong with a layer."""
    wrong = [key for key, value in found.items() if not math.isfinite(value)]
    if wrong:
        yield 'finite', f'layer {name} has figures of attention that are not finite: {", ".join(wrong)}'
    elif found.get('ratio', 0) > max_ratio:
        yield 'ratio', (f'the position encoding of layer {name} drowns the content: over the keys of a query, its bias '
                        f'varies {found["ratio"]:.1f} times as much as the logits it is added to, more than max_ratio='
                        f'{max_ratio:g}')


def _table(layers: dict[str, dict[str, float]]) -> str:
    """The figures of all layers, a line for each."""
    columns = {key: title for key, title in _COLUMNS.items() if any(key in found for found in layers.values())}
    rows = [['layer', *columns.values()]]
    for name, found in layers.items():
        rows.append([name, *(f'{found[key]:.3g}' if key in found else '-' for key in columns)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return '\n'.join('  '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)
