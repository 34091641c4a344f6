"""Other implementations of Swin and SwinV2; a test is skipped where the one it asks for is not installed."""
import types

import pytest

from tools.lib import peers
from tools.lib.peers import FOLDER, PeerMissing

__all__ = ['FOLDER', 'mmpretrain', 'timm_swin', 'torchvision_swin', 'transformers', 'transformers_swin',
           'transformers_swin_v2']


def _or_skip(load):
    def loaded(*args: str) -> types.ModuleType:
        try:
            return load(*args)
        except PeerMissing as error:
            pytest.skip(str(error))

    return loaded


mmpretrain = _or_skip(peers.mmpretrain)
transformers = _or_skip(peers.transformers)
transformers_swin = _or_skip(peers.transformers_swin)
transformers_swin_v2 = _or_skip(peers.transformers_swin_v2)
torchvision_swin = _or_skip(peers.torchvision_swin)
timm_swin = _or_skip(peers.timm_swin)
