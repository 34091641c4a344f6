from .gather import Gather
from .key_groups import KeyGroup, all_keys, group_by_keys, groups_of_parts
from .layout import WindowLayout
from .parts import Part, Parts, cut_into_parts

__all__ = [
    'Gather', 'KeyGroup', 'Part', 'Parts', 'WindowLayout', 'all_keys', 'cut_into_parts', 'group_by_keys',
    'groups_of_parts'
]
