"""Parameters and multiply-adds: against a count by formula, and against the numbers that Swin's paper printed."""
import copy
import json
import math
import random
from contextlib import contextmanager
from pathlib import Path

import mmseg
import pytest
import torch
from mmengine.config import Config
from mmseg.models.backbones import SwinTransformer
from tiny import REPO, load_tool
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from swin_rpe_mm import SwinRPE, attach_extents
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.models.config import ARCHS
from tools.lib.multiply_adds import count_multiply_adds

OURS = dict(detection='configs/coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_1x_coco.py',
            segmentation='configs/ade20k/swin-rpe-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py')
MM = dict(detection='mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
          segmentation='mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py')
# G operations, of which those that are no multiply-adds
PAPER = dict(detection=dict(size=(800, 1280), parameters=48, operations=267, others=0.3),
             segmentation=dict(size=(512, 2048), parameters=60, operations=945, others=0.6))


@pytest.fixture(scope='module')
def tool():
    return load_tool('analysis_tools/get_flops')


# ---- the count by formula


def by_formula(size, batch=1, arch='nano', window=(7, 7), halo=(0, 0), pooled=0, shift=True, encoding=None, buckets=0,
               padding_seen=False, projects_padding=False) -> int:
    """Multiply-adds of a Swin on images of ``size`` pixels."""
    dims, depths, heads = ARCHS[arch]

    def up(sides, step):
        return tuple(-(-side // s) for side, s in zip(sides, step))

    size = up(size, (4, 4))
    total = batch * math.prod(size) * 3 * 16 * dims
    slots = math.prod(window)
    keys = math.prod(w + 2 * h for w, h in zip(window, halo))
    for stage, (depth, head) in enumerate(zip(depths, heads)):
        channels = dims * 2**stage
        tokens = batch * math.prod(size)
        for block in range(depth):
            # windows that do not wrap around are cut short by the first rows and columns
            front = [-(w // 2) % w if pooled and shift and block % 2 else 0 for w in window]
            windows = batch * math.prod(up([side + by for side, by in zip(size, front)], window))
            projected = windows * slots if projects_padding else tokens
            total += 4 * projected * channels**2 + 8 * tokens * channels**2
            total += 3 * channels**2 * padding_seen  # what stands for all padding
            total += 2 * windows * slots * (keys + (2 * pooled + 1)**2 - 1) * channels
            if encoding == 'LogCPB':
                total += math.prod(2 * w + 2 * h - 1 for w, h in zip(window, halo)) * 512 * (2 + head)
            elif encoding == 'DecomposedRPE':
                total += windows * slots * channels * sum(w + 2 * h for w, h in zip(window, halo))
            elif encoding == 'ContextualRPE':  # on q, k and v
                total += windows * (2 * slots + keys) * channels * buckets
            elif encoding == 'DynamicRPE':  # 5 regions of a window
                total += windows * 5 * (slots * channels + channels * 32 + 32 * head)
        if stage < 3:
            size = up(size, (2, 2))
            total += batch * math.prod(size) * 4 * channels * 2 * channels
    return total


def counted(backbone: nn.Module, size, extents=None) -> int:
    backbone.eval()
    images = torch.zeros(len(extents or [size]), 3, *size)
    if extents:
        images = attach_extents(images, extents)
    count = count_multiply_adds(backbone, images)
    assert not count.uncounted
    return count.multiply_adds['']


def sides(draw: random.Random, least: int, most: int):
    return draw.randint(least, most), draw.randint(least, most)


@pytest.mark.parametrize('seed', range(24))
def test_swin_rpe_by_formula(seed):
    draw = random.Random(seed)
    size, window, halo, pooled = sides(draw, 1, 90), sides(draw, 1, 9), (0, 0), draw.choice([0, 0, 1, 2])
    if draw.random() < .4:
        halo = sides(draw, 0, 4)
    extents = None
    if draw.random() < .5:
        extents = [size, (draw.randint(1, size[0]), draw.randint(1, size[1]))]
    arch = draw.choice(['nano', 'nano', 'tiny', 'v2-nano'])
    encoding = 'LogCPB' if arch == 'v2-nano' else draw.choice(
        [None, 'TableRPE', 'LogCPB', 'DecomposedRPE', 'ContextualRPE', 'DynamicRPE'])
    rpe = None if encoding is None else dict(type=encoding)
    if encoding == 'ContextualRPE':
        rpe['on'] = 'qkv'
    shift = draw.random() < .7
    backbone = SwinRPE(arch=arch, window_size=window, halo=halo, pooled_neighbours=pooled, shift_windows=shift,
                       rpe=rpe, attn_backend=draw.choice(['eager', 'sdpa']), mask_padding=extents is not None)
    buckets = len(backbone.stages[0].blocks[0].attn.w_msa.rpe.k_tables[0]) if encoding == 'ContextualRPE' else 0
    expected = by_formula(size, len(extents or [size]), arch, window, halo, pooled, shift, encoding, buckets,
                          padding_seen=extents is None)
    if extents:  # which pixels are inside is a product of rows and columns
        expected += len(extents) * math.prod(size)
    assert counted(backbone, size, extents) == expected


@pytest.mark.parametrize('seed', range(10))
def test_swin_transformer_by_formula(seed):
    """mm's, which projects window padding too."""
    draw = random.Random(seed)
    window = draw.randint(1, 9)
    size = sides(draw, 8, 120)
    backbone = SwinTransformer(embed_dims=32, num_heads=(1, 2, 4, 8), depths=(2, 2, 2, 2), window_size=window)
    assert counted(backbone, size) == by_formula(size, window=(window, window), projects_padding=True)


def test_a_large_map():
    """Its parts add up."""
    backbone = SwinRPE(arch='nano')
    assert counted(backbone, (400, 500)) == by_formula((400, 500))
    parts = count_multiply_adds(backbone, torch.zeros(1, 3, 400, 500)).multiply_adds
    assert parts['patch_embed'] == 100 * 125 * 48 * 32
    assert parts['stages.3.blocks.1.ffn.layers.1'] == 13 * 16 * 1024 * 256
    assert parts['stages'] + parts['patch_embed'] == parts['']


@torch.no_grad()
def test_nothing_else_changes_the_count():
    """Neither does what freezes or saves memory, nor whether gradients are off around it."""
    for options in (dict(with_cp=True), dict(frozen_stages=4), dict(drop_path_rate=.3)):
        assert counted(SwinRPE(arch='nano', **options), (61, 90)) == by_formula((61, 90))


def test_a_count_leaves_nothing_behind():
    """The zeros that stand for products stay in the count."""
    images = torch.randn(1, 3, 61, 90)
    backbone = SwinRPE(arch='v2-nano').eval()
    twin = copy.deepcopy(backbone)
    counted(backbone, (61, 90))
    with torch.no_grad():
        for ours, theirs in zip(backbone(images), twin(images)):
            assert torch.equal(ours, theirs)
            assert ours.abs().sum() > 0
    assert not any('forward' in vars(module) or module._forward_hooks for module in backbone.modules())


class Hidden(nn.Conv2d):
    """A layer whose products PyTorch does not see."""

    def forward(self, x):
        return x.new_tensor(x.detach().numpy()[..., 1:])


def test_layers_that_hide_their_products_are_named():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Hidden(4, 4, 1), nn.BatchNorm2d(4), Hidden(4, 4, 1)).eval()
    count = count_multiply_adds(model, torch.zeros(2, 3, 5, 7))
    assert count.uncounted == ['Hidden']
    assert count.multiply_adds == {'': 840, '0': 840, '1': 0, '2': 0, '3': 0}


@pytest.mark.needs_ops
@pytest.mark.parametrize('kind', ['DeformConv2dPack', 'ModulatedDeformConv2dPack'])
def test_deformable_convolutions(kind):
    import mmcv.ops
    layer = getattr(mmcv.ops, kind)(6, 8, 3, padding=1)
    count = count_multiply_adds(layer.eval(), torch.zeros(2, 6, 9, 11))
    offsets = 27 if kind.startswith('Modulated') else 18
    assert count.multiply_adds[''] == 2 * 99 * 9 * 6 * (8 + offsets)


# ---- the paper's numbers


def test_swin_t(tool):
    total = tool(['--arch', 'tiny'])['total']
    assert round(total['multiply-adds'] / 1e9, 1) == 4.5
    # the paper's 28.3 M have a classifier, and one norm at the end instead of one per stage
    classifier = 1000 * 769 - 2 * (96 + 192 + 384)
    assert round((total['parameters'] + classifier) / 1e6, 1) == 28.3
    mm = SwinTransformer()
    assert sum(p.numel() for p in mm.parameters()) == total['parameters']
    assert counted(mm, (224, 224)) == total['multiply-adds'] == by_formula((224, 224), arch='tiny')


@contextmanager
def single_operations():
    """A list of operations that the paper counts besides products, those of mmcv's counter, as modules run."""
    operations = []

    def add(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
            operations.append(2 * inputs[0].numel())
        elif isinstance(module, nn.AdaptiveAvgPool2d):
            operations.append(inputs[0].numel())
        elif isinstance(module, nn.ReLU) or (isinstance(module, nn.Conv2d) and module.bias is not None):
            operations.append(output.numel())

    hook = register_module_forward_hook(add)
    try:
        yield operations
    finally:
        hook.remove()


@pytest.mark.slow
def test_whole_models(tool, task):
    """mm's models have the paper's numbers, and ours the same less the projections of window padding."""
    if not Path(mmseg.__file__).with_name('.mim').is_dir():
        pytest.skip('needs the configs that MMSegmentation installs')
    paper = PAPER[task]
    with single_operations() as others:
        mm = tool([MM[task]])
    ours = tool([str(REPO / OURS[task])])
    for rows in (mm, ours):
        assert round(rows['total']['parameters'] / 1e6) == paper['parameters']
        top = [row['multiply-adds'] for name, row in rows.items() if '.' not in name and name != 'total']
        assert sum(top) == rows['total']['multiply-adds']
        assert rows['total']['floating-point operations'] == 2 * rows['total']['multiply-adds']
        of_backbone = [row['multiply-adds'] for name, row in rows.items() if name.startswith('backbone.')]
        assert sum(of_backbone) == rows['backbone']['multiply-adds']
    padding = by_formula(paper['size'], arch='tiny', projects_padding=True) - by_formula(paper['size'], arch='tiny')
    assert mm['total']['multiply-adds'] - ours['total']['multiply-adds'] == padding > 3e9

    multiply_adds, others = mm['total']['multiply-adds'], sum(others)
    assert round((multiply_adds + others) / 1e9) == paper['operations']
    assert round(others / 1e9, 1) == paper['others']  # as the tool's help says


# ---- the tool


@pytest.mark.needs_ops
def test_numbers_of_proposals_and_detections(tool, make_config):
    def heads(*options: str) -> dict[str, int]:
        rows = tool([make_config('detection'), '--size', '64x96', *options])
        return {name: rows[f'roi_head.{name}']['multiply-adds'] for name in ('bbox_head', 'mask_head')}

    rcnn = 'model.test_cfg.rcnn.max_per_img='
    few = heads('--cfg-options', 'model.test_cfg.rpn.max_per_img=50', f'{rcnn}20')
    many = heads('--cfg-options', 'model.test_cfg.rpn.max_per_img=150', f'{rcnn}30')
    assert many['bbox_head'] == 3 * few['bbox_head'] > 0
    assert 2 * many['mask_head'] == 3 * few['mask_head'] > 0
    two = heads('--batch', '2', '--cfg-options', 'model.test_cfg.rpn.max_per_img=50', f'{rcnn}20')
    assert two == {name: 2 * number for name, number in few.items()}


def test_table_and_files(tool, make_config, tmp_path, capsys):
    config = make_config('segmentation')
    rows = tool([config, '--size', '70x100', '--out', str(tmp_path / 'made/a.json')])
    printed = capsys.readouterr().out
    for text in ('multiply-adds', 'floating-point operations', 'FLOPs', 'parameters', '70x100', 'backbone.stages.3',
                 'auxiliary_head'):
        assert text in printed
    assert json.loads((tmp_path / 'made/a.json').read_text())['parts'] == rows
    assert rows['backbone']['multiply-adds'] == by_formula((70, 100))
    assert rows['auxiliary_head']['multiply-adds'] == 0 < rows['auxiliary_head']['parameters']
    out = tmp_path / 'a.md'
    assert tool([config, '--size', '70x100', '--batch', '3', '--out', str(out)])['backbone']['multiply-adds'] == (
        by_formula((70, 100), 3))
    lines = out.read_text().splitlines()
    assert lines[-1].startswith('| total |') and len(lines) == len(rows) + 4
    assert 'written' in capsys.readouterr().out


def test_backbone_of_a_config(tool, make_config):
    config = make_config('segmentation')
    rows = tool([config, '--backbone', '--cfg-options', 'model.backbone.window_size=[7,7,7,5]',
                 'model.backbone.halo=2'])
    assert list(rows) == ['patch_embed', 'stages.0', 'stages.1', 'stages.2', 'stages.3', 'total']
    assert rows['patch_embed']['multiply-adds'] == 56 * 56 * 48 * 32
    assert tool(['--arch', 'nano', '--cfg-options', 'model.backbone.window_size=(7,14)', '--size', '90x61'])['total'][
        'multiply-adds'] == by_formula((90, 61), window=(7, 14))


def test_weights_are_not_loaded(tool, make_config):
    extra = "model['backbone'].update(init_cfg=dict(type='Pretrained', checkpoint='absent.pth'))\n"
    config = make_config('segmentation', extra)
    assert Config.fromfile(config).model.backbone.init_cfg.checkpoint == 'absent.pth'
    assert tool([config, '--size', '32x32'])['total']['multiply-adds'] > 0


@pytest.mark.parametrize(('argv', 'sentence'), [
    ([], 'give either a config file or --arch'),
    (['a.py', '--arch', 'tiny'], 'give either a config file or --arch'),
    (['a.py'], 'config file a.py does not exist'),
    (['mmseg::a.py'], 'mmseg/.mim/configs/a.py does not exist'),
    (['configs::a.py'], "the package 'configs', which is not installed"),
    (['absent::a.py'], "absent::a.py names the package 'absent', which is not installed"),
    (['--arch', 'tyny'], "did you mean 'tiny'"),
    (['--arch', 'nano', '--size', '0x8'], '--size must be height x width in pixels, such as 800x1280, got 0x8'),
    (['--arch', 'nano', '--size', '800'], '--size must be height x width in pixels, such as 800x1280, got 800'),
    (['--arch', 'nano', '--batch', '0'], '--batch must be at least 1, got 0'),
    (['--arch', 'nano', '--out', 'a.txt'], '--out must end in .json or .md, got a.txt'),
])
def test_bad_input(tool, argv, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        tool(argv)
    assert sentence in str(error.value)
    assert '\n' not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_configs_without_what_is_needed(tool, tmp_path):
    config = tmp_path / 'a.py'
    config.write_text("default_scope = 'mmseg'\n")
    with pytest.raises(InputError, match='lacks model'):
        tool([str(config)])
    config.write_text("default_scope = 'mmseg'\nmodel = dict(type='ResNet', depth=18)\n")
    with pytest.raises(InputError, match='is of a ResNet, which is neither a detector nor a segmentor'):
        tool([str(config)])
    with pytest.raises(InputError, match='has no model.backbone'):
        tool([str(config), '--backbone'])
