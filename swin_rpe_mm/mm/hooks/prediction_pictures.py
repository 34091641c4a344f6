"""Pictures of predictions while a model is tested."""
from __future__ import annotations

from pathlib import Path

from mmengine.dist import gather_object, is_main_process
from mmengine.hooks import Hook

from ...registry import HOOKS
from ..pictures import read_picture, result_names, write_picture
from ..samples import beside, build_visualizer, draw_sample


@HOOKS.register_module()
class PredictionPicturesHook(Hook):
    """Draw what a detector or segmentor predicts for each tested image, beside the truth if the pipeline loads it.

    In place of ``DetVisualizationHook`` and ``SegVisualizationHook``, whose pictures differ in name and place, lack
    those of all processes but the first, and lose one of two images of the same name. One PNG per image is named
    after it; where images in different folders have the same name, folders are kept.

    Args:
        out_dir (str, optional): The folder to write to; files there of the same names are replaced.
        score_thr (float): The score that an instance must reach to be drawn.
        show (bool): Whether to show the pictures on the screen.
        wait_time (float): Seconds that each stays there; 0 waits for a key.
    """

    def __init__(self, out_dir: str | None = None, score_thr: float = 0.3, show: bool = False, wait_time: float = 0.):
        self.out_dir, self.score_thr, self.show, self.wait_time = out_dir, score_thr, show, wait_time

    def before_test(self, runner) -> None:
        if not is_main_process():
            return
        dataset = runner.test_loop.dataloader.dataset
        paths = [dataset.get_data_info(index)['img_path'] for index in range(len(dataset))]
        self._names = dict(zip(paths, result_names(paths)))
        self._visualizer = build_visualizer(runner.cfg.get('visualizer'), runner.cfg.default_scope, dataset.metainfo)

    def after_test_iter(self, runner, batch_idx: int, data_batch: dict | None = None, outputs=None) -> None:
        # visualizers draw in the main process alone
        for samples in gather_object([sample.cpu() for sample in outputs]) or ():
            for sample in samples:
                self._draw(sample)

    def _draw(self, sample) -> None:
        image = read_picture(sample.img_path)
        predicted = draw_sample(self._visualizer, image, sample, 'pred', self.score_thr)
        picture = beside(truth=draw_sample(self._visualizer, image, sample, 'gt'), prediction=predicted)
        name = self._names[sample.img_path]
        if self.out_dir:
            write_picture(Path(self.out_dir, f'{name}.png'), picture)
        if self.show:
            self._visualizer.show(picture, win_name=name, wait_time=self.wait_time)
