"""The published weights of each arch, and its drop path."""
from __future__ import annotations

_RELEASES = 'https://github.com/SwinTransformer/storage/releases/download'

# arXiv 2103.14030 and 2111.09883: the largest two trained on ImageNet-22K first, as in the published detectors
PRETRAINED = {
    'tiny': f'{_RELEASES}/v1.0.0/swin_tiny_patch4_window7_224.pth',
    'small': f'{_RELEASES}/v1.0.0/swin_small_patch4_window7_224.pth',
    'base': f'{_RELEASES}/v1.0.0/swin_base_patch4_window7_224_22k.pth',
    'large': f'{_RELEASES}/v1.0.0/swin_large_patch4_window7_224_22k.pth',
    'v2-tiny': f'{_RELEASES}/v2.0.0/swinv2_tiny_patch4_window8_256.pth',
    'v2-small': f'{_RELEASES}/v2.0.0/swinv2_small_patch4_window8_256.pth',
    'v2-base': f'{_RELEASES}/v2.0.0/swinv2_base_patch4_window12_192_22k.pth',
    'v2-large': f'{_RELEASES}/v2.0.0/swinv2_large_patch4_window12_192_22k.pth',
}

# of Mask R-CNN and its kin in mmdet, and of UPerNet in mmseg
_DROP_PATH = {
    'detection': dict(nano=0., tiny=0.2, small=0.2, base=0.3, large=0.3),
    'segmentation': dict(nano=0., tiny=0.3, small=0.3, base=0.3, large=0.3),
}


def drop_path_of(arch: str, task: str) -> float:
    """The drop path of the published recipes."""
    return _DROP_PATH[task][arch.removeprefix('v2-')]
