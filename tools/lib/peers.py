"""Other implementations of Swin and SwinV2, to compare with.

One that Python finds by itself is imported as it is. Otherwise it is looked for beside the environment, in
``.venv/peers``, where the set-up puts it: that folder is on the path only while something is imported from it, and the
MM packages are imported before, since those look for transformers when they are imported, and take a second more where
they find it.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

FOLDER = Path(sys.prefix, 'peers')
# the distributions that a package comes in; the MM packages have two each
DISTRIBUTIONS = {'mmdet': ('onedl-mmdetection', 'mmdet'), 'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
                 'mmpretrain': ('onedl-mmpretrain', 'mmpretrain')}


class PeerMissing(ImportError):
    """A peer that cannot be imported; the message is one line that says why."""


def mm_swin(package: str) -> type:
    """mmdet's or mmseg's ``SwinTransformer``.

    Raises:
        PeerMissing: If ``package`` cannot be imported, as mmdet cannot be without mmcv's operators.
    """
    return _import_found(f'{package}.models.backbones.swin').SwinTransformer


def mmpretrain(module: str) -> types.ModuleType:
    """A module of mmpretrain, such as ``models.backbones.swin_transformer_v2``.

    Raises:
        PeerMissing: If it cannot be imported.
    """
    if _is_found('mmpretrain'):
        return _import_found(f'mmpretrain.{module}')
    with _on_path('mmpretrain'):
        # its own packages would import all of its models, some of which need torchvision or another transformers
        packages = f'mmpretrain.{module}'.split('.')[:-1]
        _bare(*('.'.join(packages[:depth + 1]) for depth in range(len(packages))))
        importlib.import_module('mmpretrain.utils.dependency').WITH_MULTIMODAL = False
        return importlib.import_module(f'mmpretrain.{module}')


def transformers(module: str) -> types.ModuleType:
    """A module of transformers, such as ``models.swin.modeling_swin``.

    Raises:
        PeerMissing: If it cannot be imported.
    """
    if _is_found('transformers'):
        return _import_found(f'transformers.{module}')
    with _on_path('transformers'):
        return importlib.import_module(f'transformers.{module}')


def transformers_swin() -> types.ModuleType:
    """The module with ``SwinConfig``, ``SwinModel`` and ``SwinBackbone``."""
    return transformers('models.swin.modeling_swin')


def transformers_swin_v2() -> types.ModuleType:
    """The module with ``Swinv2Config``, ``Swinv2Model`` and ``Swinv2Backbone``."""
    return transformers('models.swinv2.modeling_swinv2')


@functools.lru_cache(maxsize=None)
def torchvision_swin() -> types.ModuleType:
    """The module with torchvision's ``SwinTransformer`` and its blocks.

    Raises:
        PeerMissing: If it cannot be imported.
    """
    if _is_found('torchvision'):
        return _import_found('torchvision.models.swin_transformer')
    with _on_path('torchvision'):
        _bare_torchvision()
        return importlib.import_module('torchvision.models.swin_transformer')


@functools.lru_cache(maxsize=None)
def timm_swin(name: str = 'swin_transformer') -> types.ModuleType:
    """timm's ``swin_transformer`` or ``swin_transformer_v2``.

    Raises:
        PeerMissing: If it cannot be imported.
    """
    if _is_found('timm'):
        return _import_found(f'timm.models.{name}')
    with _on_path('torchvision', 'timm'):
        _bare_torchvision()
        _bare('timm', 'timm.models', 'timm.data')  # it would import its thousand models, and its data sets
        sys.modules['timm'].__version__ = importlib.import_module('timm.version').__version__
        vars(sys.modules['timm.data']).update(vars(importlib.import_module('timm.data.constants')))
        return importlib.import_module(f'timm.models.{name}')


def version_of(package: str) -> str | None:
    """The release of a package that Python finds or that lies in ``.venv/peers``; None if there is none."""
    path = sys.path if _is_found(package) else [str(FOLDER)]
    for name in DISTRIBUTIONS.get(package, (package, )):
        for found in metadata.distributions(name=name, path=path):
            return found.version
    return None


def _is_found(package: str) -> bool:
    """Whether Python finds a package by itself; what is imported by hand below does not count."""
    return PathFinder.find_spec(package) is not None


def _import_found(module: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # some assert the releases of others, some need compiled operators
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise PeerMissing(f'{module.split(".")[0]} is installed but cannot be imported: {reason}') from error


def _bare_torchvision() -> None:
    """torchvision without its compiled operators, which belong to one build of torch each; its Swin uses none."""
    _bare('torchvision', 'torchvision.models', 'torchvision.ops', 'torchvision.transforms')
    presets = types.ModuleType('torchvision.transforms._presets')  # of images, named beside the addresses of weights
    presets.ImageClassification = object
    presets.InterpolationMode = types.SimpleNamespace(BICUBIC='bicubic')
    sys.modules[presets.__name__] = presets


def _bare(*packages: str) -> None:
    """Packages that hold their modules, but do not run their ``__init__``."""
    for name in packages:
        if sys.modules.get(name) is None:
            package = types.ModuleType(name)
            package.__path__ = [str(FOLDER.joinpath(*name.split('.')))]
            sys.modules[name] = package


@contextlib.contextmanager
def _on_path(*packages: str) -> Iterator[None]:
    for package in packages:
        if not (FOLDER / package).is_dir():
            raise PeerMissing(f'{package} is neither installed nor in .venv/peers, where make setup puts it')
    for name in ('mmengine.optim', 'mmdet.models', 'mmseg.models'):
        with contextlib.suppress(ImportError):  # mmdet without mmcv's operators
            importlib.import_module(name)
    sys.path.append(str(FOLDER))
    try:
        with _without_torchvision():
            yield
    finally:
        sys.path.remove(str(FOLDER))


@contextlib.contextmanager
def _without_torchvision() -> Iterator[None]:
    """Neither torchvision nor timm can be found, and what is imported of them by hand is forgotten afterwards: other
    packages take what they find of them for the whole."""
    names = ('torchvision', 'timm')
    before = {name: module for name, module in sys.modules.items() if name.split('.')[0] in names}
    for name in before:
        del sys.modules[name]
    sys.modules.update(dict.fromkeys(names))
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split('.')[0] in names]:
            del sys.modules[name]
        sys.modules.update(before)
