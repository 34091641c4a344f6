from .attention import ShiftedWindowAttention, WindowAttention
from .block import SwinBlock, SwinStage
from .patch import PatchEmbed, PatchMerging
from .sequence import BlockLocalAttention

__all__ = [
    'BlockLocalAttention', 'PatchEmbed', 'PatchMerging', 'ShiftedWindowAttention', 'SwinBlock', 'SwinStage',
    'WindowAttention'
]
