from .extents import attach_extents, get_extents, merge_extents, zero_outside

__all__ = ['attach_extents', 'get_extents', 'merge_extents', 'zero_outside']
