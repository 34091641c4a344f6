"""Tiny data sets laid out exactly like the real ones: same folders, file names, class names and label values."""
import json
from pathlib import Path

import cv2
import numpy as np
import pycocotools.mask

# the categories of COCO 2017 in its own numbering, which leaves out ten of the numbers from 1 to 90
COCO_CATEGORIES = {
    1: 'person', 2: 'bicycle', 3: 'car', 4: 'motorcycle', 5: 'airplane', 6: 'bus', 7: 'train', 8: 'truck', 9: 'boat',
    10: 'traffic light', 11: 'fire hydrant', 13: 'stop sign', 14: 'parking meter', 15: 'bench', 16: 'bird', 17: 'cat',
    18: 'dog', 19: 'horse', 20: 'sheep', 21: 'cow', 22: 'elephant', 23: 'bear', 24: 'zebra', 25: 'giraffe',
    27: 'backpack', 28: 'umbrella', 31: 'handbag', 32: 'tie', 33: 'suitcase', 34: 'frisbee', 35: 'skis',
    36: 'snowboard', 37: 'sports ball', 38: 'kite', 39: 'baseball bat', 40: 'baseball glove', 41: 'skateboard',
    42: 'surfboard', 43: 'tennis racket', 44: 'bottle', 46: 'wine glass', 47: 'cup', 48: 'fork', 49: 'knife',
    50: 'spoon', 51: 'bowl', 52: 'banana', 53: 'apple', 54: 'sandwich', 55: 'orange', 56: 'broccoli', 57: 'carrot',
    58: 'hot dog', 59: 'pizza', 60: 'donut', 61: 'cake', 62: 'chair', 63: 'couch', 64: 'potted plant', 65: 'bed',
    67: 'dining table', 70: 'toilet', 72: 'tv', 73: 'laptop', 74: 'mouse', 75: 'remote', 76: 'keyboard',
    77: 'cell phone', 78: 'microwave', 79: 'oven', 80: 'toaster', 81: 'sink', 82: 'refrigerator', 84: 'book',
    85: 'clock', 86: 'vase', 87: 'scissors', 88: 'teddy bear', 89: 'hair drier', 90: 'toothbrush'
}
SIZES = ((96, 128), (120, 90))  # heights and widths: one wide image, one tall one


def numbered(names: tuple[str, ...]) -> dict[int, str]:
    """Category numbers from 1 without gaps."""
    return dict(enumerate(names, 1))


def write_image(path: Path, size: tuple[int, int], seed: int) -> None:
    """Write noise of ``(h, w)``; the suffix of ``path`` decides the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    assert cv2.imwrite(str(path), pixels)


def ellipse(size: tuple[int, int], centre: tuple[int, int], axes: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(size, np.uint8)
    cv2.ellipse(mask, centre, axes, 0, 0, 360, 1, -1)
    return mask


def write_coco(ann_file: Path, img_dir: Path, names: list[str], categories: dict[int, str], masks: str) -> None:
    """Write images and a COCO instance file; ``masks`` is 'polygon', 'rle' or 'none' (boxes only).

    The objects go through all categories, first the last one, so that a wrong mapping of numbers to classes shows. With
    polygons, every image also has a crowd region, as COCO has them.
    """
    images, annotations = [], []
    numbers = sorted(categories, reverse=True)

    def annotate(image_id: int, mask: np.ndarray, **more) -> None:
        rle = pycocotools.mask.encode(np.asfortranarray(mask))
        annotation = dict(id=len(annotations) + 1, image_id=image_id, bbox=pycocotools.mask.toBbox(rle).tolist(),
                          category_id=numbers[len(annotations) % len(numbers)], area=int(mask.sum()), iscrowd=0)
        if masks == 'polygon':
            contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
            annotation['segmentation'] = [contour.ravel().tolist() for contour in contours]
        elif masks == 'rle':
            annotation['segmentation'] = dict(size=rle['size'], counts=rle['counts'].decode('ascii'))
        annotations.append(dict(annotation, **more))

    for image_id, (name, size) in enumerate(zip(names, SIZES, strict=True), 1):
        write_image(img_dir / name, size, seed=image_id)
        images.append(dict(id=image_id, file_name=name, height=size[0], width=size[1], license=1))
        h, w = size
        annotate(image_id, ellipse(size, (w // 3, h // 3), (w // 4, h // 5)))
        annotate(image_id, ellipse(size, (2 * w // 3, 2 * h // 3), (w // 6, h // 4)))
        if masks == 'polygon':
            runs = [w * h - 20, 20]  # uncompressed run lengths: the last 20 pixels
            annotate(image_id, ellipse(size, (w - 5, h - 5), (3, 3)), iscrowd=1,
                     segmentation=dict(size=[h, w], counts=runs))
    ann_file.parent.mkdir(parents=True, exist_ok=True)
    ann_file.write_text(json.dumps(dict(
        info=dict(description=ann_file.stem), licenses=[dict(id=1, name='none')], images=images,
        annotations=annotations, categories=[dict(id=i, name=name) for i, name in categories.items()])))


def write_labels(ann_dir: Path, img_dir: Path, names: list[str], suffix: str, values: list[int]) -> None:
    """Write images and label maps of blocks that take the ``values`` in turn."""
    ann_dir.mkdir(parents=True)
    for seed, (name, (h, w)) in enumerate(zip(names, SIZES, strict=True)):
        write_image(img_dir / f'{name}{suffix}', (h, w), seed)
        blocks = np.arange(h)[:, None] // 16 * (w // 16 + 1) + np.arange(w) // 16
        cv2.imwrite(str(ann_dir / f'{name}.png'), np.array(values, np.uint8)[blocks % len(values)])


def make_coco(root: Path) -> None:
    """``annotations/instances_{train,val}2017.json`` and ``{train,val}2017/``, as in the official archives."""
    for split, names in dict(train=['000000000009.jpg', '000000000025.jpg'],
                             val=['000000000139.jpg', '000000000285.jpg']).items():
        write_coco(root / f'annotations/instances_{split}2017.json', root / f'{split}2017', names, COCO_CATEGORIES,
                   masks='polygon')


def make_ade20k(root: Path) -> None:
    """ADEChallengeData2016: label 0 is "other", 1 to 150 are the classes."""
    for split, short in dict(training='train', validation='val').items():
        write_labels(root / f'ADEChallengeData2016/annotations/{split}', root / f'ADEChallengeData2016/images/{split}',
                     [f'ADE_{short}_0000000{i}' for i in (1, 2)], '.jpg', [0, 1, 2, 75, 149, 150])


def make_bccd(root: Path) -> None:
    """What tools/dataset_converters/bccd.py writes."""
    for split, ids in dict(train=(1, 3), val=(0, 2), test=(7, 11)).items():
        write_coco(root / f'annotations/instances_{split}.json', root / 'images',
                   [f'BloodImage_{i:05}.jpg' for i in ids], numbered(('RBC', 'WBC', 'Platelets')), masks='none')


def make_nuclei(root: Path) -> None:
    """What tools/dataset_converters/nuclei.py writes."""
    for split, names in dict(train=['00ae65c1.png', '0121d675.png'], val=['e414b54f.png', '785555c0.png']).items():
        write_coco(root / f'annotations/instances_{split}.json', root / 'images', names, numbered(('nucleus', )),
                   masks='rle')


def make_camvid(root: Path) -> None:
    """What tools/dataset_converters/camvid.py writes: classes 0 to 10, 255 is void."""
    for split in ('train', 'val', 'test'):
        write_labels(root / f'ann_dir/{split}', root / f'img_dir/{split}', ['0001TP_008550', '0001TP_008580'], '.jpg',
                     [*range(11), 255])


def make_shapes(root: Path) -> None:
    """What tools/dataset_converters/shapes.py writes: one set of images, both kinds of labels."""
    for split in ('train', 'val'):
        names = ['000000', '000001']
        write_labels(root / f'ann_dir/{split}', root / f'img_dir/{split}', names, '.png', list(range(5)))
        write_coco(root / f'annotations/instances_{split}.json', root / f'img_dir/{split}',
                   [f'{name}.png' for name in names], numbered(('circle', 'square', 'triangle', 'star')),
                   masks='polygon')


# where the configs look for each set, seen from the folder that training starts in
MAKERS = {
    'data/coco': make_coco,
    'data/ade': make_ade20k,
    'data/bccd': make_bccd,
    'data/nuclei': make_nuclei,
    'data/camvid': make_camvid,
    'data/shapes': make_shapes,
}


def make_all(root: Path) -> None:
    """Write every set below ``root``."""
    for folder, make in MAKERS.items():
        make(root / folder)
