"""configs/rpe: every encoding on every recipe, and nothing else changed; they build, learn, and do not decay."""
import re
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData
from torch import nn

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.mm.configs import task_of
from swin_rpe_mm.models import SwinBlock
from swin_rpe_mm.rpe import RelativePositionEncoding

CONFIGS = Path(__file__).parents[2] / 'configs'
RECIPES = [
    'demo/mask-rcnn_swin-rpe-nano_fpn_shapes', 'demo/upernet_swin-rpe-nano_shapes',
    'coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_1x_coco',
    'ade20k/swin-rpe-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512'
]
ENCODINGS = sorted(path.stem for path in (CONFIGS / 'rpe/_base_').glob('*.py'))
OTHERS = [name for name in ENCODINGS if name != 'table']  # that one is the recipe itself
V2_WEIGHTS = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/swinv2_tiny_patch4_window8_256.pth'

every_encoding = pytest.mark.parametrize('encoding', OTHERS)
every_recipe = pytest.mark.parametrize('recipe', RECIPES)
every_demo = pytest.mark.parametrize('recipe', [pytest.param(RECIPES[0], marks=pytest.mark.needs_ops), RECIPES[1]])


@lru_cache(maxsize=None)
def read(name: str) -> Config:
    return Config.fromfile(CONFIGS / f'{name}.py')


def config_of(recipe: str, encoding: str) -> Config:
    return read(f'rpe/{recipe}_{encoding}')


def encodings_of(backbone: nn.Module) -> list[RelativePositionEncoding]:
    return [module for module in backbone.modules() if isinstance(module, RelativePositionEncoding)]


def build_backbone(cfg: Config) -> SwinRPE:
    return MODELS.build(dict(cfg.model.backbone, init_cfg=None))


def check_no_decay(model: nn.Module, cfg: Config) -> None:
    """Encodings and SwinV2's temperature do not decay; the layers beside them do."""
    wrapper = build_optim_wrapper(model, ConfigDict(cfg.optim_wrapper))
    decay = {p: group['weight_decay'] for group in wrapper.optimizer.param_groups for p in group['params']}
    spared = [p for encoding in encodings_of(model) for p in encoding.parameters()]
    spared += [p for name, p in model.named_parameters() if name.endswith('logit_scale')]
    assert {decay[p] for p in spared} <= {0.}
    layers = [m.qkv.weight for m in model.modules() if hasattr(m, 'qkv')]
    assert {decay[p] for p in layers} == {cfg.optim_wrapper.optimizer.weight_decay}


def test_there_is_one_config_per_encoding_and_recipe():
    assert len(OTHERS) >= 18
    found = {str(path.relative_to(CONFIGS / 'rpe')) for path in (CONFIGS / 'rpe').glob('*/*.py')
             if path.parent.name != '_base_'}
    assert found == {f'{recipe}_{encoding}.py' for recipe in RECIPES for encoding in OTHERS}


@every_recipe
@every_encoding
def test_only_the_backbone_differs_from_the_recipe(recipe, encoding):
    cfg, plain = config_of(recipe, encoding).to_dict(), read(recipe).to_dict()
    changed = read(f'rpe/_base_/{encoding}').backbone.to_dict()
    if encoding == 'v2' and not recipe.startswith('demo'):
        changed = dict(arch='v2-tiny', init_cfg=dict(type='Pretrained', checkpoint=V2_WEIGHTS))
    plain['model']['backbone'].update(changed)
    for setting in plain:
        if setting != 'pretrained':  # a variable of the recipe, which SwinV2's config sets anew
            assert cfg[setting] == plain[setting], setting
    assert set(cfg) <= {*plain, 'backbone'}


@pytest.mark.parametrize('recipe', RECIPES[2:])
@every_encoding
def test_the_backbone_builds_and_its_encoding_does_not_decay(recipe, encoding):
    cfg = config_of(recipe, encoding)
    backbone = build_backbone(cfg)
    assert bool(encodings_of(backbone)) is (encoding != 'none')
    check_no_decay(nn.ModuleDict(dict(backbone=backbone)), cfg)


def one_batch(task: str) -> dict:
    """Two images of different sizes with a label each."""
    inputs, samples = [], []
    for h, w in ((64, 80), (48, 64)):
        inputs.append(torch.randint(256, (3, h, w), dtype=torch.uint8))
        if task == 'segmentation':
            from mmseg.structures import SegDataSample
            sample = SegDataSample(gt_sem_seg=PixelData(data=torch.randint(5, (1, h, w))))
        else:
            from mmdet.structures import DetDataSample
            from mmdet.structures.mask import BitmapMasks
            mask = torch.zeros(1, h, w, dtype=torch.uint8)
            mask[:, 8:40, 10:44] = 1
            box = torch.tensor([[10., 8, 44, 40]])
            sample = DetDataSample(gt_instances=InstanceData(
                bboxes=box, labels=torch.tensor([1]), masks=BitmapMasks(mask.numpy(), h, w)))
        sample.set_metainfo(dict(img_shape=(h, w), ori_shape=(h, w), pad_shape=(h, w), scale_factor=(1., 1.)))
        samples.append(sample)
    return dict(inputs=inputs, data_samples=samples)


@every_demo
@every_encoding
def test_the_demo_learns_with_it(recipe, encoding):
    """Forward, loss and backward of the whole model; the encoding takes part."""
    cfg = config_of(recipe, encoding)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model.init_weights()
    check_no_decay(model, cfg)
    for block in (module for module in model.modules() if isinstance(module, SwinBlock) and module.norm_after):
        for norm in (block.norm1, block.norm2):  # SwinV2's branches start at zero, where no encoding has a gradient
            torch.nn.init.ones_(norm.weight)
    losses = model(**model.data_preprocessor(one_batch(task_of(cfg)), True), mode='loss')
    loss, _ = model.parse_losses(losses)
    assert torch.isfinite(loss)
    loss.backward()
    gradients = [p.grad for module in encodings_of(model) for p in module.parameters()]
    assert bool(gradients) is (encoding not in ('none', 'rotary-axial'))  # those learn nothing
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert not gradients or max(gradient.abs().max() for gradient in gradients) > 0


def test_readme_counts_the_parameters():
    """The table in the README names every encoding, with the parameters it has in tiny."""
    text = (CONFIGS / 'rpe/README.md').read_text()
    rows = re.findall(r'^\| `([\w-]+)`.*\| ([\d,]+) \| [+\d.]+ \|$', text, re.MULTILINE)
    assert {name for name, _ in rows} == set(ENCODINGS)
    for encoding, count in rows:
        options = read(f'rpe/_base_/{encoding}').backbone.to_dict()
        backbone = SwinRPE(**{'arch': 'tiny', **options, **(dict(arch='v2-tiny') if encoding == 'v2' else {})})
        parameters = {p for module in encodings_of(backbone) for p in module.parameters()}
        assert sum(p.numel() for p in parameters) == int(count.replace(',', '')), encoding
