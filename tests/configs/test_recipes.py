"""The benchmark configs are the published Swin recipes: nothing but the backbone, the extents and the names that
must not decay may differ."""
from pathlib import Path

import mmdet
import mmseg
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.checkpoints import to_mm_names

CONFIGS = Path(__file__).parents[2] / 'configs'
WEIGHTS = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'

# ours, the published one
PAIRS = {
    'coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_1x_coco.py': (mmdet, 'mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'),
    'coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_ms-crop-3x_coco.py': (mmdet, 'mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py'),
    'coco/mask-rcnn_swin-rpe-t-p4-w7_fpn_amp-ms-crop-3x_coco.py':
    (mmdet, 'mask-rcnn_swin-t-p4-w7_fpn_amp-ms-crop-3x_coco.py'),
    'ade20k/swin-rpe-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py':
    (mmseg, 'swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'),
}
# of a size that is not published with this recipe
UNPUBLISHED = {'coco/mask-rcnn_swin-rpe-l-p4-w12-in22k_fpn_fsdp-ms-crop-3x_coco.py'}
# what a run is made of; further names in a config are variables that these were made with
SETTINGS = ('model', 'train_dataloader', 'val_dataloader', 'test_dataloader', 'train_cfg', 'val_cfg', 'test_cfg',
            'optim_wrapper', 'param_scheduler', 'val_evaluator', 'test_evaluator', 'default_hooks', 'default_scope',
            'env_cfg', 'visualizer', 'log_processor', 'log_level', 'load_from', 'resume', 'tta_model', 'tta_pipeline')

# what the published ones don't know: parameters of other encodings and of SwinV2
WITHOUT_DECAY = ('window_pos_embed', '.rpe.', 'logit_scale')

every_pair = pytest.mark.parametrize('name', PAIRS)
every_model = pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.needs_ops) if package is mmdet else name
    for name, (package, _) in PAIRS.items()])


def read_pair(name: str) -> tuple[Config, Config]:
    package, published = PAIRS[name]
    path = Path(package.__file__).parent / '.mim/configs/swin' / published
    if not path.is_file():
        pytest.skip(f'needs the configs of {package.__name__}, which this installation lacks')
    return Config.fromfile(CONFIGS / name), Config.fromfile(path)


def plain(node):
    """A config's content without the scope that inheriting from another package leaves in it."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items() if key != '_scope_'}
    return type(node)(map(plain, node)) if isinstance(node, list | tuple) else node


def test_every_benchmark_config_is_compared():
    found = {str(path.relative_to(CONFIGS)) for folder in ('coco', 'ade20k') for path in CONFIGS.glob(f'{folder}/*.py')}
    assert found == set(PAIRS) | UNPUBLISHED


@every_pair
def test_the_recipe_is_the_published_one(name):
    ours, published = read_pair(name)
    mine, theirs = ({key: plain(cfg.to_dict().get(key)) for key in SETTINGS} for cfg in (ours, published))
    for settings in (mine, theirs):
        del settings['model']['backbone']
        settings['model'].pop('pretrained', None)
    kind = mine['model']['data_preprocessor'].pop('type')
    assert kind.lower() == 'swin_rpe_mm.' + theirs['model']['data_preprocessor'].pop('type').lower()
    for name in WITHOUT_DECAY:
        assert mine['optim_wrapper']['paramwise_cfg']['custom_keys'].pop(name) == dict(decay_mult=0.)
    for key in SETTINGS:
        assert mine[key] == theirs[key], key
    assert ours.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=WEIGHTS)
    assert ours.auto_scale_lr == published.get('auto_scale_lr', dict(enable=False, base_batch_size=16))


@every_model
def test_the_backbone_is_the_published_one_but_for_padding(name):
    """Same parameters, window, drop path and outputs, with padding treated as the published backbone treats it."""
    ours, published = read_pair(name)
    init_default_scope(published.default_scope)
    theirs = MODELS.build(dict(published.model.backbone, init_cfg=None))
    mine = SwinRPE(**{k: v for k, v in ours.model.backbone.items() if k not in ('type', 'init_cfg')},
                   mask_padding=False)
    for model in (mine, theirs):
        model.eval()

    weights = {k: v for k, v in theirs.state_dict().items() if not k.endswith('relative_position_index')}
    own = mine.state_dict()
    named = to_mm_names(own, own._metadata)
    assert {k: v.shape for k, v in named.items()} == {k: v.shape for k, v in weights.items()}
    mine.load_state_dict(weights)
    for my_stage, their_stage in zip(mine.stages, theirs.stages, strict=True):
        assert [getattr(block.drop_path, 'rate', 0.) for block in my_stage.blocks] == pytest.approx(
            [block.ffn.dropout_layer.drop_prob for block in their_stage.blocks])
    images = torch.randn(1, 3, 90, 70)
    with torch.no_grad():
        for a, b in zip(mine(images), theirs(images), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
