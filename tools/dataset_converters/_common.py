"""What every converter shares: its command line, and an output folder that is complete or absent."""
import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from swin_rpe_mm.errors import InputError


def make_parser(description: str, src_help: str, default_out: str) -> argparse.ArgumentParser:
    """The command line that all converters have: ``SRC --out DIR``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('src', type=Path, metavar='SRC', help=src_help)
    parser.add_argument('--out', type=Path, metavar='DIR', default=default_out, help='folder to make; must not exist')
    return parser


def run(convert: Callable[[], str]) -> None:
    """Run ``convert`` and print the summary it returns; print wrong input as one sentence and exit with status 2."""
    try:
        print(convert())
    except InputError as error:
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)


@contextmanager
def complete_or_absent(out: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``out`` that is renamed to ``out`` at the end, or removed if anything fails."""
    if out.exists():
        raise InputError(f'--out {out} exists already; remove it or name another folder')
    part = out.with_name(f'.{out.name}.part')
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def find_root(src: Path, inner: str, needed: tuple[str, ...]) -> Path:
    """``src`` or ``src/inner``, whichever holds the folders ``needed``."""
    if not src.is_dir():
        raise InputError(f'SRC {src} is not a folder')
    for root in (src, src / inner):
        if all((root / name).is_dir() for name in needed):
            return root
    raise InputError(f'SRC {src} holds no {" or no ".join(needed)} folder, and neither does {src / inner}')


def read_image(path: Path) -> Image.Image:
    """Decode a whole image, so that a truncated file is found now and not in the middle of training."""
    try:
        with Image.open(path) as image:
            image.load()
    except OSError as error:
        raise InputError(f'image {path} can not be read: {error}') from error
    return image


def write_coco(path: Path, images: list[dict], annotations: list[dict], classes: tuple[str, ...]) -> None:
    """Write a COCO instance file; categories are numbered from 1 and annotations in their order."""
    path.parent.mkdir(exist_ok=True)
    categories = [dict(id=i, name=name) for i, name in enumerate(classes, 1)]
    numbered = [dict(id=i, **annotation) for i, annotation in enumerate(annotations, 1)]
    path.write_text(json.dumps(dict(images=images, annotations=numbered, categories=categories)))
