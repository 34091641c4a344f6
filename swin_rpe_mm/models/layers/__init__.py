from .attention import DERIVED_BUFFERS, ShiftedWindowAttention, WindowAttention
from .block import SwinBlock, SwinStage
from .patch import PatchEmbed, PatchMerging
from .sequence import BlockLocalAttention

__all__ = [
    'DERIVED_BUFFERS', 'BlockLocalAttention', 'PatchEmbed', 'PatchMerging', 'ShiftedWindowAttention', 'SwinBlock',
    'SwinStage', 'WindowAttention'
]
