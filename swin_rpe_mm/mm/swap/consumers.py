"""Everything that reads the backbone's maps, rewritten for other ones: necks, and heads that have no neck before them.

What lies behind a neck stays as it is, since a neck's own width does not depend on the backbone; where it does, as in
SSD's, the heads behind it are rewritten too.
"""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ...errors import InputError
from ..configs import as_list, type_name, walk
from .feature_maps import FeatureMap, backbone_maps, neck_maps
from .find import Place, necks_of
from .stages import STRIDES, match_stages

_HEADS_OF_SEGMENTORS = ('decode_head', 'auxiliary_head')
# settings that are no readers of maps
_NOT_READERS = ('backbone', 'neck', 'data_preprocessor', 'train_cfg', 'test_cfg', 'init_cfg', 'teacher_backbone',
                'teacher_neck', 'teacher_bbox_head')


@dataclass
class Wiring:
    """How the new backbone meets the rest of the model.

    Attributes:
        stages (list[int]): The stages that are returned.
        old, new (list[FeatureMap]): The maps of the old backbone, and those of the stages.
        unread (list[int]): Which of these stages nothing makes use of.
        notes (list[str]): Sentences about readers that were given another map than their own.
    """
    stages: list[int]
    old: list[FeatureMap]
    new: list[FeatureMap]
    unread: list[int]
    notes: list[str] = field(default_factory=list)


@dataclass
class _Reader:
    """A dict that reads maps, which ones, and in which order."""
    node: dict
    key: str
    indices: list[int]
    several: bool


def rewire(place: Place, task: str, scope: str | None, channels_of: Callable[[int], int]) -> Wiring:
    """Rewrite what reads the maps of the backbone for those of Swin.

    Only stages that something makes use of are returned: each has an output norm, which would never get a gradient
    otherwise.

    Args:
        place (Place): Where the backbone sits; necks and heads beside it are changed.
        task (str): ``'detection'`` or ``'segmentation'``.
        scope (str, optional): The config's ``default_scope``.
        channels_of (Callable): The channels of a stage.

    Raises:
        InputError: If a part cannot be built here, or nothing is found that reads the maps.
        SwapRefused: If Swin has no maps like the old ones.
    """
    old = backbone_maps(place.backbone, scope)
    if not old:
        raise InputError(f'{place.name}, {type_name(place.backbone)}, gives no maps of features')

    def wire(used: Sequence[int], read: Sequence[int]) -> Wiring:
        name = type_name(place.backbone)
        if task == 'detection':
            stages = match_stages([old[i] for i in used], task, name)
        else:
            matched = match_stages(old, task, name)
            stages = [matched[i] for i in used]
        new = [FeatureMap(channels_of(stage), STRIDES[0] * 2**stage) for stage in stages]
        return Wiring(stages, [old[i] for i in used], new, [stage for i, stage in zip(used, stages) if i not in read])

    if necks_of(place.holder):
        return _rewire_neck(place, old, scope, wire)
    readers = list(_readers(place.holder, old))
    notes = _share_maps(place.holder, readers)
    used = sorted({index for reader in readers for index in reader.indices})
    if not used:
        raise InputError(f'nothing beside {place.name} is found that reads its maps of {_channels(old)} channels')
    wiring = wire(used, used)
    wiring.notes += notes
    for reader in readers:
        _rewrite(reader, used, wiring.new)
    return wiring


def _rewire_neck(place: Place, old: Sequence[FeatureMap], scope: str | None,
                 wire: Callable[[Sequence[int], Sequence[int]], Wiring]) -> Wiring:
    """Rewrite the first neck, and what lies behind it if that depends on the width of the backbone."""
    neck, *further = necks_of(place.holder)
    try:
        behind, read = neck_maps(neck, old, scope)
    except InputError:
        # some operators are for GPUs only; a neck with a width of its own need not run
        if not isinstance(neck.get('out_channels'), int):
            raise
        behind, read = None, range(max(neck.get('start_level', 0), 0), len(old))
    before = copy.deepcopy(neck)
    # maps before and after those that are read are left out; where a neck counts on them all the same, all stay
    every = range(len(old))
    for used in (range(read[0], read[-1] + 1), every):
        wiring = wire(used, read)
        neck.clear()
        neck.update(copy.deepcopy(before))
        _rewrite_neck(neck, old, wiring.new, used)
        if behind is None:
            return wiring
        try:
            now, _ = neck_maps(neck, wiring.new, scope)
            break
        except InputError:
            if used == every:
                raise
    if [item.channels for item in behind] != [item.channels for item in now]:
        if further:
            raise InputError(f'{type_name(neck)} is as wide as the backbone, and necks behind it are not rewritten')
        for reader in _readers(place.holder, behind):
            _rewrite(reader, range(len(behind)), now)
    return wiring


def _rewrite_neck(neck: dict, old: Sequence[FeatureMap], new: Sequence[FeatureMap], used: Sequence[int]) -> None:
    """Put the new channels where the old ones stood, and count levels from the first map that is left."""
    value = neck.get('in_channels')
    listed = list(value) if isinstance(value, (list, tuple)) else []
    every, after = ([item.channels for item in maps] for maps in (old, new))
    kept = [every[i] for i in used]
    if isinstance(value, int) and kept == [value]:
        neck['in_channels'] = after[0]
        return
    if listed == kept[::-1] and listed != kept:  # YOLO's reads from the deepest map on
        after = after[::-1]
    elif listed not in (every, kept):
        raise InputError(f'{type_name(neck)} has in_channels={value}, and the backbone gives maps of '
                         f'{_channels(old)} channels')
    outs = neck.get('out_channels')
    if isinstance(outs, (list, tuple)) and list(outs[:len(listed)]) == listed:  # SSD's hands the maps on as they are
        neck['out_channels'] = type(outs)((*after, *outs[len(listed):]))
    neck['in_channels'] = type(value)(after)
    for key in ('start_level', 'end_level') if listed != kept else ():
        if neck.get(key, -1) >= used[0]:
            neck[key] -= used[0]


def _readers(holder: dict, maps: Sequence[FeatureMap]) -> Iterator[_Reader]:
    """What beside a backbone and its necks reads some of ``maps``, as its channels tell."""
    channels = [item.channels for item in maps]
    for key, part in holder.items():
        if key in _NOT_READERS:
            continue
        own_heads = as_list(part) if key in _HEADS_OF_SEGMENTORS else []
        for node in walk(part):
            value, indices = node.get('in_channels'), node.get('in_index')
            if isinstance(value, (list, tuple)):
                value = list(value)
                for order in ([int(i) for i in indices] if isinstance(indices, (list, tuple)) else None,
                              list(range(len(maps))), list(range(len(maps)))[::-1]):
                    if order is not None and max(order) < len(maps) and value == [channels[i] for i in order]:
                        if type_name(node) == 'EncHead' and not node.get('add_lateral'):
                            order = order[-1:]  # the others are for its lateral convolutions
                        yield _Reader(node, 'in_channels', [i % len(maps) for i in order], True)
                        break
            elif isinstance(value, int):
                is_head = any(node is head for head in own_heads)
                index = indices if isinstance(indices, int) else -1 if is_head or len(maps) == 1 else None
                if index is not None and -len(maps) <= index < len(maps) and value == channels[index]:
                    yield _Reader(node, 'in_channels', [index % len(maps)], False)
            if node.get('c1_in_channels') == channels[0]:
                yield _Reader(node, 'c1_in_channels', [0], False)
            if len(maps) == 1 and 'featmap_strides' in node and node.get('out_channels') == channels[0]:
                yield _Reader(node, 'out_channels', [0], False)


def _share_maps(holder: dict, readers: Sequence[_Reader]) -> list[str]:
    """Let a head that gives the prior of an ``OCRHead`` read the same map as that.

    OCRNet (arXiv:1909.11065) weighs each cell of its map with the prior, which must be of the same size. Two maps of a
    dilated backbone are; those of Swin never are.
    """
    heads = holder.get('decode_head')
    if not isinstance(heads, (list, tuple)):
        return []
    notes = []
    by_node = {id(reader.node): reader for reader in readers if reader.key == 'in_channels' and not reader.several}
    for i, (head, following) in enumerate(zip(heads, heads[1:])):
        prior, ocr = by_node.get(id(head)), by_node.get(id(following))
        if type_name(following) == 'OCRHead' and prior and ocr and prior.indices != ocr.indices:
            prior.indices = ocr.indices
            notes.append(f'decode_head[{i}], {type_name(head)}, reads the same map as decode_head[{i + 1}], OCRHead, '
                         'which needs its prior in the size of its own map')
    return notes


def _rewrite(reader: _Reader, used: Sequence[int], new: Sequence[FeatureMap]) -> None:
    """Give a reader the channels of the new maps, and their places among those that are left."""
    places = [used.index(index) for index in reader.indices]
    channels = [new[i].channels for i in places]
    node, key = reader.node, reader.key
    if node.get('num_convs') == 0 and node.get('channels') == node[key]:  # the classifier reads the map itself
        node['channels'] = channels[0]
    node[key] = type(node[key])(channels) if reader.several else channels[0]
    index = node.get('in_index')
    if key == 'in_channels' and isinstance(index, (list, tuple)):
        node['in_index'] = type(index)(places)
    elif key == 'in_channels' and isinstance(index, int) and index >= 0:
        node['in_index'] = places[0]


def _channels(maps: Sequence[FeatureMap]) -> str:
    return ', '.join(str(item.channels) for item in maps)
