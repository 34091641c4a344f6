"""The plain Swin, in the paper's words and order."""
from .block import FFN, DropPath, ShiftedWindowAttention, SwinBlock, WindowAttention
from .config import ARCHS, SwinConfig
from .patch import PatchEmbed, PatchMerging
from .sequence import BlockLocalAttention
from .stage import SwinStage
from .swin import Swin

__all__ = [
    'ARCHS', 'BlockLocalAttention', 'DropPath', 'FFN', 'PatchEmbed', 'PatchMerging', 'ShiftedWindowAttention', 'Swin',
    'SwinBlock', 'SwinConfig', 'SwinStage', 'WindowAttention'
]
