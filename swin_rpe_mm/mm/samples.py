"""Pictures of the truth and the predictions in data samples, by the visualizers of MMDetection and MMSegmentation."""
from __future__ import annotations

import warnings

import cv2
import numpy as np
import torch
from mmengine.registry import VISUALIZERS
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from mmengine.visualization import Visualizer
from torch import Tensor

_SIDE = 640  # px; a longer side of less is enlarged, since names would cover what they name
_CAPTION, _GAP = 26, 6  # px
_FONT_SIZE = 10  # points


def default_visualizer(scope: str) -> dict:
    """The setting of a config that has none."""
    return dict(type='SegLocalVisualizer' if scope == 'mmseg' else 'DetLocalVisualizer')


def build_visualizer(settings: dict | None, scope: str, dataset_meta: dict) -> Visualizer:
    """The visualizer of a config, but with colours through which the image can be seen, and writing no files.

    Args:
        settings (dict, optional): The config's ``visualizer``.
        scope (str): Where its type is registered, such as ``mmdet``.
        dataset_meta (dict): ``classes`` and ``palette``, as data sets have them in ``metainfo``.
    """
    settings = {'alpha': 0.6, **(settings or default_visualizer(scope)), 'name': 'pictures', 'vis_backends': None}
    kind = settings.pop('type')
    if isinstance(kind, str):
        with VISUALIZERS.switch_scope_and_registry(scope) as registry:
            kind = registry.get(kind)
    visualizer = kind(**settings)  # not by build(), which would make it the current one of the whole program
    visualizer.dataset_meta = dict(dataset_meta)
    return visualizer


def draw_sample(visualizer: Visualizer, image: np.ndarray, sample: BaseDataElement, part: str,
                score_thr: float = 0.) -> np.ndarray | None:
    """Draw the truth or the prediction of a data sample.

    Args:
        visualizer (Visualizer): See :func:`build_visualizer`.
        image (np.ndarray): RGB, ``(H, W, 3)``, uint8.
        sample (BaseDataElement): A ``DetDataSample`` or ``SegDataSample``.
        part (str): ``'gt'`` for the truth, ``'pred'`` for the prediction.
        score_thr (float): The score that a predicted instance must reach.

    Returns:
        np.ndarray | None: RGB, ``(k * H, k * W, 3)`` with a whole number ``k`` that is above 1 for small images; None
        if the sample has no such part, or one of another size than the image.
    """
    times = max(1, round(_SIDE / max(image.shape[:2])))
    drawn, instances = type(sample)(), None
    for name, data in sample.cpu().items():
        if not name.startswith(f'{part}_'):
            continue
        size = _size(data)
        if size is not None and size != image.shape[:2]:
            return None
        data = _enlarge(_surest_last(data, score_thr), times)
        if isinstance(data, InstanceData):
            instances, data = data, _unnamed(data)
        setattr(drawn, name.replace(part, 'gt', 1), data)  # predictions too, so that no score is written or cut again
    if not list(drawn.keys()):
        return None
    image = np.ascontiguousarray(image.repeat(times, 0).repeat(times, 1))
    visualizer.set_image(image)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='.* out of bounds')  # of objects that the border of the image cuts
        visualizer.add_datasample('', image, drawn, draw_gt=True, draw_pred=False)
        if instances is not None and len(instances):
            _name(visualizer, instances)
    return visualizer.get_image()


def beside(**pictures: np.ndarray | None) -> np.ndarray:
    """Pictures of one height side by side, each below its name; those that are None are left out."""
    columns = []
    for name, picture in pictures.items():
        if picture is None:
            continue
        strip = np.full((_CAPTION, picture.shape[1], 3), 255, np.uint8)
        cv2.putText(strip, name, (4, _CAPTION - 8), cv2.FONT_HERSHEY_SIMPLEX, 0.55, (0, 0, 0), 1, cv2.LINE_AA)
        column = np.concatenate((strip, picture))
        columns += [np.full((len(column), _GAP, 3), 255, np.uint8), column]
    return np.concatenate(columns[1:], axis=1)


def _size(data: BaseDataElement) -> tuple[int, int] | None:
    """Height and width of maps and masks; None where there are boxes only."""
    if isinstance(data, PixelData):
        return tuple(data.shape)
    masks = data.get('masks')
    if masks is None:
        return None
    return tuple(masks.shape[-2:]) if isinstance(masks, (Tensor, np.ndarray)) else (masks.height, masks.width)


def _surest_last(data: BaseDataElement, score_thr: float) -> BaseDataElement:
    """Instances of a score from ``score_thr`` on, in the order in which they cover each other."""
    if not isinstance(data, InstanceData) or 'scores' not in data:
        return data
    data = data[data.scores >= score_thr]
    return data[data.scores.argsort()]


def _enlarge(data: BaseDataElement, times: int) -> BaseDataElement:
    """Instances or maps as they are on the image enlarged ``times`` times."""

    def repeat(values: Tensor | np.ndarray) -> Tensor:
        return torch.as_tensor(values).repeat_interleave(times, -2).repeat_interleave(times, -1)

    if isinstance(data, PixelData):
        return PixelData(metainfo=data.metainfo, **{key: repeat(values) for key, values in data.items()})
    large = InstanceData(**{key: data[key] for key in ('labels', 'scores') if key in data})
    if 'bboxes' in data:
        large.bboxes = torch.as_tensor(getattr(data.bboxes, 'tensor', data.bboxes)) * times
    if 'masks' in data:
        masks = data.masks
        large.masks = repeat(masks if isinstance(masks, (Tensor, np.ndarray)) else masks.to_ndarray()).bool()
    return large


def _unnamed(instances: InstanceData) -> InstanceData:
    """The same instances without names and scores: mmdet writes them too small to read beside small boxes."""
    kept = InstanceData(**{key: value for key, value in instances.items() if key != 'scores'})
    kept.label_names = [''] * len(instances)
    return kept


def _name(visualizer: Visualizer, instances: InstanceData) -> None:
    """Write class and score at the upper left corner of each instance."""
    classes = visualizer.dataset_meta.get('classes')
    names = [classes[label] if classes else f'class {label}' for label in instances.labels.tolist()]
    if 'scores' in instances:
        names = [f'{name} {score:.2f}' for name, score in zip(names, instances.scores.tolist())]
    height, width = visualizer.get_image().shape[:2]
    corners = np.clip(_corners(instances) + 3, 0, (width - 1, height - 1))
    box = dict(facecolor='black', alpha=0.6, pad=1.5, edgecolor='none')
    visualizer.draw_texts(names, corners, font_sizes=_FONT_SIZE, colors='w', bboxes=[box] * len(names))


def _corners(instances: InstanceData) -> np.ndarray:
    """``(n, 2)``, x and y; of the masks where a model such as SOLO gives boxes of zeros, or none."""
    if 'bboxes' in instances and instances.bboxes.any():
        return instances.bboxes[:, :2].numpy()
    places = [mask.nonzero() for mask in instances.masks]
    return np.array([place.amin(0).flip(0).tolist() if len(place) else (0, 0) for place in places], float)
