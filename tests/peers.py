"""Other implementations, of SwinV2 above all, which the set-up puts beside the environment, in ``.venv/peers``.

They are on the path only while they are imported, and the MM packages are imported before: those look for transformers
when they are imported, and take a second more where they find it.
"""
import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix, 'peers')


def mmpretrain(module: str) -> types.ModuleType:
    """A module of mmpretrain, ``models.backbones.swin_transformer_v2``; skips the test where it is not installed."""
    with _on_path('mmpretrain'):
        # its own packages would import all of its models, some of which need torchvision or another transformers
        packages = f'mmpretrain.{module}'.split('.')[:-1]
        for depth in range(len(packages)):
            name = '.'.join(packages[:depth + 1])
            if name not in sys.modules:
                package = types.ModuleType(name)
                package.__path__ = [str(FOLDER.joinpath(*packages[:depth + 1]))]
                sys.modules[name] = package
        importlib.import_module('mmpretrain.utils.dependency').WITH_MULTIMODAL = False
        return importlib.import_module(f'mmpretrain.{module}')


def transformers_swin_v2() -> types.ModuleType:
    """The module with ``Swinv2Config``, ``Swinv2Model`` and ``Swinv2Backbone``; skips where it is not installed."""
    with _on_path('transformers'):
        return importlib.import_module('transformers.models.swinv2.modeling_swinv2')


@contextlib.contextmanager
def _on_path(package: str) -> Iterator[None]:
    if not (FOLDER / package).is_dir():
        pytest.skip(f'needs {package} in .venv/peers, where make setup puts it')
    for name in ('mmengine.optim', 'mmdet.models', 'mmseg.models'):
        with contextlib.suppress(ImportError):  # mmdet without mmcv's operators
            importlib.import_module(name)
    sys.path.append(str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
