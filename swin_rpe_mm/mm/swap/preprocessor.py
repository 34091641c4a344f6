"""The data preprocessor that tells the backbone the extent of each image, with the settings of the old one."""
from __future__ import annotations

from collections.abc import Iterator

from ..configs import type_name

# what the published weights were trained with: RGB, mean and deviation of ImageNet
MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]

_OURS = {
    'DetDataPreprocessor': 'swin_rpe_mm.DetDataPreprocessor',
    'SegDataPreProcessor': 'swin_rpe_mm.SegDataPreprocessor',
}


def swap_preprocessors(model: dict, path: tuple[str, ...], task: str, normalise: bool) -> list[str]:
    """Swap the types of the data preprocessors of a model and of the wrappers around it.

    Args:
        model (dict): The model, which is changed.
        path (tuple[str, ...]): Keys from the model to the dict that holds the backbone.
        task (str): ``'detection'`` or ``'segmentation'``.
        normalise (bool): Whether images are to be normalised as those that the published weights were trained on.

    Returns:
        list[str]: Sentences about what was done.
    """
    notes = []
    default = 'SegDataPreProcessor' if task == 'segmentation' else 'DetDataPreprocessor'
    if not any(True for _ in _preprocessors(model, path)):
        model['data_preprocessor'] = dict(type=default)
        notes.append('the model has no data preprocessor, and gets one')
    for node in _preprocessors(model, path):
        name = type_name(node)
        if normalise and _normalise(node):
            notes.append(f'{name}: images are normalised to the mean {MEAN} and deviation {STD} of ImageNet in RGB, as '
                         "Swin's weights expect")
        if name in _OURS:
            node['type'] = _OURS[name]
        elif node['type'] not in _OURS.values():
            notes.append(f'{name} is kept; it does not tell the extents of images, so that the padding of a batch is '
                         'taken for content')
    return list(dict.fromkeys(notes))


def _preprocessors(model: dict, path: tuple[str, ...]) -> Iterator[dict]:
    """Those that see images: of several branches, the one inside."""
    node = model
    for key in (*path, None):
        inner = node.get('data_preprocessor')
        while isinstance(inner, dict) and isinstance(inner.get('data_preprocessor'), dict):
            inner = inner['data_preprocessor']
        if isinstance(inner, dict):
            yield inner
        if key is not None:
            node = node[key]


def _normalise(node: dict) -> bool:
    """Set the normalisation where it is another one, and say whether it was."""
    settings = list(node.get('mean') or []), list(node.get('std') or []), node.get('bgr_to_rgb')
    if settings == (MEAN, STD, True):
        return False
    node.update(mean=list(MEAN), std=list(STD), bgr_to_rgb=True)
    if node.get('rgb_to_bgr'):
        node['rgb_to_bgr'] = False
    return True
