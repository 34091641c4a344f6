"""Reading a config and fitting it to this run: where its data are, what is installed, what the arguments ask for.

Functions change the config they are given and return the lines for the log that say so.
"""
from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.registry import OPTIMIZERS

from ..errors import InputError
from .checkpoint_files import check_checkpoint, find_resumable

_SPLITS = ('train', 'val', 'test')


def load_config(path: str, options: dict | None = None) -> Config:
    """Read a config file and override some of its settings."""
    if not Path(path).is_file():
        raise InputError(f'config file {path} does not exist')
    try:
        cfg = Config.fromfile(path)
    except (FileNotFoundError, SyntaxError) as error:
        raise InputError(f'config file {path} cannot be read: {" ".join(str(error).split())}') from error
    if options:
        cfg.merge_from_dict(options)
    return cfg


def set_work_dir(cfg: Config, work_dir: str | None) -> None:
    """The argument comes first, then the config's own ``work_dir``, then a folder named after the config."""
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(cfg.filename).stem))


def require(cfg: Config, *names: str) -> None:
    """Raise :class:`InputError` for settings that the config lacks."""
    absent = [name for name in names if cfg.get(name) is None]
    if absent:
        raise InputError(f'config file {cfg.filename} lacks {", ".join(absent)}')


def type_name(node: dict) -> str:
    """The name of a node's ``type``, without its scope; configs in Python's own syntax hold the class itself."""
    kind = node.get('type')
    return str(kind if isinstance(kind, str) else getattr(kind, '__name__', '')).rpartition('.')[2]


def task_of(cfg: Config) -> str:
    """``'segmentation'`` for a config of MMSegmentation, else ``'detection'``."""
    return 'segmentation' if cfg.get('default_scope') == 'mmseg' else 'detection'


def ignores_padding(cfg: Config) -> bool:
    """Whether the config's model is one that :func:`swin_rpe_mm.make_padding_invariant` is applied to."""
    return any(type_name(hook) == 'PaddingInvarianceHook' for hook in as_list(cfg.get('custom_hooks')))


def has_ops() -> bool:
    """Whether mmcv came with its compiled operators, without which MMDetection cannot be imported."""
    try:
        import mmcv.ops  # noqa: F401
    except ImportError:
        return False
    return True


def check_ops(cfg: Config) -> None:
    """Raise :class:`InputError` for a detector where mmcv has no compiled operators."""
    if task_of(cfg) == 'detection' and not has_ops():
        raise InputError("detectors need mmcv's compiled operators, which are missing here: install a C++ compiler and "
                         'run make setup, or install mmcv with its operators')


def as_list(value: Any) -> list:
    """A setting that may be absent, one or several, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def leaf_datasets(dataset: ConfigDict) -> Iterator[ConfigDict]:
    """The data sets inside any wrappers (concatenated, repeated, balanced, mixed)."""
    inner = as_list(dataset.get('dataset')) + as_list(dataset.get('datasets'))
    if not inner:
        yield dataset
    for child in inner:
        yield from leaf_datasets(child)


def walk(node: Any) -> Iterator[dict]:
    """Every dict inside ``node``, itself included."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from walk(child)


def is_local(path: str) -> bool:
    """Whether a path lies in the file system, not behind a URL or another storage."""
    return '://' not in path


def find_data(cfg: Config) -> list[str]:
    """Let relative data paths be found from any current folder.

    What does not exist in the current folder is looked for in the config file's folder and in each one above it.
    """
    moved = {}

    def locate(holder: dict, key: str) -> None:
        path = holder.get(key)
        if not isinstance(path, str) or not path or not is_local(path) or Path(path).exists():
            return
        for folder in Path(cfg.filename).absolute().parents:
            if (folder / path).exists():
                holder[key] = moved[path] = str(folder / path)
                return

    for split in _SPLITS:
        loader = cfg.get(f'{split}_dataloader') or {}
        for dataset in leaf_datasets(loader['dataset']) if loader.get('dataset') else ():
            if dataset.get('data_root'):
                locate(dataset, 'data_root')
            else:
                locate(dataset, 'ann_file')
                for key in dataset.get('data_prefix') or {}:
                    locate(dataset['data_prefix'], key)
        for metric in as_list(cfg.get(f'{split}_evaluator')):
            for key in ('ann_file', 'seg_prefix'):
                locate(metric, key)
    return [f'{path} is not in the current folder: taking {found}' for path, found in moved.items()]


def without_sync_bn(cfg: Config) -> list[str]:
    """Turn SyncBN into BN where there are no other processes, or no GPUs, to keep in step with."""
    if cfg.get('launcher', 'none') != 'none' and get_device() != 'cpu':
        return []
    layers = [node for node in walk(cfg.model) if type_name(node) in ('SyncBN', 'MMSyncBN', 'SyncBatchNorm')]
    for layer in layers:
        layer['type'] = 'BN'
    cfg.pop('sync_bn', None)
    reason = 'there is one process only' if cfg.get('launcher', 'none') == 'none' else 'there is no GPU'
    return [f'SyncBN is turned into BN, because {reason}'] if layers else []


def add_tensorboard(cfg: Config) -> list[str]:
    """Log to TensorBoard too if it is installed."""
    if not (find_spec('tensorboard') or find_spec('tensorboardX')):
        return []
    if cfg.get('visualizer') is None:
        cfg.visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
    backends = as_list(cfg.visualizer.get('vis_backends'))
    if any(type_name(backend) == 'TensorboardVisBackend' for backend in backends):
        return []
    cfg.visualizer.vis_backends = [*backends, dict(type='TensorboardVisBackend')]
    return ['TensorBoard is installed: scalars go to vis_data/ as well']


def use_amp(cfg: Config, wanted: bool) -> None:
    """Train in mixed precision if ``wanted``; say so in one sentence where that is not possible."""
    kind = type_name(cfg.optim_wrapper) or 'OptimWrapper'
    if wanted and kind == 'OptimWrapper':
        cfg.optim_wrapper.type = kind = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    elif wanted and kind != 'AmpOptimWrapper':
        raise InputError(f'--amp needs an optim_wrapper of type OptimWrapper or AmpOptimWrapper, the config has {kind}')
    if kind == 'AmpOptimWrapper' and get_device() in ('cpu', 'mps'):
        source = '--amp' if wanted else "the config's optim_wrapper of type AmpOptimWrapper"
        raise InputError(f'{source} needs a GPU, and PyTorch finds none here: train without mixed precision')


def check_optimizer(cfg: Config) -> None:
    """Raise :class:`InputError` for an unknown optimizer, whose name mmengine loses on the way to its own error."""
    name = (cfg.optim_wrapper.get('optimizer') or {}).get('type')
    with OPTIMIZERS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
        if isinstance(name, str) and registry.get(name) is None:
            raise InputError(f'optim_wrapper.optimizer has the type {name!r}, which is no optimizer of PyTorch '
                             'or of a package that custom_imports names')


def scale_lr(cfg: Config) -> None:
    """Scale the learning rate with the batch size."""
    setting = cfg.get('auto_scale_lr') or {}
    if 'base_batch_size' not in setting:
        raise InputError('--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=N) in the config, which has none')
    cfg.auto_scale_lr.enable = True


def set_resume(cfg: Config, resume: str | None) -> list[str]:
    """Resume from a checkpoint, or with ``'auto'`` from the last whole one in the work folder, if any."""
    if resume is None and cfg.get('resume') and not cfg.get('load_from'):
        resume = 'auto'
    if resume is None:
        return []
    if resume != 'auto':
        check_checkpoint(resume)
        cfg.resume, cfg.load_from = True, resume
        return [f'training resumes from {resume}']
    found = find_resumable(cfg.work_dir)
    if found is None:
        cfg.resume = False
        return [f'there is no checkpoint to resume in {cfg.work_dir}: training starts at the beginning']
    cfg.resume, cfg.load_from = True, found
    return [f'training resumes from {found}']


def check_checkpoints(cfg: Config) -> None:
    """Raise :class:`InputError` for a checkpoint to start from that is not there, or is none."""
    if cfg.get('load_from'):
        check_checkpoint(cfg.load_from)
    for node in walk(cfg.model):
        if type_name(node) == 'Pretrained' and isinstance(node.get('checkpoint'), str):
            check_checkpoint(node['checkpoint'])


def add_hooks(cfg: Config) -> None:
    """Add the hooks that resume into other windows, and turn bad labels and bad checkpoints into one sentence."""
    hooks = [dict(type='swin_rpe_mm.CheckpointReportHook'), dict(type='swin_rpe_mm.StaleAveragesHook')]
    if task_of(cfg) == 'segmentation':
        hooks.append(dict(type='swin_rpe_mm.LabelRangeHook'))
    present = {type_name(hook) for hook in as_list(cfg.get('custom_hooks'))}
    cfg.custom_hooks = as_list(cfg.get('custom_hooks')) + [hook for hook in hooks if type_name(hook) not in present]


def save_whole_checkpoints(cfg: Config) -> None:
    """Swap mmengine's hook for the one that never leaves a half-written file, unless another storage is named."""
    cfg.setdefault('default_hooks', {})
    hook = cfg.default_hooks.setdefault('checkpoint', dict(type='CheckpointHook', interval=1))
    if hook is None or {'backend_args', 'file_client_args'} & set(hook) or not is_local(str(hook.get('out_dir'))):
        return
    if type_name(hook) == 'CheckpointHook':
        hook['type'] = 'swin_rpe_mm.WholeCheckpointHook'
