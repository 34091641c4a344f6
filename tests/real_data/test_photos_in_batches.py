"""On photos of several sizes: the backbone's features of each are the same alone and in a batch."""
import os
from pathlib import Path

import mmcv
import pytest
import torch
from oracles.cases import SMALL, randomise, token_size
from oracles.compare import assert_forward, forward_error

from swin_rpe_mm import SwinRPE, get_extents

ROOT = Path(os.environ.get('SWIN_RPE_DATA', Path(__file__).parents[2] / '../shared/data'))


def photos() -> list[Path]:
    """The first photo of each size in the nuclei set."""
    by_size = {}
    for path in sorted((ROOT / 'nuclei' / 'images').iterdir())[:60]:
        by_size.setdefault(mmcv.imread(str(path)).shape, path)
    return list(by_size.values())


@pytest.mark.needs_ops
@pytest.mark.skipif(not (ROOT / 'nuclei').is_dir(), reason=f'needs the photos in SWIN_RPE_DATA, {ROOT}')
def test_alone_and_in_a_batch():
    from swin_rpe_mm import DetDataPreprocessor
    images = []
    for path in photos():
        image = torch.from_numpy(mmcv.imread(str(path))).permute(2, 0, 1)
        images.append(image[:, ::2, ::2])
    assert len({image.shape for image in images}) >= 2
    preprocessor = DetDataPreprocessor(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], pad_size_divisor=32)
    models = [randomise(SwinRPE(**SMALL, mask_padding=masked)).eval() for masked in (True, False)]
    batch = preprocessor(dict(inputs=images, data_samples=None), False)['inputs']
    unmasked_error = 0.0
    with torch.no_grad():
        masked, unmasked = (model(batch) for model in models)
        for i, image in enumerate(images):
            extent = get_extents(batch)[i]
            assert extent == tuple(image.shape[-2:])
            alone = preprocessor(dict(inputs=[image], data_samples=None), False)['inputs']
            for stage, (ours, others) in enumerate(zip(*(model(alone) for model in models))):
                h, w = token_size(extent, stage)
                inside = (slice(None), slice(h), slice(w))
                assert_forward(masked[stage][i][inside], ours[0][inside], 'photos alone and in a batch')
                unmasked_error = max(unmasked_error, forward_error(unmasked[stage][i][inside], others[0][inside]))
    assert unmasked_error > 0.1, 'without masks the batch should matter, or this test shows nothing'
