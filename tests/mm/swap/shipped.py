"""Configs that MMDetection and MMSegmentation ship."""
from importlib.util import find_spec
from pathlib import Path

from mmengine.config import Config


def shipped_path(package: str, path: str) -> Path:
    return Path(find_spec(package).submodule_search_locations[0], '.mim', 'configs', path)


def shipped(package: str, path: str) -> Config:
    return Config.fromfile(shipped_path(package, path))
