from .checkpoint_report import CheckpointReportHook
from .label_range import LabelRangeHook
from .whole_checkpoint import WholeCheckpointHook

__all__ = ['CheckpointReportHook', 'LabelRangeHook', 'WholeCheckpointHook']
