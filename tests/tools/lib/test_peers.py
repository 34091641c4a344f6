"""A peer that Python finds is taken as it is; one that is missing or broken is named with the reason."""
import sys

import pytest

from tools.lib import peers


@pytest.fixture
def package(tmp_path, monkeypatch):
    """``package(text)`` installs a package ``mmseg_like`` whose Swin module has that text."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(text: str) -> str:
        folder = tmp_path / 'mmseg_like/models/backbones'
        folder.mkdir(parents=True)
        (folder / 'swin.py').write_text(text)
        return 'mmseg_like'

    yield install
    for name in [name for name in sys.modules if name.startswith('mmseg_like')]:
        del sys.modules[name]


def test_one_that_is_found(package):
    assert peers.mm_swin(package('SwinTransformer = int\n')) is int


@pytest.mark.parametrize(('text', 'reason'), [
    ('assert False, "needs another\\nrelease"', 'needs another release'),
    ('import surely_absent', "No module named 'surely_absent'"),
    ('assert False', 'AssertionError'),
])
def test_one_that_is_broken(package, text, reason):
    name = package(text)
    with pytest.raises(peers.PeerMissing, match=f'^{name} is installed but cannot be imported: {reason}$'):
        peers.mm_swin(name)


def test_one_that_is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, 'FOLDER', tmp_path)
    monkeypatch.setattr(peers, '_is_found', lambda package: False)
    before = list(sys.path), set(sys.modules)
    with pytest.raises(peers.PeerMissing, match='^transformers is neither installed nor in .venv/peers, where'):
        peers.transformers_swin()
    assert (sys.path, set(sys.modules)) == before
    assert peers.version_of('transformers') is None


def test_releases():
    import mmseg
    import torch
    assert peers.version_of('mmseg') == mmseg.__version__
    assert peers.version_of('torch') == torch.__version__


def test_the_folder_is_on_the_path_only_for_a_while(tmp_path, monkeypatch):
    """What was imported from it of torchvision is not what others find."""
    monkeypatch.setattr(peers, '_is_found', lambda package: False)
    if not (peers.FOLDER / 'torchvision').is_dir():
        pytest.skip('needs torchvision in .venv/peers, where make setup puts it')
    before = list(sys.path), sys.modules.get('torchvision')
    assert peers.torchvision_swin().SwinTransformer.__module__ == 'torchvision.models.swin_transformer'
    assert (sys.path, sys.modules.get('torchvision')) == before
