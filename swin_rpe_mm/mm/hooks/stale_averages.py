"""An optimizer that is resumed for other windows."""
from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict

from ...registry import HOOKS
from ...rpe.replacing import drop_stale_averages


@HOOKS.register_module()
class StaleAveragesHook(Hook):
    """Let a training be resumed with another window.

    Tables are read for it, so that they have another shape than the running averages of the optimizer in the file, with
    which no step can be made: these start anew, those of all other parameters go on.
    """

    def before_train(self, runner) -> None:
        wrappers = runner.optim_wrapper
        for wrapper in wrappers.values() if isinstance(wrappers, OptimWrapperDict) else [wrappers]:
            dropped = drop_stale_averages(wrapper.optimizer)
            if dropped:
                runner.logger.info('parameters of another shape than in the checkpoint, whose running averages start '
                                   f'anew: {dropped}')
