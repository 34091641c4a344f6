"""Make the pictures of docs/visualization.md from the newest run of ``make demo``, each by the command shown there."""
from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from mmengine.config import Config
from PIL import Image

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.whole_files import WholeFileBackend
from tools.lib.cli import run_tool

ROOT = Path(__file__).resolve().parents[1]
DETECTOR, SEGMENTOR = 'mask-rcnn_swin-rpe-nano_fpn_shapes', 'upernet_swin-rpe-nano_shapes'
OF_ENCODINGS = ('bias', 'attention', 'windows', 'distance', 'receptive_field')
CURVES = ('ratio', 'entropy', 'saturated', 'bias_grad_norm')
MONITORED = 180  # iterations of the training whose attention is watched
SHOWN = '000005'  # of the validation images


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('--demo', type=Path, help='folder of a run of the demo; default: the newest in work_dirs/demo')
    parser.add_argument('--out', type=Path, default=ROOT / 'docs' / 'visualization', help='where to (%(default)s)')
    parser.add_argument('--only', nargs='+', choices=PICTURES, default=list(PICTURES), metavar='PICTURE',
                        help=f'some of {", ".join(PICTURES)}; default: all')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    demo = args.demo or newest_demo()
    models = {name: trained(demo, name) for name in (DETECTOR, SEGMENTOR)}
    with TemporaryDirectory() as folder:
        tools = Tools(Path(folder), models)
        for name in args.only:
            place = args.out / f'{name}.png'
            WholeFileBackend().put(small(PICTURES[name](tools)), place)
            print(f'{place}: {place.stat().st_size // 1024} KB', flush=True)


def newest_demo() -> Path:
    """The newest run of the demo that came to its end."""
    runs = sorted((ROOT / 'work_dirs' / 'demo').glob('*/results.json'))
    if not runs:
        raise InputError(f'{ROOT / "work_dirs" / "demo"} holds no finished run of the demo: run `make demo` first')
    return runs[-1].parent


def trained(demo: Path, name: str) -> list[str]:
    """Config and checkpoint of one of the demo's models."""
    checkpoints = sorted((demo / name).glob('iter_*.pth'))
    if not checkpoints:
        raise InputError(f'{demo / name} holds no checkpoint: run `make demo` first, or name another run with --demo')
    return [str(demo / name / f'{name}.py'), str(checkpoints[-1])]


class Tools:
    """The tools, run on the demo's models; each method returns the picture that one of them made."""

    def __init__(self, folder: Path, models: dict[str, list[str]]):
        self.folder, self.models = folder, models

    def run(self, tool: str, *arguments: str | Path) -> None:
        command = [sys.executable, str(ROOT / 'tools' / tool), *map(str, arguments)]
        ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ended.returncode:
            tail = '\n'.join(ended.stdout.splitlines()[-15:])
            raise InputError(f'{" ".join(command)} ended with status {ended.returncode}:\n{tail}')

    def curves(self) -> Image.Image:
        config, out = self.folder / 'monitored.py', self.folder / 'monitored'
        config.write_text(f"_base_ = ['{self.models[SEGMENTOR][0]}']\n"
                          "model = dict(backbone=dict(rpe=dict(type='LogCPB')))\n"
                          "custom_hooks = [dict(type='swin_rpe_mm.RPEMonitorHook', interval=10)]\n"
                          f'train_cfg = dict(max_iters={MONITORED}, val_interval={MONITORED})\n'
                          'val_dataloader = dict(dataset=dict(indices=20))\ndefault_hooks = dict(checkpoint=None)\n')
        self.run('train.py', config, '--work-dir', out)
        self.run('analysis_tools/plot_logs.py', out, '--keys', 'loss', *(f'rpe/*/{name}' for name in CURVES), '--out',
                 self.folder / 'curves.png')
        return opened(self.folder / 'curves.png')

    def encoding(self, figure: str) -> Image.Image:
        self.run('analysis_tools/visualize_rpe.py', *self.models[DETECTOR], '--figures', figure, '--out', self.folder)
        return opened(self.folder / f'{figure}.png')

    def padding(self, name: str) -> Image.Image:
        self.run('analysis_tools/compare_padding.py', *self.models[name], '--out', self.folder / f'{name}.png')
        return opened(self.folder / f'{name}.png')

    def browse_dataset(self) -> Image.Image:
        return self.both('analysis_tools/browse_dataset.py', '--out', '000400_000400',
                         lambda model: [model[0], '--num', '3'])

    def test(self) -> Image.Image:
        return self.both('test.py', '--show-dir', SHOWN, lambda model: [
            *model, '--work-dir', self.folder / 'work', '--cfg-options', 'test_dataloader.dataset.indices=9'])

    def infer(self) -> Image.Image:
        data = Config.fromfile(self.models[SEGMENTOR][0]).val_dataloader.dataset.data_root
        image = Path(data, 'img_dir', 'val', f'{SHOWN}.png')
        return self.both('infer.py', '--out', SHOWN, lambda model: [*model, image])

    def both(self, tool: str, option: str, picture: str, arguments: Callable[[list[str]], list]) -> Image.Image:
        """One picture that a tool draws for the detector, above that for the segmentor."""
        found = []
        for name, model in self.models.items():
            out = self.folder / Path(tool).stem / name
            self.run(tool, *arguments(model), option, out)
            found.append(opened(out / f'{picture}.png'))
        return stacked(found)


PICTURES: dict[str, Callable[[Tools], Image.Image]] = {
    'curves': Tools.curves,
    **{figure: partial(Tools.encoding, figure=figure) for figure in OF_ENCODINGS},
    'padding': partial(Tools.padding, name=DETECTOR),
    'padding_labels': partial(Tools.padding, name=SEGMENTOR),
    'browse_dataset': Tools.browse_dataset,
    'test': Tools.test,
    'infer': Tools.infer
}


def opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert('RGB')


def stacked(images: Sequence[Image.Image]) -> Image.Image:
    """Pictures one below the other, as wide as the narrowest."""
    width = min(image.width for image in images)
    images = [image.resize((width, round(image.height * width / image.width))) for image in images]
    page = Image.new('RGB', (width, sum(image.height for image in images)), 'white')
    top = 0
    for image in images:
        page.paste(image, (0, top))
        top += image.height
    return page


def small(picture: Image.Image, width: int = 1100) -> bytes:
    """A PNG of at most ``width`` px, in as many colours as a page needs."""
    if picture.width > width:
        picture = picture.resize((width, round(picture.height * width / picture.width)), Image.LANCZOS)
    content = BytesIO()
    picture.quantize(128, dither=Image.Dither.NONE).save(content, 'PNG', optimize=True)
    return content.getvalue()


if __name__ == '__main__':
    run_tool(main)
