"""Convert BCCD_Dataset (blood cells, Pascal VOC xml) to COCO json.

Writes DIR/images and DIR/annotations/instances_{train,val,test}.json, with the split as published. Boxes are exact:
VOC counts pixels from 1 and includes the last one, COCO has the top left corner from 0, width and height.
"""
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from _common import complete_or_absent, find_root, make_parser, read_image, run, write_coco
from tqdm import tqdm

from swin_rpe_mm.errors import InputError

CLASSES = ('RBC', 'WBC', 'Platelets')
SPLITS = ('train', 'val', 'test')


def read_boxes(path: Path, width: int, height: int) -> list[dict]:
    """The objects of one VOC file as COCO annotations without image id; boxes are clipped to the image."""
    try:
        objects = ElementTree.parse(path).getroot().findall('object')
        named_boxes = [(obj.findtext('name'), [float(obj.findtext(f'bndbox/{key}'))
                                               for key in ('xmin', 'ymin', 'xmax', 'ymax')]) for obj in objects]
    except (OSError, ElementTree.ParseError, TypeError, ValueError) as error:
        raise InputError(f'annotation file {path} can not be read as VOC xml: {error}') from error

    annotations = []
    for name, (x_min, y_min, x_max, y_max) in named_boxes:
        if name not in CLASSES:
            raise InputError(f'annotation file {path} names the class {name!r}; allowed are {", ".join(CLASSES)}')
        x, y = max(x_min - 1, 0), max(y_min - 1, 0)
        w, h = min(x_max, width) - x, min(y_max, height) - y
        if w <= 0 or h <= 0:
            raise InputError(f'annotation file {path} has an empty box of {name}: '
                             f'({x_min:g}, {y_min:g}) to ({x_max:g}, {y_max:g}) in an image of {width}x{height}')
        annotations.append(
            dict(category_id=CLASSES.index(name) + 1, bbox=[x, y, w, h], area=w * h, iscrowd=0))
    return annotations


def read_split(path: Path) -> list[str]:
    """The image names in one file of ImageSets/Main."""
    try:
        return path.read_text().split()
    except OSError as error:
        raise InputError(f'split file {path} can not be read: {error.strerror}') from error


def convert(src: Path, out: Path) -> str:
    """Convert the data set in ``src`` to a new folder ``out`` and return a summary."""
    root = find_root(src, 'BCCD', ('JPEGImages', 'Annotations', 'ImageSets'))
    splits = {split: read_split(root / f'ImageSets/Main/{split}.txt') for split in SPLITS}
    lines = []
    with complete_or_absent(out) as part:
        (part / 'images').mkdir()
        for split, names in splits.items():
            images, annotations = [], []
            for image_id, name in enumerate(tqdm(names, desc=split), 1):
                photo = root / f'JPEGImages/{name}.jpg'
                width, height = read_image(photo).size
                images.append(dict(id=image_id, file_name=photo.name, height=height, width=width))
                boxes = read_boxes(root / f'Annotations/{name}.xml', width, height)
                annotations += [dict(image_id=image_id, **box) for box in boxes]
                shutil.copyfile(photo, part / 'images' / photo.name)
            write_coco(part / f'annotations/instances_{split}.json', images, annotations, CLASSES)
            lines.append(f'{split}: {len(images)} images, {len(annotations)} boxes')
    return '\n'.join([*lines, f'written to {out}'])


def main() -> None:
    parser = make_parser(__doc__, 'clone of github.com/Shenggan/BCCD_Dataset, or its folder BCCD', 'data/bccd')
    args = parser.parse_args()
    run(lambda: convert(args.src, args.out))


if __name__ == '__main__':
    main()
