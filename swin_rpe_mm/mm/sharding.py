"""Weights spread over processes: mmengine's ``FSDPStrategy`` for models with a Swin in them."""
from typing import Any, Optional

from mmengine._strategy import FSDPStrategy
from mmengine.device import get_device
from mmengine.dist import is_distributed
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from ..errors import InputError
from ..models import SwinBlock


def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """For ``auto_wrap_policy``: each block is gathered alone, all else together with the model."""
    return recurse or isinstance(module, SwinBlock)


class SwinFSDPStrategy(FSDPStrategy):
    """Gathers one block at a time, writes whole checkpoints, resumes, and runs on CPUs too.

    Args:
        model_wrapper (dict, optional): Arguments of mmengine's ``MMFullyShardedDataParallel``.
        state_dict_cfg (str | dict): As in mmengine. ``full`` is one file with the names of a model in one piece.
        **kwargs: Other arguments of mmengine's ``FSDPStrategy``.

    Raises:
        InputError: Where there are no processes to spread it over.
    """

    def __init__(self, *, model_wrapper: Optional[dict] = None, state_dict_cfg: Any = 'full', **kwargs):
        on_cpu = get_device() == 'cpu'
        wrapper = dict(type='MMFullyShardedDataParallel', auto_wrap_policy=wrap_blocks)
        if on_cpu:
            wrapper['device_id'] = 'cpu'
        super().__init__(model_wrapper={**wrapper, **(model_wrapper or {})}, state_dict_cfg=state_dict_cfg, **kwargs)
        if not is_distributed():
            raise InputError('SwinFSDPStrategy spreads a model over processes, and here is one alone: use '
                             'tools/dist_train.sh or tools/dist_test.sh')
        if on_cpu or self.world_size == 1:
            # PyTorch frees what is on the CPU already, as if it had made a copy, and refuses where nothing is sharded
            self.state_dict_config.offload_to_cpu = self.optim_state_dict_config.offload_to_cpu = False

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """As mmengine's, which gives the arguments in an order that PyTorch has left with 2.1."""
        optimizer = self.optim_wrapper.optimizer
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(
                model=self.model, optim=optimizer, optim_state_dict=state_dict))
