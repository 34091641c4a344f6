"""Files of pictures: what they are called, and how they are written."""
from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import mmcv
import numpy as np
from mmengine.fileio import get

from ..errors import InputError
from ..whole_files import WholeFileBackend


def result_names(paths: Sequence[str]) -> list[str]:
    """A name for the result of each image, with ``/`` and without suffix; those of different images differ.

    ``a/1.jpg, a/2.jpg`` become ``1, 2``. Where the names of files alone do not tell them apart, folders and suffixes
    are kept: ``a/1.jpg, b/1.jpg`` become ``a/1.jpg, b/1.jpg``.
    """
    stems = [Path(path).stem for path in paths]
    places = [os.path.abspath(path) for path in paths]
    if len(set(stems)) == len(set(places)):
        return stems
    root = os.path.commonpath([os.path.dirname(place) for place in places])
    return [Path(os.path.relpath(place, root)).as_posix() for place in places]


def refuse_existing(paths: Iterable[Path], overwrite: bool) -> None:
    """Raise :class:`InputError` if one of the files to be written exists, unless ``overwrite``."""
    existing = [] if overwrite else [path for path in paths if path.exists()]
    if existing:
        others = f' and {len(existing) - 1} more files to be written' if existing[1:] else ''
        raise InputError(f'{existing[0]}{others} exists already: choose another folder with --out, or add --overwrite')


def read_picture(path: str, backend_args: dict | None = None) -> np.ndarray | None:
    """An image as ``(H, W, 3)``, RGB, of 8 bits; None if the file holds none."""
    return mmcv.imfrombytes(get(path, backend_args=backend_args), channel_order='rgb')


def write_file(path: Path, content: bytes) -> None:
    """Write a file that appears when it is complete."""
    WholeFileBackend().put(content, path)


def write_picture(path: Path, image: np.ndarray) -> None:
    """Write an image, RGB or of one channel, as PNG."""
    write_file(path, cv2.imencode('.png', image[..., ::-1] if image.ndim == 3 else image)[1].tobytes())
