"""Any MMDetection or MMSegmentation config, on SwinRPE: one file per step, and ``swap.py`` calls them in turn.

Nothing here imports mmdet or mmseg; what a config names is built through mmengine's registries.
"""
from .refusals import SwapRefused
from .swap import Swap, swap_backbone
from .write import write_config

__all__ = ['Swap', 'SwapRefused', 'swap_backbone', 'write_config']
