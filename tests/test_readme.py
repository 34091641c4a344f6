"""The encoding that the README shows works as it says."""
import re
from pathlib import Path

import torch
from oracles.cases import pixels

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.registry import MODELS
from swin_rpe_mm.rpe import build_rpe
from swin_rpe_mm.windows import WindowGeometry

README = Path(__file__).parents[1] / 'README.md'


def test_encoding_of_ones_own():
    blocks = re.findall(r'```python\n(.*?)```', README.read_text(), re.DOTALL)
    code, = (block for block in blocks if 'class DistanceRPE' in block)
    try:
        exec(compile(code, str(README), 'exec'), {})
        rpe = build_rpe(dict(type='DistanceRPE'), num_heads=2, window_size=(2, 3))
        rpe.slope.data = torch.tensor([1., -2.])
        assert rpe.gives_bias_alone
        bias = rpe.bias(WindowGeometry.square((2, 3)))
        assert bias.shape == (2, 6, 6)
        assert torch.allclose(bias[:, 0, 5], 5**0.5 * torch.tensor([1., -2.]))  # one row and two columns away
        backbone = SwinRPE(arch='nano', rpe=dict(type='DistanceRPE'), halo=2)
        sum(out.sum() for out in backbone(pixels(1, 3, 50, 60))).backward()
        assert all(p.grad is not None for name, p in backbone.named_parameters() if name.endswith('rpe.slope'))
    finally:
        MODELS.module_dict.pop('DistanceRPE', None)
