"""The backbone of a config with its weights, and images as the model gets them."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope
from torch import Tensor, nn

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.checkpoints import load_pretrained
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.checkpoint_files import check_checkpoint
from swin_rpe_mm.mm.configs import check_ops, leaf_datasets, require, type_name
from swin_rpe_mm.mm.extents import attach_extents, get_extents

# ImageNet's, in RGB, with which every published Swin was trained
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Sample(NamedTuple):
    """One image.

    Attributes:
        images (Tensor): What the backbone gets, ``(1, 3, H, W)``, with extents if the data preprocessor tells them.
        picture (np.ndarray): The image's content as it was before it was normalised, RGB, ``(h, w, 3)`` uint8.
        name (str): Its file.
        file_size (tuple[int, int]): Height and width of the file's image.
    """
    images: Tensor
    picture: np.ndarray
    name: str
    file_size: tuple[int, int]

    @property
    def extents(self) -> tuple[tuple[int, int], ...] | None:
        """Height and width of the image's content in ``images``, one pair; None means all of it."""
        return get_extents(self.images)

    def place_of(self, point: tuple[int, int]) -> tuple[int, int]:
        """Row and column in ``picture`` of a pixel of the file."""
        return tuple(at * side // of for at, side, of in zip(point, self.picture.shape, self.file_size))


class Subject(NamedTuple):
    """What is looked at.

    Attributes:
        model (nn.Module): The model of the config; the backbone itself if it has nothing else.
        backbone (SwinRPE): Its backbone, in evaluation mode.
        weights (str): Where the weights come from, in words.
    """
    model: nn.Module
    backbone: SwinRPE
    weights: str


def build_subject(cfg: Config, checkpoint: str | None, trust: bool = False) -> Subject:
    """Build the model, and give its backbone the weights of a checkpoint or those that training would start with.

    Args:
        cfg (Config): Config of a detector, a segmentor, or a backbone alone.
        checkpoint (str, optional): Any checkpoint that SwinRPE reads: the model's, or a backbone's.
        trust (bool): Whether the checkpoint may run code.

    Raises:
        InputError: If the config has no SwinRPE, or the checkpoint cannot be read or does not fit.
    """
    require(cfg, 'model')
    if checkpoint:
        check_checkpoint(checkpoint)
    if type_name(cfg.model) != 'SwinRPE' and cfg.get('default_scope') != 'mmseg':
        check_ops(cfg)
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.eval()  # not in one line: some backbones of mmdet and mmseg return nothing
    backbone = next((module for module in model.modules() if isinstance(module, SwinRPE)), None)
    if backbone is None:
        name = type(getattr(model, 'backbone', model)).__name__
        raise InputError(f'{cfg.filename} has the backbone {name}; this tool needs SwinRPE')
    if checkpoint:
        load_pretrained(backbone, checkpoint, trust=trust)
        return Subject(model, backbone, f'weights of {Path(checkpoint).name}')
    backbone.init_weights()
    source = (backbone.init_cfg or {}).get('checkpoint')
    words = f"initial weights from the config's init_cfg, {Path(source).name}" if source else 'initial, random weights'
    return Subject(model, backbone, f'no checkpoint: {words}')


def sample_of_file(cfg: Config, model: nn.Module, path: str) -> Sample:
    """An image file, through the config's pipeline of validation without its annotations.

    Raises:
        InputError: If the file is not there or holds no image.
    """
    if not Path(path).is_file():
        raise InputError(f'--image must name an image file, and {path} does not exist')
    image = mmcv.imread(path)
    if image is None:
        raise InputError(f'--image must name an image file, and {path} holds none that can be read')
    loader = cfg.get('val_dataloader') or cfg.get('test_dataloader') or {}
    datasets = list(leaf_datasets(loader['dataset'])) if loader.get('dataset') else []
    pipeline = [step for step in (datasets[0].get('pipeline') or [] if datasets else [])
                if 'Annotations' not in type_name(step)]
    if not pipeline:
        plain = torch.from_numpy(image.transpose(2, 0, 1).copy())
        return _sample(cfg, model, dict(inputs=plain), path, image.shape[:2])
    data = Compose(pipeline)(dict(img_path=path, img_id=0, reduce_zero_label=False, seg_fields=[]))
    return _sample(cfg, model, data, path, image.shape[:2])


def samples_of_data(cfg: Config, model: nn.Module, number: int) -> Iterator[Sample]:
    """The first images of the data set for validation.

    Raises:
        InputError: If there is none, or it cannot be read.
    """
    loader = cfg.get('val_dataloader') or cfg.get('test_dataloader') or {}
    if not loader.get('dataset'):
        raise InputError(f'{cfg.filename} names no data set to take an image from: name one with --image')
    try:
        dataset = DATASETS.build(loader['dataset'])
        if len(dataset) == 0:
            raise InputError(f'the val data set of {cfg.filename} is empty: name an image with --image')
        for index in range(min(number, len(dataset))):
            data = dataset[index]
            info = data['data_samples'].metainfo
            yield _sample(cfg, model, data, str(info.get('img_path', f'image {index}')),
                          tuple(info.get('ori_shape', data['inputs'].shape[-2:]))[:2])
    except FileNotFoundError as error:
        raise InputError(f'the val data set of {cfg.filename} is not there ({error.filename or error}): name an image '
                         'with --image') from error


def _sample(cfg: Config, model: nn.Module, data: dict, name: str, file_size: tuple[int, int]) -> Sample:
    preprocessor = getattr(model, 'data_preprocessor', None)
    if isinstance(model, SwinRPE) or preprocessor is None:
        images = (data['inputs'].float().flip(0) - _column(_MEAN)) / _column(_STD)
        images = attach_extents(images[None], [images.shape[-2:]])
        return Sample(images, _picture(images, _MEAN, _STD, True), name, file_size)
    if 'data_samples' not in data:
        return _sample(cfg, nn.Identity(), data, name, file_size)
    images = preprocessor(pseudo_collate([data]))['inputs']
    settings = cfg.model.get('data_preprocessor') or {}
    if images.ndim != 4:
        raise InputError(f'the data preprocessor of {cfg.filename} must give images (B, C, H, W), got the shape '
                         f'{tuple(images.shape)}')
    return Sample(images, _picture(images, settings.get('mean'), settings.get('std'),
                                   bool(settings.get('bgr_to_rgb'))), name, file_size)


def _column(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def _picture(images: Tensor, mean, std, rgb: bool) -> np.ndarray:
    """The content of the first image in the colours that its file has."""
    height, width = (get_extents(images) or (images.shape[-2:], ))[0]
    image = images[0, :, :height, :width].detach()
    if mean is not None and std is not None:
        image = image * _column(std) + _column(mean)
    if len(image) != 3:
        image = image.mean(0, keepdim=True).expand(3, -1, -1)
    return (image if rgb else image.flip(0)).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
