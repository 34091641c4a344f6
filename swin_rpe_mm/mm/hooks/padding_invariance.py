"""The switch in a config that makes a model ignore batch padding."""
from __future__ import annotations

from mmengine.hooks import Hook

from ...registry import HOOKS
from ..per_image import make_padding_invariant


@HOOKS.register_module()
class PaddingInvarianceHook(Hook):
    """Give an image the same results whatever it is batched with, in training, validation and testing.

    ``custom_hooks=[dict(type='swin_rpe_mm.PaddingInvarianceHook')]`` in a config is all; see
    :func:`swin_rpe_mm.make_padding_invariant`.
    """

    priority = 'VERY_HIGH'  # before hooks that copy the model, such as EMA's

    def before_run(self, runner) -> None:
        make_padding_invariant(runner.model)
