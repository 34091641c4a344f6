"""From a config to a runner that is ready to go."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from swin_rpe_mm.mm.checkpoint_files import read_safely
from swin_rpe_mm.mm.configs import add_hooks, check_checkpoints, check_ops, find_data, without_sync_bn
from tools.lib.data_checks import check_data
from tools.lib.processes import on_main_process, start_processes


def prepare_run(cfg: Config, splits: Sequence[str], trust_checkpoint: bool = False) -> list[str]:
    """Start the processes, and check on the main one what the run will read; return lines for the log.

    Args:
        cfg (Config): The config, which is completed.
        splits (Sequence[str]): Whose data to check: ``train``, ``val``, ``test``.
        trust_checkpoint (bool): Whether checkpoints may run code, see
            :func:`~swin_rpe_mm.checkpoints.read_checkpoint`.
    """
    check_ops(cfg)
    read_safely(trust_checkpoint)
    notes = start_processes(cfg)
    notes += find_data(cfg)
    notes += without_sync_bn(cfg)
    add_hooks(cfg)

    def check() -> str:
        check_checkpoints(cfg)
        return str(check_data(cfg, splits))

    return [*notes, on_main_process(check)]


def build_runner(cfg: Config, notes: Iterable[str]) -> Runner:
    """Build the runner that the config asks for, and put ``notes`` into its log."""
    runner = Runner.from_cfg(cfg) if 'runner_type' not in cfg else RUNNERS.build(cfg)
    for note in notes:
        print_log(note, logger='current')
    return runner
