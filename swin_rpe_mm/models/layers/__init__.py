from .attention import ShiftedWindowAttention, WindowAttention
from .block import SwinBlock, SwinStage
from .patch import PatchEmbed, PatchMerging

__all__ = ['PatchEmbed', 'PatchMerging', 'ShiftedWindowAttention', 'SwinBlock', 'SwinStage', 'WindowAttention']
