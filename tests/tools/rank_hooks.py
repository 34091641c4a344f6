"""Hooks for the tests with several processes: look into each one, and end it at the worst moment."""
import os
import signal

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class SaveEachRank(Hook):
    """Save what each process ends with: its weights, and the images that it has seen in the last epoch."""

    def before_train_epoch(self, runner) -> None:
        self.seen = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        self.seen += [sample.img_path for sample in data_batch['data_samples']]

    def after_train(self, runner) -> None:
        content = dict(weights=runner.model.module.state_dict(), seen=self.seen, iter=runner.iter)
        torch.save(content, os.path.join(runner.work_dir, f'rank_{runner.rank}.pt'))


@HOOKS.register_module()
class KillAt(Hook):
    """Kill the process after some iteration, so that nothing can be saved or cleaned up."""

    def __init__(self, iteration: int):
        self.iteration = iteration

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)
