"""What testing adds to a config: files of predictions, pictures, test-time augmentation."""
from __future__ import annotations

import os
from copy import deepcopy

from mmengine.config import Config, ConfigDict

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import as_list, leaf_datasets, task_of, type_name, walk


def write_predictions(cfg: Config, out: str) -> list[str]:
    """Write a pickle file of predictions (detection), or a folder of label PNGs (segmentation)."""
    metrics = as_list(cfg.test_evaluator)
    suffix = os.path.splitext(out)[1]
    if task_of(cfg) == 'detection':
        if suffix not in ('.pkl', '.pickle'):
            raise InputError(f'--out {out}: for detection it is a file that ends in .pkl or .pickle')
        cfg.test_evaluator = [*metrics, dict(type='DumpDetResults', out_file_path=out)]
        return [f'predictions go to the file {out}']
    if suffix or os.path.isfile(out):
        raise InputError(f'--out {out}: for segmentation it is a folder, for one PNG of labels per image')
    for metric in metrics:
        metric['output_dir'] = out
    cfg.test_evaluator = metrics
    return [f'label maps go to the folder {out}']


def draw_predictions(cfg: Config, show: bool, show_dir: str | None, wait_time: float) -> list[str]:
    """Show predictions on the screen, or draw them into a folder."""
    cfg.setdefault('default_hooks', {})
    present = cfg.default_hooks.get('visualization') or {}
    cfg.default_hooks.visualization = dict(
        type='swin_rpe_mm.PredictionPicturesHook', out_dir=show_dir and os.path.abspath(show_dir), show=show,
        wait_time=wait_time, score_thr=present.get('score_thr', 0.3))
    return [f'pictures go to {os.path.abspath(show_dir)}'] if show_dir else []


def augment_at_test_time(cfg: Config) -> list[str]:
    """Test each image in several versions, by the config's ``tta_model`` and ``tta_pipeline``.

    A detector without them is tested with and without a horizontal flip.
    """
    notes = []
    if task_of(cfg) == 'detection':
        notes = _default_detection_tta(cfg)
    absent = [name for name in ('tta_model', 'tta_pipeline') if name not in cfg]
    if absent:
        raise InputError(f'--tta needs {" and ".join(absent)} in the config, which lacks it')
    if type_name(cfg.tta_model) == 'DetTTAModel' and any(node.get('mask_head') for node in walk(cfg.model)):
        raise InputError('--tta with DetTTAModel merges boxes only, and this model predicts masks too '
                         '(mask_head): test it without --tta')
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
    for dataset in leaf_datasets(cfg.test_dataloader.dataset):
        dataset.pipeline = cfg.tta_pipeline
    return notes


def _default_detection_tta(cfg: Config) -> list[str]:
    notes = []
    if 'tta_model' not in cfg:
        notes.append('the config has no tta_model: boxes are merged by NMS at IoU 0.5')
        cfg.tta_model = dict(
            type='DetTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100))
    if 'tta_pipeline' not in cfg:
        notes.append('the config has no tta_pipeline: images are tested with and without a horizontal flip')
        keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'flip', 'flip_direction')
        steps = deepcopy(next(leaf_datasets(cfg.test_dataloader.dataset)).pipeline)[:-1]
        flips = [dict(type='RandomFlip', prob=1.), dict(type='RandomFlip', prob=0.)]
        pack = [dict(type='PackDetInputs', meta_keys=keys)]
        cfg.tta_pipeline = [*steps, dict(type='TestTimeAug', transforms=[flips, pack])]
    return notes
