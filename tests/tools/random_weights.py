"""A checkpoint without a training."""
from __future__ import annotations

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn


def save_random_weights(config: str, path: Path) -> nn.Module:
    """Write a checkpoint of the config's model with random weights; return the model, ready to predict."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    torch.save(model.state_dict(), path)
    return model.eval()
