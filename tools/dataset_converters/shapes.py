"""Draw the Shapes data set: circles, squares, triangles and stars over textured backgrounds.

Images have mixed sizes, so that a batch of them is padded. Later shapes hide parts of earlier ones, and the labels
hold what can be seen, as in COCO and ADE20K: an instance's polygons, box and area are those of its visible part, and a
pixel of the label map has the class of the topmost shape. Polygons follow the pixel edges: rasterised by pycocotools
they give exactly the pixels of the label map. Colour is a hint, so that minutes of training suffice, but the ranges of
hues overlap.

    OUT/shapes.json                      what was asked for; written last
    OUT/annotations/instances_train.json COCO instances, categories 1..4 (and instances_val.json)
    OUT/img_dir/{train,val}/000000.png   images, shared by both tasks
    OUT/ann_dir/{train,val}/000000.png   label maps: 0 background (a class like the others), 1..4 the shapes

The same arguments give the same files, bit for bit; each image depends only on the seed, its split and its number.
"""
from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from swin_rpe_mm.errors import InputError
from tools.lib.cli import run_tool

SHAPES = ('circle', 'square', 'triangle', 'star')
SIDES = (80, 128)
RADII = (14, 32)
MAX_SHAPES = 4
MIN_VISIBLE = 0.7
MAX_TURN = math.pi / 9
HUE_RANGE = 27  # of OpenCV's 180 hues; the ranges of two neighbours share a sixth of it
VERSION = 1


def outline(shape: str, radius: float, turn: float) -> np.ndarray:
    """Return the vertices ``(n, 2)``, as (x, y), of an upright shape around the origin, turned by an angle."""
    if shape == 'circle':
        corners, radii = 64, np.full(64, radius)
    elif shape == 'star':
        corners, radii = 10, np.where(np.arange(10) % 2, 0.45 * radius, radius)
    else:
        corners = {'triangle': 3, 'square': 4}[shape]
        radii = np.full(corners, radius)
    first = math.pi / 4 if shape == 'square' else -math.pi / 2  # a corner at the top, but flat sides for the square
    turns = first + turn + np.arange(corners) * (2 * math.pi / corners)
    return np.stack([np.cos(turns) * radii, np.sin(turns) * radii], axis=1)


def texture(rng: np.random.Generator, size: tuple[int, int], colour: np.ndarray, strength: int) -> np.ndarray:
    """Return an ``(h, w, 3)`` uint8 surface: a colour with stripes or checks, coarse blotches and fine grain."""
    h, w = size
    y, x = np.mgrid[:h, :w]
    step_y, step_x = rng.integers(-8, 9, size=2)
    period = int(rng.integers(8, 24))
    stripes = ((y * step_y + x * step_x) // (4 * period) % 2) * 2 - 1
    checks = ((y // period + x // period) % 2) * 2 - 1
    pattern = (stripes if rng.integers(2) else checks)[..., None] * rng.integers(-strength, strength + 1, size=3)
    blotch = int(rng.integers(6, 20))
    coarse = rng.integers(-strength, strength + 1, size=(h // blotch + 1, w // blotch + 1, 3))
    coarse = coarse.repeat(blotch, axis=0).repeat(blotch, axis=1)[:h, :w]
    grain = rng.integers(-8, 9, size=(h, w, 1))
    return np.clip(colour + pattern + coarse + grain, 0, 255).astype(np.uint8)


def distinct_colour(rng: np.random.Generator, shape: int | None, others: list[np.ndarray]) -> np.ndarray:
    """Return the one of eight random colours for a shape (None: the background) that is farthest from all others.

    Backgrounds are dull and of any hue; shapes are vivid, and each has a range of hues that overlaps its neighbours'.
    """
    if shape is None:
        hue, saturation, value = rng.integers(0, 180, 8), rng.integers(0, 90, 8), rng.integers(50, 210, 8)
    else:
        hue = (shape * 180 // len(SHAPES) + rng.integers(-HUE_RANGE, HUE_RANGE + 1, 8)) % 180
        saturation, value = rng.integers(150, 256, 8), rng.integers(120, 256, 8)
    hsv = np.stack([hue, saturation, value], axis=1).astype(np.uint8)
    candidates = cv2.cvtColor(hsv[None], cv2.COLOR_HSV2BGR)[0].astype(np.int64)
    if not others:
        return candidates[0]
    distances = np.abs(candidates[:, None] - np.stack(others)[None]).sum(-1).min(1)
    return candidates[distances.argmax()]


def has_hole(mask: np.ndarray) -> bool:
    """Whether a mask ``(h, w)`` has a hole, which COCO polygons can't express."""
    _, hierarchy = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    return hierarchy is not None and bool((hierarchy[0, :, 3] >= 0).any())


def draw_scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Draw one image.

    Returns:
        The image ``(h, w, 3)``, the map ``(h, w)`` of the topmost instance (0 is background, 1 the first shape drawn),
        and the class index of each instance.
    """
    h, w = (int(side) for side in rng.integers(SIDES[0], SIDES[1] + 1, size=2))
    colours = [distinct_colour(rng, None, [])]
    image = texture(rng, (h, w), colours[0], strength=14)
    owner = np.zeros((h, w), dtype=np.int32)
    areas, classes = [], []
    for _ in range(int(rng.integers(2, MAX_SHAPES + 1))):
        shape = int(rng.integers(len(SHAPES)))
        radius = float(rng.uniform(*RADII))
        vertices = outline(SHAPES[shape], radius, float(rng.uniform(-MAX_TURN, MAX_TURN)))
        vertices = vertices - vertices.min(0)
        room = np.array([w, h]) - 1 - vertices.max(0)
        vertices = vertices + rng.uniform(0, 1, size=2) * room
        colour = distinct_colour(rng, shape, colours)
        surface = texture(rng, (h, w), colour, strength=8)
        mask = np.zeros((h, w), dtype=np.uint8)
        cv2.fillPoly(mask, [np.round(vertices).astype(np.int32)], 1)
        mask = mask.astype(bool)
        covered = np.where(mask, len(classes) + 1, owner)
        visible = [covered == index + 1 for index in range(len(classes))]
        if any(v.sum() < MIN_VISIBLE * area or has_hole(v) for v, area in zip(visible, areas)):
            continue
        owner = covered
        image[mask] = surface[mask]
        colours.append(colour)
        areas.append(int(mask.sum()))
        classes.append(shape)
    return image, owner, classes


def polygons(mask: np.ndarray) -> list[list[float]]:
    """Return the COCO polygons of a mask ``(h, w)`` without holes, one per connected part."""
    scale = 4  # contours run through pixel centres: on an enlarged mask they come close to the pixel edges
    large = mask.astype(np.uint8).repeat(scale, axis=0).repeat(scale, axis=1)
    contours, _ = cv2.findContours(large, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    return [((contour[:, 0] + 0.5) / scale).round(3).reshape(-1).tolist() for contour in contours]


def coco_annotation(mask: np.ndarray, **ids: int) -> dict:
    """Return the COCO annotation of a visible mask ``(h, w)``."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    x, y = int(columns[0]), int(rows[0])
    box = [x, y, int(columns[-1]) + 1 - x, int(rows[-1]) + 1 - y]
    return dict(**ids, bbox=box, area=int(mask.sum()), iscrowd=0, segmentation=polygons(mask))


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Write a PNG; OpenCV only returns False where it can't."""
    if not cv2.imwrite(str(path), pixels):
        raise InputError(f'{path} could not be written: check that the disk has room')


def write_split(root: Path, split: str, count: int, seed: int) -> None:
    """Write the images, label maps and COCO json of one split below ``root``."""
    for kind in ('img_dir', 'ann_dir'):
        (root / kind / split).mkdir(parents=True)
    images, annotations = [], []
    for number in tqdm(range(count), desc=f'Shapes {split}', unit='image', file=sys.stdout, disable=None):
        rng = np.random.default_rng([seed, ('train', 'val').index(split), number])
        image, owner, classes = draw_scene(rng)
        name = f'{number:06d}.png'
        write_png(root / 'img_dir' / split / name, image)
        write_png(root / 'ann_dir' / split / name, np.array([0, *(c + 1 for c in classes)], dtype=np.uint8)[owner])
        images.append(dict(id=number + 1, file_name=name, height=image.shape[0], width=image.shape[1]))
        for index, shape in enumerate(classes):
            annotations.append(coco_annotation(
                owner == index + 1, id=len(annotations) + 1, image_id=number + 1, category_id=shape + 1))
    categories = [dict(id=index + 1, name=name) for index, name in enumerate(SHAPES)]
    coco = dict(info=dict(description='Shapes'), images=images, annotations=annotations, categories=categories)
    path = root / 'annotations' / f'instances_{split}.json'
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(coco))


def generate(out: Path, seed: int, train: int, val: int) -> bool:
    """Write the data set to ``out`` unless the same one is there already.

    Everything is written to a temporary folder beside ``out``, which is renamed when it is complete.

    Returns:
        Whether anything was written.
    """
    for name, value, least in (('--seed', seed, 0), ('--train', train, 1), ('--val', val, 1)):
        if value < least:
            raise InputError(f'{name} is {value}, but must be at least {least}')
    asked = dict(version=VERSION, seed=seed, train=train, val=val)
    manifest = out / 'shapes.json'
    if manifest.is_file():
        found = json.loads(manifest.read_text())
        if found == asked:
            return False
        raise InputError(f'{out} already holds another Shapes data set ({found}, asked for {asked}): '
                         'delete it or choose another --out')
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f'{out} already exists and is not a Shapes data set: choose another --out')
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder {out.parent} could not be made ({error.strerror}): choose another --out') from error
    with tempfile.TemporaryDirectory(prefix=f'.{out.name}-', dir=out.parent) as folder:
        root = Path(folder) / out.name
        root.mkdir()
        write_split(root, 'train', train, seed)
        write_split(root, 'val', val, seed)
        (root / 'shapes.json').write_text(json.dumps(asked))
        root.rename(out)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Draw the Shapes data set: COCO instances and ADE20K-style label maps of the same images.')
    parser.add_argument('--out', type=Path, default=Path('data/shapes'), help='folder to make (default: %(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='the same seed gives the same files (default: %(default)s)')
    parser.add_argument('--train', type=int, default=1200, help='training images (default: %(default)s)')
    parser.add_argument('--val', type=int, default=100, help='validation images (default: %(default)s)')
    args = parser.parse_args()
    written = generate(args.out, args.seed, args.train, args.val)
    print(f'wrote {args.out}' if written else f'{args.out} already holds this data set: nothing to do')


if __name__ == '__main__':
    run_tool(main)
