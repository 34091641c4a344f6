"""A look at all data before a run: every path, every file's end, every class name.

A missing or half-copied image would otherwise stop a training hours after it started.
"""
from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, TRANSFORMS
from PIL import Image
from rich.progress import track

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import as_list, is_local, leaf_datasets, type_name

_JPEG, _PNG = b'\xff\xd8\xff', b'\x89PNG'
_ENDS = {_JPEG: b'\xff\xd9', _PNG: b'IEND'}
_TAIL = 64  # bytes at the end of a file that are searched for the end marker
_CHUNK = 256  # files that one thread takes at a time
_SHOW_PROGRESS = 5000  # files from which on a bar is worth its space
_SAMPLED_MAPS = 64  # label maps whose values are looked at
_SHOWN_NAMES = 10


@dataclass(frozen=True)
class DataReport:
    """What was checked, and how long it took."""
    files: int
    seconds: float
    skipped: Sequence[str] = ()

    def __str__(self) -> str:
        text = f'data check: {self.files} image files are there and whole ({self.seconds:.1f} s)'
        return text + (f'; not checked: {", ".join(self.skipped)}' if self.skipped else '')


def check_data(cfg: Config, splits: Sequence[str]) -> DataReport:
    """Check the data of ``cfg``'s loaders; raise :class:`InputError` at the first thing that is wrong.

    Args:
        cfg (Config): The whole config.
        splits (Sequence[str]): Of ``'train'``, ``'val'`` and ``'test'``, those that the run will use.
    """
    scope = cfg.get('default_scope') or 'mmengine'
    leaves = [(f'{split}_dataloader', leaf) for split in splits if cfg.get(f'{split}_dataloader')
              for leaf in leaf_datasets(cfg[f'{split}_dataloader']['dataset'])]
    kinds = [_class_of(leaf, scope) for _, leaf in leaves]  # imports what the clock should not count
    start, files, skipped = time.perf_counter(), {}, []
    for split in splits:
        for metric in as_list(cfg.get(f'{split}_evaluator')):
            if metric.get('ann_file'):
                _require(metric['ann_file'], f'{split}_evaluator.ann_file', os.path.isfile)
    for (name, leaf), kind in zip(leaves, kinds):
        if not _is_plain(leaf, kind):
            skipped.append(f'{kind.__name__} of {name}')
            continue
        dataset = _open(leaf, kind, scope, name)
        for path in _files_of(dataset, leaf):
            files.setdefault(path, name)
        if hasattr(dataset, 'reduce_zero_label') and _loads_labels(leaf):
            _check_labels(dataset, leaf, scope)
    _raise_first_fault(files)
    return DataReport(len(files), time.perf_counter() - start, skipped)


def _is_plain(leaf: ConfigDict, kind: type) -> bool:
    """Whether the data set is a list of files on this machine."""
    backend = leaf.get('backend_args') or {}
    return isinstance(kind, type) and issubclass(kind, BaseDataset) and backend.get('backend', 'local') == 'local'


def _class_of(leaf: ConfigDict, scope: str) -> type:
    if not isinstance(leaf.type, str):
        return leaf.type
    with DATASETS.switch_scope_and_registry(scope) as registry:
        kind = registry.get(leaf.type)
        if kind is None:
            raise KeyError(f'{leaf.type} is not in the {registry.scope}::{registry.name} registry')
    return kind


def _open(leaf: ConfigDict, kind: type, scope: str, name: str) -> BaseDataset:
    """Build the data set without its pipeline; where that fails, or finds less than it should, say why."""
    wanted = (leaf.get('metainfo') or {}).get('classes') or getattr(kind, 'METAINFO', {}).get('classes')
    wanted = [wanted] if isinstance(wanted, str) else list(wanted or ())
    _check_paths(leaf, name)
    _check_known_classes(kind, wanted)
    bare = dict(leaf, pipeline=[], lazy_init=False, serialize_data=False, _scope_=scope)
    try:
        dataset = DATASETS.build(bare)
    except Exception:
        _explain(leaf, kind, wanted, name)
        raise
    if not dataset.data_list or len(getattr(dataset, 'cat_ids', wanted)) < len(wanted):
        _explain(leaf, kind, wanted, name)
    if not dataset.data_list:
        raise InputError(f'no image of {name} is left to use: none in {_source(leaf)} passes its filter_cfg '
                         f'{dict(leaf.get("filter_cfg") or {})}')
    return dataset


def _joined(leaf: ConfigDict, path: str) -> str:
    return os.path.join(leaf.get('data_root') or '', path)


def _source(leaf: ConfigDict) -> str:
    if leaf.get('ann_file'):
        return _joined(leaf, leaf.ann_file)
    prefix = leaf.get('data_prefix') or {}
    return _joined(leaf, prefix.get('img_path') or prefix.get('img') or '')


def _require(path: str, name: str, test=os.path.exists) -> None:
    if is_local(path) and not test(path):
        raise InputError(f'{name}: {path} does not exist (current folder: {os.getcwd()})')


def _check_paths(leaf: ConfigDict, name: str) -> None:
    if leaf.get('data_root'):
        _require(leaf.data_root, f'{name}.dataset.data_root')
    if leaf.get('ann_file'):
        _require(_joined(leaf, leaf.ann_file), f'{name}.dataset.ann_file')
    for key, prefix in (leaf.get('data_prefix') or {}).items():
        if 'seg' not in key or _loads_labels(leaf):
            _require(_joined(leaf, prefix) or '.', f'{name}.dataset.data_prefix[{key!r}]')


def _loads_labels(leaf: ConfigDict) -> bool:
    return 'Annotations' in str(leaf.get('pipeline'))


def _check_known_classes(kind: type, wanted: Sequence[str]) -> None:
    """MMSegmentation's data sets know their classes themselves, and a config chooses among them."""
    known = getattr(kind, 'METAINFO', {}).get('classes')
    unknown = [name for name in wanted if known and name not in known]
    if hasattr(kind, 'get_label_map') and unknown:
        raise InputError(f'metainfo.classes has {_names(unknown)}, not among the classes of {kind.__name__}, which are '
                         f'{_names(known)}')


def _explain(leaf: ConfigDict, kind: type, wanted: Sequence[str], name: str) -> None:
    """Raise :class:`InputError` if the reason why a data set cannot be used is one that can be told."""
    path = _source(leaf)
    if hasattr(kind, 'COCOAPI') and os.path.isfile(path):
        _explain_coco(path, wanted, name)
    suffix = leaf.get('img_suffix') or ('.jpg' if kind.__name__ == 'BaseSegDataset' else None)
    if os.path.isdir(path) and suffix and not any(Path(path).rglob(f'*{suffix}')):
        raise InputError(f'folder {path} of {name} has no file that ends in {suffix} (img_suffix)')


def _explain_coco(path: str, wanted: Sequence[str], name: str) -> None:
    try:
        with open(path, encoding='utf-8') as file:
            content = json.load(file)
    except ValueError as error:
        raise InputError(f'annotation file {path} is not valid JSON: {error}') from None
    keys = ('images', 'annotations', 'categories')
    absent = [key for key in keys if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if absent:
        raise InputError(f"annotation file {path} lacks the list {_names(absent)}: COCO's format has {_names(keys)}")
    if not content['images']:
        raise InputError(f'annotation file {path} lists no images')
    present = [category['name'] for category in content['categories']]
    unknown = [label for label in wanted if label not in present]
    if unknown:
        raise InputError(f'{name}: metainfo.classes has {_names(unknown)}, not among the categories of {path}, which '
                         f'are {_names(present)}')


def _names(names: Sequence[str]) -> str:
    shown = ', '.join(repr(str(name)) for name in names[:_SHOWN_NAMES])
    return shown + (f' and {len(names) - _SHOWN_NAMES} more' if len(names) > _SHOWN_NAMES else '')


def _files_of(dataset: BaseDataset, leaf: ConfigDict) -> Iterator[str]:
    keys = ('img_path', 'seg_map_path') if _loads_labels(leaf) else ('img_path', )
    for info in dataset.data_list:
        for key in keys:
            if isinstance(info.get(key), str) and is_local(info[key]):
                yield info[key]


def _check_labels(dataset: BaseDataset, leaf: ConfigDict, scope: str) -> None:
    """Load some label maps as the pipeline will, and compare their values with the classes."""
    loaders = [step for step in leaf.get('pipeline') or () if type_name(step) == 'LoadAnnotations']
    if not loaders:
        return
    transform = TRANSFORMS.build(dict(loaders[0], _scope_=scope))
    classes = len(dataset.metainfo['classes'])
    step = -(-len(dataset.data_list) // _SAMPLED_MAPS)
    for info in dataset.data_list[::step]:
        if fault_of_image(info['seg_map_path']):
            continue  # reported with the other files
        labels = transform(dict(info, seg_fields=[]))['gt_seg_map']
        if labels.ndim != 2:
            raise InputError(f'label map {info["seg_map_path"]} has {labels.shape[-1]} channels: it must have one, '
                             'whose values are class indices')
        wrong = [value for value in np.unique(labels) if value >= classes and value != dataset.ignore_index]
        if wrong:
            zero = ' after reduce_zero_label' if dataset.reduce_zero_label else ''
            raise InputError(f'label map {info["seg_map_path"]} holds the value {wrong[0]}{zero}: allowed are 0 to '
                             f'{classes - 1}, the classes, and {dataset.ignore_index} for what is ignored')


def fault_of_image(path: str) -> str | None:
    """What keeps a file from being a whole image, or None.

    A JPEG or PNG with its end marker counts as whole and is not decoded; one without is decoded to be sure, because
    some programs write more bytes after it.
    """
    try:
        with open(path, 'rb') as file:
            head = file.read(4)
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            tail = file.read()
    except OSError as error:
        return 'does not exist' if isinstance(error, FileNotFoundError) else f'cannot be read ({error.strerror})'
    if not head:
        return 'is empty'
    end = next((end for magic, end in _ENDS.items() if head.startswith(magic)), None)
    if end is None:
        return None if Path(path).suffix.lower() not in ('.jpg', '.jpeg', '.png') else _decoding_fault(path)
    return None if end in tail else _decoding_fault(path)


def _decoding_fault(path: str) -> str | None:
    try:
        with Image.open(path) as image:
            image.load()
    except Image.UnidentifiedImageError:
        return 'is not an image'
    except (OSError, SyntaxError):
        return 'is cut short or damaged'
    return None


def _raise_first_fault(files: dict[str, str]) -> None:
    faults = list(_faults(list(files)))
    if faults:
        path, fault = faults[0]
        others = f', and {len(faults) - 1} more of its {len(files)} files are like it' if len(faults) > 1 else ''
        raise InputError(f'image {path} of {files[path]} {fault}{others}')


def _faults(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    chunks = [paths[i:i + _CHUNK] for i in range(0, len(paths), _CHUNK)]
    with ThreadPoolExecutor(min(32, 4 * (os.cpu_count() or 1))) as pool:
        found: Iterable = pool.map(lambda chunk: [(path, fault_of_image(path)) for path in chunk], chunks)
        if len(paths) >= _SHOW_PROGRESS:
            found = track(found, description='checking data', total=len(chunks))
        for chunk in found:
            yield from ((path, fault) for path, fault in chunk if fault)
