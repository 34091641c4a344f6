"""Where a model's backbone sits, and which dict holds it beside the neck and the heads that read it."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmengine.config import Config, ConfigDict

from ...errors import InputError
from ..configs import as_list, type_name
from .refusals import BACKBONES, HEADS, MODELS, NECKS, SwapRefused, refuse

# models beside the one to swap: what tells tracked objects apart, and what a student learns from
_OTHERS = ('reid', 'teacher')


@dataclass
class Place:
    """A model's backbone in its config.

    Attributes:
        path (tuple[str, ...]): Keys from the model to the dict that holds the backbone, ``('detector', )`` say.
        holder (ConfigDict): That dict.
    """
    path: tuple[str, ...]
    holder: ConfigDict

    @property
    def backbone(self) -> ConfigDict:
        return self.holder['backbone']

    @property
    def name(self) -> str:
        """As it is written in the config, ``model.detector.backbone`` say."""
        return '.'.join(('model', *self.path, 'backbone'))


def find_backbone(cfg: Config) -> Place:
    """Find the backbone in a model, inside any wrappers.

    Raises:
        InputError: If the config has no model, or the model no backbone or several.
        SwapRefused: If the model is one that has no backbone to swap.
    """
    model = cfg.get('model')
    if not isinstance(model, dict):
        raise InputError(f'config file {cfg.filename} lacks model')
    for wrapper in _wrappers(model):
        name = type_name(wrapper)
        if name in MODELS:
            raise refuse('model', name, MODELS[name])
    places = [Place(path, holder) for path, holder in _holders(model, ())]
    if len(places) != 1:
        found = ', '.join(place.name for place in places) or 'none'
        raise InputError(f'the model must have one backbone, found {found}')
    place, = places
    name = type_name(place.backbone)
    if name in BACKBONES:
        raise refuse('backbone', name, BACKBONES[name])
    for neck in necks_of(place.holder):
        if type_name(neck) in NECKS:
            raise refuse('neck', type_name(neck), NECKS[type_name(neck)])
    for head in as_list(place.holder.get('decode_head')):
        if type_name(head) in HEADS:
            raise refuse('head', type_name(head), HEADS[type_name(head)])
    shared = (place.holder.get('roi_head') or {}).get('shared_head')
    if shared:
        raise SwapRefused(f'the heads share {type_name(shared)}, the last stage of {name} run on each box, whose '
                          'channels and weights are those of that backbone')
    return place


def necks_of(holder: dict) -> list[ConfigDict]:
    """The necks in the order in which they run."""
    return as_list(holder.get('neck') or None)


def _wrappers(model: dict) -> Iterator[dict]:
    yield model
    if isinstance(model.get('detector'), dict):
        yield model['detector']


def _holders(node: dict, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict]]:
    if isinstance(node.get('backbone'), dict):
        yield path, node
        return
    for key, value in node.items():
        if isinstance(value, dict) and key not in _OTHERS:
            yield from _holders(value, (*path, key))
