"""Convert the nuclei of the 2018 Data Science Bowl (one folder per image, one mask per nucleus) to COCO json.

Writes DIR/images and DIR/annotations/instances_{train,val}.json. Masks become run lengths, pixel by pixel; images
become RGB PNG without loss. Which images validate depends on the seed and the names alone.
"""
import random
from pathlib import Path

import numpy as np
import pycocotools.mask
from _common import complete_or_absent, make_parser, read_image, run, write_coco
from tqdm import tqdm

from swin_rpe_mm.errors import InputError

CLASSES = ('nucleus', )


def find_samples(src: Path) -> list[Path]:
    """The folders ``ID`` with ``ID/images/ID.png``, in ``src`` or ``src/stage1_train``, sorted."""
    for root in (src, src / 'stage1_train'):
        samples = sorted(path for path in root.glob('*') if (path / f'images/{path.name}.png').is_file())
        if samples:
            return samples
    raise InputError(f'SRC {src} holds no ID/images/ID.png, and neither does {src / "stage1_train"}')


def split_samples(samples: list[Path], val_fraction: float, seed: int) -> dict[str, list[Path]]:
    """A seeded split in which every sample is in one part only and the order stays."""
    count = round(len(samples) * val_fraction)
    if not 0 < count < len(samples):
        raise InputError(f'--val-fraction {val_fraction} puts {count} of {len(samples)} images into validation; '
                         'both parts need at least one')
    val = set(random.Random(seed).sample(samples, count))
    return dict(train=[s for s in samples if s not in val], val=[s for s in samples if s in val])


def read_mask(path: Path, height: int, width: int) -> np.ndarray:
    """One mask file as (H, W) bool."""
    mask = np.array(read_image(path).convert('L')) > 0
    if mask.shape != (height, width):
        raise InputError(f'mask {path} is {mask.shape[1]}x{mask.shape[0]} pixels, but its image is {width}x{height}')
    return mask


def annotate(mask: np.ndarray) -> dict:
    """A mask (H, W) that is not empty as a COCO annotation without image id."""
    rle = pycocotools.mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return dict(
        category_id=1,
        bbox=pycocotools.mask.toBbox(rle).tolist(),
        area=int(mask.sum()),
        iscrowd=0,
        segmentation=dict(size=list(mask.shape), counts=rle['counts'].decode('ascii')))


def convert(src: Path, out: Path, val_fraction: float = 0.2, seed: int = 0) -> str:
    """Convert the data set in ``src`` to a new folder ``out`` and return a summary."""
    splits = split_samples(find_samples(src), val_fraction, seed)
    lines = []
    with complete_or_absent(out) as part:
        (part / 'images').mkdir()
        for split, samples in splits.items():
            images, annotations = [], []
            for image_id, sample in enumerate(tqdm(samples, desc=split), 1):
                name = f'{sample.name}.png'
                image = read_image(sample / 'images' / name).convert('RGB')
                images.append(dict(id=image_id, file_name=name, height=image.height, width=image.width))
                for path in sorted(sample.glob('masks/*.png')):
                    mask = read_mask(path, image.height, image.width)
                    if mask.any():
                        annotations.append(dict(image_id=image_id, **annotate(mask)))
                image.save(part / 'images' / name)
            write_coco(part / f'annotations/instances_{split}.json', images, annotations, CLASSES)
            lines.append(f'{split}: {len(images)} images, {len(annotations)} nuclei')
    return '\n'.join([*lines, f'written to {out}'])


def main() -> None:
    parser = make_parser(__doc__, 'unpacked stage1_train, or the folder that holds it', 'data/nuclei')
    parser.add_argument('--val-fraction', type=float, default=0.2, help='share of the images that validate')
    parser.add_argument('--seed', type=int, default=0, help='seed of the split')
    args = parser.parse_args()
    run(lambda: convert(args.src, args.out, args.val_fraction, args.seed))


if __name__ == '__main__':
    main()
