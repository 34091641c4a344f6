"""What became of a checkpoint that a whole model was loaded from."""
from __future__ import annotations

from collections import OrderedDict

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from ...checkpoints import LoadReport, find_prefix, innermost, unwrap
from ...errors import InputError
from ...registry import HOOKS
from ..backbone import SwinRPE


@HOOKS.register_module()
class CheckpointReportHook(Hook):
    """Log in one line how much of a checkpoint the model took; raise ``InputError`` if it took nothing.

    What counts is which tensors of the model were written, after every conversion and resizing that its parts do at
    load: a key of the right name but of another shape is missing. Tensors of a sharded model do not tell; there names
    count, and another shape is PyTorch's error.
    """
    _model = None

    def before_run(self, runner) -> None:
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        if model is not self._model:
            self._model, self._runner, self._versions = model, runner, None
            model.register_load_state_dict_post_hook(self._after_load)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        self.before_run(runner)  # FlexibleRunner loads before it tells its hooks that the run begins
        self._weights_only = not {'meta', 'message_hub'} <= set(checkpoint)
        _name_weights(self._model, checkpoint)
        self._names = set(innermost(checkpoint))
        self._versions = {} if _is_sharded(self._model) else _versions(self._model)

    def _after_load(self, model: nn.Module, incompatible) -> None:
        if self._versions is None:
            return
        before, self._versions = self._versions, None
        if before:
            matched = [key for key, version in _versions(model).items() if version != before[key]]
            missing = set(before) - set(matched)
        else:
            matched, missing = self._names - set(incompatible.unexpected_keys), incompatible.missing_keys
        report = LoadReport(sorted(matched), sorted(missing), sorted(incompatible.unexpected_keys))
        source = f'checkpoint {self._runner.cfg.get("load_from") or ""}'.strip()
        report.check(source, f'the model ({type(model).__name__})')
        if self._runner.cfg.get('resume') and self._weights_only:
            raise InputError(f'{source} holds weights, not the state of a training: start from it with --cfg-options '
                             'load_from=FILE, and without --resume')
        self._runner.logger.info(f'{source}: {report}')
        if report.details():
            self._runner.logger.debug(f'{source}: {report.details()}')


def _name_weights(model: nn.Module, checkpoint: dict) -> None:
    """Give the weights of a file the names they have in ``model``: those of a whole model in wrappers, or of a Swin
    alone, of whatever project, which go into the backbone."""
    name = next((name for name, module in model.named_modules() if isinstance(module, SwinRPE)), '')
    state_dict = innermost(checkpoint)
    prefix = find_prefix(state_dict)
    if not name or prefix is None:
        return
    if prefix.endswith(f'{name}.'):
        weights, place = unwrap(checkpoint, prefix[:-len(name) - 1]) if prefix != f'{name}.' else state_dict, ''
    else:
        weights, place = unwrap(checkpoint), f'{name}.'
    named = OrderedDict((place + key, value) for key, value in weights.items())
    named._metadata = {(place + key).rstrip('.'): value for key, value in getattr(weights, '_metadata', {}).items()}
    checkpoint['state_dict'] = named


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def _versions(model: nn.Module) -> dict[str, int]:
    """How often each tensor of the model has been written in place."""
    return {key: tensor._version for key, tensor in model.state_dict().items()}
