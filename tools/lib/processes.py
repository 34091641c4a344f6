"""Starting the processes of one run, on GPUs or on the CPU, and letting one of them decide for all."""
from __future__ import annotations

import datetime
import gc
import os
import sys
from collections.abc import Callable
from typing import TypeVar

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import broadcast_object_list, init_dist, is_distributed, is_main_process
from mmengine.utils.dl_utils import set_multi_processing

from swin_rpe_mm.errors import InputError

T = TypeVar('T')


def start_processes(cfg: Config) -> list[str]:
    """Join the other processes that ``cfg.launcher`` has started; return lines for the log.

    Without a GPU the processes talk through gloo, which mmengine alone cannot set up: it selects a CUDA device in any
    case.
    """
    if cfg.launcher == 'none':
        return []
    if cfg.launcher == 'pytorch' and 'RANK' not in os.environ:
        raise InputError('--launcher pytorch is for processes started by torchrun: use tools/dist_train.sh or '
                         'tools/dist_test.sh')
    cfg.setdefault('env_cfg', {})
    dist_cfg = cfg.env_cfg.setdefault('dist_cfg', {})
    set_multi_processing(**cfg.env_cfg.get('mp_cfg', {}), distributed=True)
    if get_device() != 'cpu':
        init_dist(cfg.launcher, **dist_cfg)
        return []
    if cfg.launcher != 'pytorch':
        raise InputError(f'--launcher {cfg.launcher} needs GPUs, and PyTorch finds none here: use --launcher pytorch '
                         'with torchrun, or no launcher')
    dist_cfg.backend = 'gloo'
    timeout = {'timeout': datetime.timedelta(seconds=dist_cfg.timeout)} if 'timeout' in dist_cfg else {}
    torch.distributed.init_process_group('gloo', **timeout)
    wrapper = cfg.get('model_wrapper_cfg') or dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False))
    cfg.model_wrapper_cfg = dict(wrapper, device_ids=None)
    return ['there is no GPU: the processes run on the CPU and talk through gloo']


def end_process() -> None:
    """Leave the other processes in good order, if there are any; for the very end of a program.

    With gloo this ends the program: its threads may still be running when the interpreter takes them down, which now
    and then aborts a process whose work is done.
    """
    if not is_distributed():
        return
    gc.collect()  # data loaders stop their workers when they are collected
    with_gloo = torch.distributed.get_backend() == 'gloo'
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    if with_gloo:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def on_main_process(check: Callable[[], T]) -> T:
    """Run ``check`` on the main process only, and give its result to all.

    If it raises :class:`InputError`, the main process raises it and the others exit quietly with the same status.
    """
    outcome: list = [None, None]
    if is_main_process():
        try:
            outcome[0] = check()
        except InputError as error:
            outcome[1] = error
    if is_distributed():
        broadcast_object_list(outcome)
    if outcome[1] is None:
        return outcome[0]
    if is_main_process():
        raise outcome[1]
    raise SystemExit(2)
