"""Checkpoints that survive a kill at any moment."""
from __future__ import annotations

from mmengine.hooks import CheckpointHook

from ... import whole_files  # noqa: F401, registers the storage
from ...registry import HOOKS


@HOOKS.register_module()
class WholeCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook``, whose files are always complete.

    Takes the same arguments. A checkpoint appears under its name only when it is complete, and those that
    ``max_keep_ckpts`` or a better one make superfluous go only once the next one is there.
    """

    def __init__(self, *args, **kwargs):
        kwargs.setdefault('backend_args', dict(backend='swin_rpe_mm.whole_files'))
        super().__init__(*args, **kwargs)

    def before_train(self, runner) -> None:
        super().before_train(runner)
        self.file_backend.remove_outdated()

    def after_train_iter(self, runner, *args, **kwargs) -> None:
        super().after_train_iter(runner, *args, **kwargs)
        self.file_backend.remove_outdated()

    def after_train_epoch(self, runner) -> None:
        super().after_train_epoch(runner)
        self.file_backend.remove_outdated()

    def after_val_epoch(self, runner, metrics) -> None:
        super().after_val_epoch(runner, metrics)
        if hasattr(self, 'file_backend'):  # absent in a validation without training
            self.file_backend.remove_outdated()
