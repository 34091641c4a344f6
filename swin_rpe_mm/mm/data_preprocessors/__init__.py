"""Data preprocessors that put each image's extent on the batch.

They are subclasses of MMDetection's and MMSegmentation's, so their modules load only when one is asked for.
"""
from ...registry import MODELS


@MODELS.register_module(name='DetDataPreprocessor')
def build_det_data_preprocessor(**kwargs):
    from .det import DetDataPreprocessor
    return DetDataPreprocessor(**kwargs)


@MODELS.register_module(name='SegDataPreprocessor')
def build_seg_data_preprocessor(**kwargs):
    from .seg import SegDataPreprocessor
    return SegDataPreprocessor(**kwargs)
