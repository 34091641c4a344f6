"""Parameters and multiply-adds of a backbone or a whole model, part by part, without data or weights.

One multiply-add is two floating-point operations. Papers, Swin's among them, call multiply-adds FLOPs: what they print
is the column "multiply-adds". Counted is a prediction, in which auxiliary heads do not run: its convolutions and matrix
products, those of attention included, and nothing else. RoI heads get as many proposals as the config asks for, and
mask heads as many detections, as a rule 1000 and 100. A stage's row has its patch merging and position encodings too.

Window padding counts where it is computed: SwinRPE attends over it but does not project it, mm's SwinTransformer does
both. So do keys of a halo that no query of a window sees, such as those outside the image.

Swin's paper has 267 G for Mask R-CNN and 945 G for UPerNet, both on Swin-T. That is with mm's SwinTransformer, and with
one or two operations per number for norms, ReLU and the biases of convolutions, which are 0.3 and 0.6 G.
"""
from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, DictAction
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import check_ops, load_config, require, task_of, walk, without_sync_bn
from swin_rpe_mm.models.config import ARCHS
from swin_rpe_mm.whole_files import WholeFileBackend
from tools.lib.cli import run_tool
from tools.lib.multiply_adds import count_multiply_adds

# height and width, as in Swin's paper
BACKBONE_SIZE = (224, 224)
SIZES = dict(detection=(800, 1280), segmentation=(512, 2048))
SHOWN_BY_PART = ('backbone', 'roi_head')
PROPOSALS = 1000
NUMBERS = ('parameters', 'multiply-adds', 'floating-point operations')


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('config', nargs='?', help='config file, or one that MMDetection or MMSegmentation came with: '
                        'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py')
    parser.add_argument('--arch', metavar='ARCH', help=f'instead of a config, SwinRPE of this arch: {", ".join(ARCHS)}')
    parser.add_argument('--backbone', action='store_true', help="only the config's backbone")
    parser.add_argument('--size', metavar='HxW', help='height x width of the image in pixels, so that a photo of the '
                        'usual 1280x800 is 800x1280; default: 224x224 for a backbone, 800x1280 for a detector and '
                        "512x2048 for a segmentor, as in Swin's paper")
    parser.add_argument('--batch', type=int, default=1, help='number of images (default: %(default)s)')
    parser.add_argument('--out', help='file to write too, .json or .md')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE',
                        help="settings that override the config's, such as model.backbone.window_size=12; with --arch "
                        'too')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, int]]:
    """Print the table; return the numbers of each row."""
    args = parse_args(argv)
    check_arguments(args)
    cfg = read_config(args)
    whole = not (args.arch or args.backbone)
    size = parse_size(args.size) if args.size else SIZES[task_of(cfg)] if whole else BACKBONE_SIZE
    model, images, run = (whole_model if whole else backbone)(cfg, size, args.batch)
    multiply_adds, uncounted = count_multiply_adds(model, images, run)

    rows = {}
    for name, module in parts(model):
        parameters, products = sum(p.numel() for p in module.parameters()), multiply_adds[name]
        if products or (parameters and whole and not name.startswith('backbone.')):
            rows[name] = dict(zip(NUMBERS, (parameters, products, 2 * products)))
    rows['total'] = dict(zip(NUMBERS, (sum(p.numel() for p in model.parameters()), multiply_adds[''],
                                       2 * multiply_adds[''])))
    title = f'{type(model).__name__}, {args.batch} x {size[0]}x{size[1]} px (height x width)'
    print_table(rows, title)
    print('Multiply-adds are what papers call FLOPs; each is two floating-point operations. Counted are convolutions '
          'and matrix\nproducts, those of attention included.')
    if uncounted:
        print(f'Not counted, because their operations hide what they compute: {", ".join(uncounted)}.')
    if args.out:
        write(Path(args.out), rows, title)
        print(f'written: {args.out}')
    return rows


def check_arguments(args: Namespace) -> None:
    if (args.config is None) == (args.arch is None):
        raise InputError('give either a config file or --arch')
    if args.batch < 1:
        raise InputError(f'--batch must be at least 1, got {args.batch}')
    if args.out and Path(args.out).suffix not in ('.json', '.md'):
        raise InputError(f'--out must end in .json or .md, got {args.out}')


def parse_size(text: str) -> tuple[int, int]:
    """Height and width."""
    found = re.fullmatch(r'([1-9]\d*)x([1-9]\d*)', text)
    if not found:
        raise InputError(f'--size must be height x width in pixels, such as 800x1280, got {text}')
    return int(found[1]), int(found[2])


def read_config(args: Namespace) -> Config:
    """The config, or one that is a backbone and nothing else."""
    if args.arch:
        cfg = Config(dict(model=dict(backbone=dict(type='swin_rpe_mm.SwinRPE', arch=args.arch))))
        cfg.merge_from_dict(args.cfg_options or {})
        return cfg
    cfg = load_config(packaged(args.config), args.cfg_options)
    require(cfg, 'model')
    if args.backbone and 'backbone' not in cfg.model:
        raise InputError(f'{args.config} has no model.backbone')
    check_ops(cfg)
    if cfg.get('data_preprocessor'):
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    without_sync_bn(cfg)
    for node in walk(cfg.model):  # no weights are needed, and some layers load theirs when they are built
        node.pop('init_cfg', None)
        node.pop('pretrained', None)
    init_default_scope(cfg.get('default_scope', 'mmdet'))
    return cfg


def packaged(path: str) -> str:
    """The file that ``mmdet::...`` or ``mmseg::...`` names; other paths as they are."""
    package, mark, name = path.partition('::')
    if not mark:
        return path
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or spec.origin is None:
        raise InputError(f'{path} names the package {package!r}, which is not installed')
    return str(Path(spec.origin).with_name('.mim') / 'configs' / name)


Countable = tuple[nn.Module, Tensor, 'Callable[[Tensor], Any] | None']


def backbone(cfg: Config, size: tuple[int, int], batch: int) -> Countable:
    """The backbone alone, and images for it."""
    model = MODELS.build(cfg.model.backbone)
    model.eval()  # which mm's backbones return nothing from
    return model, torch.zeros(batch, channels(cfg), *size), None


def whole_model(cfg: Config, size: tuple[int, int], batch: int) -> Countable:
    """The model, images out of its own data preprocessor, and how it is run on them."""
    model = MODELS.build(cfg.model)
    model.eval()
    is_segmentor = task_of(cfg) == 'segmentation'
    if not hasattr(model, 'encode_decode' if is_segmentor else 'extract_feat'):
        raise InputError(f'{cfg.filename} is of a {type(model).__name__}, which is neither a detector nor a segmentor')
    samples = [sample_class(cfg)(metainfo=dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size,
                                               scale_factor=(1., 1.))) for _ in range(batch)]
    images = [torch.zeros(channels(cfg), *size, dtype=torch.uint8) for _ in range(batch)]
    data = model.data_preprocessor(dict(inputs=images, data_samples=samples))
    samples = data['data_samples']
    if is_segmentor:
        return model, data['inputs'], lambda images: model.encode_decode(images, [one.metainfo for one in samples])
    if not hasattr(model, 'roi_head'):
        return model, data['inputs'], lambda images: model(images, samples, mode='tensor')
    detect_as_many_as_usual(model, samples)
    return model, data['inputs'], lambda images: model(images, samples, mode='predict')


def channels(cfg: Config) -> int:
    return cfg.model.get('backbone', {}).get('in_channels', 3)


def sample_class(cfg: Config) -> type:
    if task_of(cfg) == 'segmentation':
        from mmseg.structures import SegDataSample as DataSample
    else:
        from mmdet.structures import DetDataSample as DataSample
    return DataSample


def detect_as_many_as_usual(model: nn.Module, samples: Sequence[Any]) -> None:
    """Give RoI heads the proposals and masks the detections that the config asks for, as a rule 1000 and 100 per image.

    Without weights there would be any number.
    """

    def filled_up(predict: Callable, number: int) -> Callable:
        return lambda *args, **kwargs: [found if len(found) == number else boxes(number)
                                        for found in predict(*args, **kwargs)]

    if not model.with_rpn:
        for sample in samples:
            sample.proposals = boxes(PROPOSALS)
    elif not model.test_cfg.get('rpn'):
        model.rpn_head.init_weights()  # proposals are parameters and must be boxes
    for part, method, stage in (('rpn_head', 'predict', 'rpn'), ('roi_head', 'predict_bbox', 'rcnn')):
        number = (model.test_cfg.get(stage) or {}).get('max_per_img')
        if number and hasattr(model, part):
            head = getattr(model, part)
            setattr(head, method, filled_up(getattr(head, method), number))


def boxes(number: int) -> InstanceData:
    """Small boxes; what heads compute does not depend on their place."""
    return InstanceData(bboxes=torch.tensor([0., 0., 32., 32.]).repeat(number, 1), scores=torch.ones(number),
                        labels=torch.zeros(number, dtype=torch.long))


def parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The model's parts by name, those of backbone and RoI heads too; a list, such as stages, gives its entries."""

    def inside(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList):
                yield from inside(f'{prefix}{name}.', child)
            else:
                yield prefix + name, child

    for name, module in inside('', model):
        yield name, module
        if name in SHOWN_BY_PART:
            yield from inside(f'{name}.', module)


def print_table(rows: dict[str, dict[str, int]], title: str) -> None:
    table = Table('part', title=title)
    for column in ('parameters, M', 'multiply-adds, G', 'floating-point operations, G'):
        table.add_column(column, justify='right')
    for name, row in rows.items():
        if name == 'total':
            table.add_section()
        table.add_row(name, *shown(row))
    Console(width=120).print(table)


def shown(row: dict[str, int]) -> list[str]:
    parameters, multiply_adds, operations = row.values()
    return [f'{parameters / 1e6:.2f}', f'{multiply_adds / 1e9:.2f}', f'{operations / 1e9:.2f}']


def write(path: Path, rows: dict[str, dict[str, int]], title: str) -> None:
    """Write a file that is there whole or not at all."""
    if path.suffix == '.json':
        text = json.dumps(dict(title=title, parts=rows), indent=1)
    else:
        lines = [['part', 'parameters, M', 'multiply-adds, G', 'floating-point operations, G'],
                 ['---', *['---:'] * len(NUMBERS)], *([name, *shown(row)] for name, row in rows.items())]
        text = '\n'.join([title, '', *(f'| {" | ".join(line)} |' for line in lines)])
    WholeFileBackend().put(f'{text}\n'.encode(), path)


if __name__ == '__main__':
    run_tool(main)
