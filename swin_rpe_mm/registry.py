"""Registries of this package: children of mmengine's roots, with the scope ``swin_rpe_mm``.

A config reaches what is registered here as ``type='swin_rpe_mm.NAME'`` from MMDetection, MMSegmentation and plain
mmengine. What has no namesake elsewhere is registered with mmengine's root as well, so that the bare name works.
"""
from mmengine.registry import HOOKS as ROOT_HOOKS
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry

MODELS = Registry(
    'model',
    parent=ROOT_MODELS,
    scope='swin_rpe_mm',
    locations=['swin_rpe_mm.rpe', 'swin_rpe_mm.mm.backbone', 'swin_rpe_mm.mm.data_preprocessors'])
WINDOWS = Registry('windows', scope='swin_rpe_mm', locations=['swin_rpe_mm.windows'])
HOOKS = Registry('hook', parent=ROOT_HOOKS, scope='swin_rpe_mm', locations=['swin_rpe_mm.mm.hooks'])


def register_everywhere(registry: Registry):
    """Class decorator: register with ``registry`` and with mmengine's root, for configs that use the bare name."""

    def decorator(cls):
        registry.register_module(module=cls)
        registry.parent.register_module(module=cls)
        return cls

    return decorator
