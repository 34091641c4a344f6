"""What became of a checkpoint that a whole model was loaded from."""
from __future__ import annotations

from collections import OrderedDict

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import nn

from ...checkpoints import LoadReport, find_prefix, unwrap
from ...models import SwinRPE
from ...registry import HOOKS


@HOOKS.register_module()
class CheckpointReportHook(Hook):
    """Log in one line how much of a checkpoint the model took; raise ``InputError`` if it took nothing.

    What counts is which tensors of the model were written, after every conversion and resizing that its parts do at
    load: a key of the right name but of another shape is missing.
    """

    def before_run(self, runner) -> None:
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        self._model, self._runner, self._versions = model, runner, None
        model.register_load_state_dict_post_hook(self._after_load)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        _name_backbone(self._model, checkpoint)
        self._versions = _versions(self._model)

    def _after_load(self, model: nn.Module, incompatible) -> None:
        if self._versions is None:
            return
        before, self._versions = self._versions, None
        matched = [key for key, version in _versions(model).items() if version != before[key]]
        report = LoadReport(matched, sorted(set(before) - set(matched)), sorted(incompatible.unexpected_keys))
        source = f'checkpoint {self._runner.cfg.get("load_from") or ""}'.strip()
        report.check(source, f'the model ({type(model).__name__})')
        self._runner.logger.info(f'{source}: {report}')


def _name_backbone(model: nn.Module, checkpoint: dict) -> None:
    """Have a file of a Swin alone, of whatever project, loaded into the backbone of ``model``."""
    name = next((name for name, module in model.named_modules() if isinstance(module, SwinRPE)), '')
    state_dict = checkpoint.get('state_dict', checkpoint)
    if not name or any(key.removeprefix('module.').startswith(f'{name}.') for key in state_dict):
        return
    weights = unwrap(checkpoint)
    if find_prefix(weights) is not None:
        named = OrderedDict((f'{name}.{key}', value) for key, value in weights.items())
        named._metadata = {f'{name}.{key}'.rstrip('.'): value for key, value in weights._metadata.items()}
        checkpoint['state_dict'] = named


def _versions(model: nn.Module) -> dict[str, int]:
    """How often each tensor of the model has been written in place."""
    return {key: tensor._version for key, tensor in model.state_dict().items()}
