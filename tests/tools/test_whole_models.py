"""Models of mmdet and mmseg, saved by their own runner, load into ours where only the backbone's type is another."""
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner import Runner, load_checkpoint
from oracles.cases import randomise
from oracles.compare import forward_error, record
from torch.utils.data import DataLoader

from swin_rpe_mm import InputError
from swin_rpe_mm.checkpoints import to_mm_names
from swin_rpe_mm.mm.checkpoint_files import read_safely

OURS = dict(type='swin_rpe_mm.SwinRPE', mask_padding=False)
SMALL = dict(embed_dims=16, depths=[2, 2, 2, 2], num_heads=[1, 2, 2, 4], drop_path_rate=0., init_cfg=None)
CHANNELS = [16, 32, 64, 128]
SIZES = [(75, 101), (96, 64)]


def upstream_model(package: str, name: str, changes: dict, backbone: dict) -> torch.nn.Module:
    """The model of one of upstream's own configs, made small, and its backbone changed."""
    cfg = Config.fromfile(Path(importlib.import_module(package).__file__).parent / '.mim/configs/swin' / name)
    cfg.merge_from_dict({f'model.{key}': value for key, value in changes.items()})
    cfg.model.backbone.pop('arch', None)
    cfg.model.backbone.update(SMALL)
    cfg.model.backbone.update(backbone)
    importlib.import_module(f'{package}.utils').register_all_modules(init_default_scope=True)
    return MODELS.build(cfg.model)


def detector(**backbone) -> torch.nn.Module:
    return upstream_model('mmdet', 'mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py', {
        'neck.in_channels': CHANNELS, 'neck.out_channels': 16, 'rpn_head.in_channels': 16, 'rpn_head.feat_channels': 16,
        'roi_head.bbox_roi_extractor.out_channels': 16, 'roi_head.mask_roi_extractor.out_channels': 16,
        'roi_head.bbox_head.in_channels': 16, 'roi_head.bbox_head.fc_out_channels': 32,
        'roi_head.bbox_head.num_classes': 3, 'roi_head.mask_head.in_channels': 16,
        'roi_head.mask_head.conv_out_channels': 16, 'roi_head.mask_head.num_classes': 3,
        'test_cfg.rcnn.score_thr': 0., 'test_cfg.rcnn.max_per_img': 20, 'test_cfg.rpn.nms_pre': 200,
        'test_cfg.rpn.max_per_img': 50}, backbone)


def segmentor(**backbone) -> torch.nn.Module:
    return upstream_model('mmseg', 'swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py', {
        'decode_head.in_channels': CHANNELS, 'decode_head.channels': 16,
        'decode_head.num_classes': 5, 'decode_head.norm_cfg': dict(type='BN'), 'auxiliary_head.in_channels': 64,
        'auxiliary_head.channels': 16, 'auxiliary_head.num_classes': 5, 'auxiliary_head.norm_cfg': dict(type='BN')},
        backbone)


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in SIZES]


def detections(model: torch.nn.Module) -> list[torch.Tensor]:
    """Of images of two sizes in one batch."""
    from mmdet.structures import DetDataSample
    samples = [DetDataSample(metainfo=dict(img_shape=size, ori_shape=size, scale_factor=(1., 1.))) for size in SIZES]
    results = [result.pred_instances for result in step(model, images(), samples)]
    assert all(len(result) > 5 for result in results)
    return [part.float() for result in results for part in (result.bboxes, result.scores, result.labels, result.masks)]


def logits(model: torch.nn.Module) -> list[torch.Tensor]:
    """Of images of two sizes; mmseg tests with batches of one size only."""
    from mmseg.structures import SegDataSample
    samples = [SegDataSample(metainfo=dict(img_shape=size, ori_shape=size)) for size in SIZES]
    return [step(model, [image], [sample])[0].seg_logits.data for image, sample in zip(images(), samples)]


def step(model: torch.nn.Module, inputs: list, samples: list) -> list:
    model.eval()  # mmdet's gives None
    with torch.no_grad():
        return model.test_step(dict(inputs=inputs, data_samples=samples))


TASKS = [pytest.param(detector, detections, id='detector', marks=pytest.mark.needs_ops),
         pytest.param(segmentor, logits, id='segmentor')]


def by_load_checkpoint(model: torch.nn.Module, path: str, work_dir: Path) -> None:
    load_checkpoint(model, path, map_location='cpu', strict=True)


def by_load_from(model: torch.nn.Module, path: str, work_dir: Path) -> None:
    """As the tools do: with our reading of files and our report, from a runner."""
    read_safely()
    runner = Runner(model, str(work_dir), load_from=path, experiment_name=work_dir.name,
                    custom_hooks=[dict(type='swin_rpe_mm.CheckpointReportHook')])
    runner.call_hook('before_run')
    runner.load_or_resume()


@pytest.mark.parametrize('build, outputs', TASKS)
@pytest.mark.parametrize('load', [by_load_checkpoint, by_load_from])
def test_same_outputs(build: Callable, outputs: Callable, load: Callable, tmp_path):
    theirs = randomise(build(), 0)
    runner = Runner(
        theirs, str(tmp_path / 'theirs'), DataLoader([0]), train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='AdamW')), experiment_name=f'{tmp_path.name}_saved')
    runner.save_checkpoint(str(tmp_path), 'upstream.pth', save_optimizer=False)
    ours = build(**OURS)
    load(ours, str(tmp_path / 'upstream.pth'), tmp_path)
    assert type(theirs.backbone).__name__ == 'SwinTransformer' and type(ours.backbone).__name__ == 'SwinRPE'
    state, own = theirs.state_dict(), ours.state_dict()
    for key, value in to_mm_names(own, own._metadata).items():
        assert torch.equal(value, state[key]), key
    for a, b in zip(outputs(ours), outputs(theirs)):
        error = forward_error(a, b) / max(1, b.abs().max().item())
        record(f'whole {build.__name__} against upstream, forward', error)
        assert error <= 1e-5


@pytest.mark.parametrize('build, outputs', TASKS)
def test_outputs_depend_on_the_weights(build, outputs):
    """Two models with other weights differ by far more."""
    a, b = (outputs(randomise(build(**OURS), seed)) for seed in (0, 1))
    assert any(x.shape != y.shape or (x - y).abs().max() > .1 for x, y in zip(a, b))


def test_backbone_alone_into_a_whole_model(tmp_path):
    """With what its file notes: without the sides, 45 offsets are those of (3, 5) and of (5, 3)."""
    source = randomise(segmentor(**OURS, window_size=(3, 5)), 0).backbone
    torch.save(source.state_dict(), tmp_path / 'backbone.pth')
    alone, whole = segmentor(**OURS, window_size=(5, 3)).backbone, segmentor(**OURS, window_size=(5, 3))
    alone.load_state_dict(source.state_dict())
    by_load_from(whole, str(tmp_path / 'backbone.pth'), tmp_path)
    for key, value in alone.state_dict().items():
        assert torch.equal(whole.backbone.state_dict()[key], value), key


WRAPPERS = {
    'module.': lambda state: dict(state_dict={f'module.{key}': value for key, value in state.items()}),
    'model.': lambda state: dict(state_dict={f'model.{key}': value for key, value in state.items()}),
    'entry model': lambda state: dict(model=state, epoch=3),
    'nothing': lambda state: state,
}


@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_whole_model_in_wrappers(wrapper, tmp_path):
    """Necks and heads come along, whatever is around them."""
    source, target = (randomise(segmentor(**OURS), seed) for seed in (0, 1))
    torch.save(WRAPPERS[wrapper](source.state_dict()), tmp_path / 'whole.pth')
    by_load_from(target, str(tmp_path / 'whole.pth'), tmp_path)
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value), key


# ---- which files the tools read ----

class Code:
    """Makes a file when it is unpickled in full."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, 'w')


@pytest.fixture
def start(train_tool, test_tool, make_config, tmp_path):
    """``start(way, checkpoint, *args)`` runs a tool that reads a checkpoint, and gives the sentence it ends with."""
    config, work_dir = make_config('segmentation'), ['--work-dir', str(tmp_path / 'work')]

    def run(way: str, checkpoint: Path, *args: str) -> str:
        with pytest.raises(InputError) as error:
            if way == 'test':
                test_tool([config, str(checkpoint), *work_dir, *args])
            elif way == 'load_from':
                train_tool([config, *work_dir, '--cfg-options', f'load_from={checkpoint}', *args])
            else:
                train_tool([config, *work_dir, '--resume', str(checkpoint), *args])
        assert '\n' not in str(error.value)
        return str(error.value)

    yield run
    read_safely()


@pytest.mark.parametrize('way', ['test', 'resume'])
def test_trust(way, start, tmp_path):
    """Without the flag nothing in the file runs; with it, its weights are looked at, which match nothing."""
    path = tmp_path / 'a.pth'
    torch.save(dict(state_dict=dict(a=torch.zeros(1)), more=Code(tmp_path / 'ran')), path)
    assert '--trust-checkpoint' in start(way, path)
    assert not (tmp_path / 'ran').exists()
    assert 'no key of' in start(way, path, '--trust-checkpoint')
    assert (tmp_path / 'ran').exists()


def test_safetensors_go_through_the_checks(start, tmp_path, monkeypatch):
    """Up to the reader, which says what it lacks here."""
    for name in ('safetensors', 'safetensors.torch'):
        monkeypatch.setitem(sys.modules, name, None)
    header = json.dumps(dict(a=dict(dtype='F32', shape=[1], data_offsets=[0, 4]))).encode()
    (tmp_path / 'a.safetensors').write_bytes(len(header).to_bytes(8, 'little') + header + bytes(4))
    assert 'install the package safetensors' in start('load_from', tmp_path / 'a.safetensors')


def test_weights_are_not_a_training(start, make_config, tmp_path):
    """What is published, or another project's, has no state to resume from."""
    importlib.import_module('mmseg.utils').register_all_modules(init_default_scope=True)
    state = MODELS.build(Config.fromfile(make_config('segmentation')).model).state_dict()
    torch.save(dict(state_dict=state, meta=dict(epoch=2, iter=8)), tmp_path / 'a.pth')
    assert 'load_from' in start('resume', tmp_path / 'a.pth')
