from .swin_rpe import SwinRPE

__all__ = ['SwinRPE']
