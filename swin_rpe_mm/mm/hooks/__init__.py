from .checkpoint_report import CheckpointReportHook
from .label_range import LabelRangeHook
from .padding_invariance import PaddingInvarianceHook
from .prediction_pictures import PredictionPicturesHook
from .rpe_monitor import RPEMonitorHook
from .stale_averages import StaleAveragesHook
from .whole_checkpoint import WholeCheckpointHook

__all__ = [
    'CheckpointReportHook', 'LabelRangeHook', 'PaddingInvarianceHook', 'PredictionPicturesHook', 'RPEMonitorHook',
    'StaleAveragesHook', 'WholeCheckpointHook'
]
