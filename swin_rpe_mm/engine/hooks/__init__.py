from .checkpoint_report import CheckpointReportHook
from .label_range import LabelRangeHook
from .prediction_pictures import PredictionPicturesHook
from .rpe_monitor import RPEMonitorHook
from .whole_checkpoint import WholeCheckpointHook

__all__ = ['CheckpointReportHook', 'LabelRangeHook', 'PredictionPicturesHook', 'RPEMonitorHook', 'WholeCheckpointHook']
