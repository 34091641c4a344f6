"""Label maps with values that no class has."""
from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from ...errors import InputError
from ...registry import HOOKS


@HOOKS.register_module()
class LabelRangeHook(Hook):
    """Stop training at a label outside the classes, with the file's name.

    The loss would fail with an index error, on a GPU as an assertion in a kernel that names nothing.
    """

    def before_train(self, runner) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        heads = getattr(model, 'decode_head', None)
        head = heads[-1] if hasattr(heads, '__len__') else heads
        self._classes = getattr(head, 'num_classes', None)
        self._ignored = getattr(head, 'ignore_index', 255)

    def before_train_iter(self, runner, batch_idx: int, data_batch: dict | None = None) -> None:
        if not self._classes or not isinstance(data_batch, dict):
            return
        for sample in data_batch.get('data_samples', ()):
            if 'gt_sem_seg' not in sample:
                continue
            labels = sample.gt_sem_seg.data
            wrong = labels[(labels >= self._classes) & (labels != self._ignored)]
            if wrong.numel():
                raise InputError(f'label map {sample.get("seg_map_path")} holds the value {int(wrong[0])}: allowed are '
                                 f'0 to {self._classes - 1} and {self._ignored} for what is ignored')
