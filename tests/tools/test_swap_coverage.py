"""The tool that tries the swap on every config, on a small folder of them; and a sample of what it tries."""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.config import Config

from swin_rpe_mm import InputError
from swin_rpe_mm.mm.swap import SwapRefused, swap_backbone

TOOL = Path(__file__).parents[2] / 'tools' / 'analysis_tools' / 'swap_coverage.py'
HEAD = "dict(type='FCNHead', in_channels=64, channels=8, num_convs=1, num_classes=3)"
MODEL = f"""
default_scope = 'mmseg'
model = dict(
    type='EncoderDecoder', data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64)),
    backbone=dict(type='ResNetV1c', depth=18, num_stages=1, strides=(1, ), dilations=(1, ), out_indices=(0, ),
                  norm_cfg=dict(type='BN')),
    decode_head={HEAD}, train_cfg=dict(), test_cfg=dict(mode='whole'))
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01))
"""
CONFIGS = {
    'plain/model.py': MODEL,
    'plain/same_model.py': MODEL + 'randomness = dict(seed=1)\n',
    'plain/_base_/part.py': 'model = dict()\n',
    'swin/swin.py': f"""
default_scope = 'mmseg'
model = dict(
    type='EncoderDecoder', data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64)),
    backbone=dict(type='SwinTransformer', embed_dims=8, depths=(1, ), num_heads=(1, ), strides=(4, ),
                  out_indices=(0, )),
    decode_head={HEAD.replace('64', '8')}, train_cfg=dict(), test_cfg=dict(mode='whole'))
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=0.01))
""",
    'refused/unet.py': MODEL + "model['backbone'] = dict(type='UNet')\n",
    'broken/crash.py': "__import__('os')._exit(3)\n",  # upstream's mmengine takes 'import os' for a lazy config
    'broken/no_such_package.py': "custom_imports = dict(imports=['no_such_package'], allow_failed_imports=False)\n",
    'broken/no_such_head.py': MODEL + "model['decode_head']['type'] = 'NoSuchHead'\n",
    'broken/no_such_mode.py': MODEL + "model['test_cfg']['mode'] = 'whale'\n",
    'data/data.py': 'dataset_type = None\n',
}


def run(folder: Path, *args: str) -> subprocess.CompletedProcess:
    """Run the tool on a folder, in a process of its own, from which it can start others."""
    path = os.pathsep.join([str(TOOL.parents[2]), os.environ.get('PYTHONPATH', '')])
    return subprocess.run(
        [sys.executable, '-W', 'ignore', str(TOOL), str(folder), '--out', str(folder.parent / 'out'), *args],
        env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path}, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope='module')
def tool():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location('swap_coverage', TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks for its types
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope='module')
def covered(tmp_path_factory):
    """A folder of configs, and what the tool has written about it."""
    folder = tmp_path_factory.mktemp('coverage') / 'zoo'
    for name, text in CONFIGS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = run(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def coverage_of(folder: Path) -> dict:
    return json.loads((folder.parent / 'out/coverage.json').read_text())


def test_every_config_is_told_apart(covered):
    assert coverage_of(covered)['libraries']['zoo']['counts'] == {
        'configs': 9, 'no model': 1, 'does not parse': 1, 'refused': 1, 'failed to swap': 1, 'swapped': 5,
        'same weights': 1, 'built': 4, 'not built': 1, 'failed to build': 0, 'folders stepped': 2, 'not stepped': 1,
        'failed to step': 0}
    configs = coverage_of(covered)['configs']
    assert configs['zoo/plain/model.py'] == dict(swap='swapped', build='built', step='stepped')
    assert configs['zoo/plain/same_model.py'] == {
        'swap': 'swapped', 'build': 'built', 'build of': 'zoo/plain/model.py', 'step': 'stepped',
        'step of': 'zoo/plain/model.py'}
    assert configs['zoo/swin/swin.py'] == dict(swap='swapped', build='built', step='stepped')
    assert 'UNet cannot be swapped' in configs['zoo/refused/unet.py']['reason']
    assert configs['zoo/broken/crash.py']['reason'] == 'the process ended with status 3'
    assert configs['zoo/broken/no_such_package.py']['reason'] == 'needs no_such_package'
    assert 'NoSuchHead' in configs['zoo/broken/no_such_head.py']['reason']
    assert 'whale' in configs['zoo/broken/no_such_mode.py']['reason']  # and so it was with ResNet
    assert configs['zoo/data/data.py'] == dict(swap='no model')


def test_table_gives_counts_and_reasons(covered):
    text = (covered.parent / 'out/coverage.md').read_text()
    assert '| zoo | 9 | 1 | 1 | 1 | 1 | 5 | 1 | 4 | 1 | 0 | 2 | 1 | 0 |' in text
    assert '| 1 | swap | failed | the process ended with status 3 |' in text
    assert '| 1 | swap | does not parse | needs no_such_package |' in text


def test_finished_run_has_nothing_to_do(covered, tool, monkeypatch):
    """Not even a process is started; a line that was cut off is forgotten, and what it told is tried again."""
    out = covered.parent / 'out'
    results = out / 'results.jsonl'
    whole, table = results.read_text(), (out / 'coverage.md').read_text()
    tried = []

    def in_processes(attempt, sources, args):
        tried.extend((attempt, source.name) for source in sources)
        return iter(())

    monkeypatch.setattr(tool, 'in_processes', in_processes)
    tool.main([str(covered), '--out', str(out)])
    assert tried == []
    assert results.read_text() == whole
    assert (out / 'coverage.md').read_text() == table

    results.write_text(whole[:-20])
    tool.main([str(covered), '--out', str(out)])
    last = json.loads(whole.splitlines()[-1])
    assert tried == [(last['attempt'], last['config'])]
    results.write_text(whole)


def test_failures_are_repeated(covered):
    """Each within its limits; what was fine is not tried again."""
    (covered / 'broken/crash.py').write_text(MODEL)
    (covered / 'broken/slow.py').write_text('import time\ntime.sleep(600)\n')
    results = covered.parent / 'out/results.jsonl'
    before = results.read_text().splitlines()
    done = run(covered, '--retry-failed', '--time-limit', '8')
    assert done.returncode == 0, done.stderr[-3000:]
    after = results.read_text().splitlines()
    kept = [line for line in before if '"failed"' not in line]
    assert after[:len(kept)] == kept
    new = [json.loads(line) for line in after[len(kept):]]
    assert [(record['attempt'], record['config'], record['outcome']) for record in new] == [
        ('swap', 'zoo/broken/crash.py', 'swapped'), ('swap', 'zoo/broken/slow.py', 'failed')]
    assert new[1]['reason'] == 'took longer than 8 s'


def test_results_of_other_settings_are_not_mixed(covered, tool):
    with pytest.raises(InputError, match="holds results for other settings, .*'arch': None.*: name another --out"):
        tool.main([str(covered), '--out', str(covered.parent / 'out'), '--arch', 'nano'])


@pytest.mark.parametrize('args, sentence', [
    (['absent'], 'absent does not exist: name a folder of configs or a config file'),
    (['--jobs', '0'], '--jobs must be above 0, got 0'),
    (['--time-limit', '-1'], '--time-limit must be above 0, got -1'),
    (['.'], r'there are no configs in \.'),
])
def test_bad_arguments(tool, args, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence) as caught:
        tool.main(args)
    assert '\n' not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_folders_of_installed_libraries(tool):
    """A folder or a file inside a library keeps the library's name, and its place there."""
    root = Path(find_spec('mmseg').submodule_search_locations[0], '.mim/configs')
    names = {source.name for source in tool.find_sources([root])}
    assert 'mmseg/fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py' in names
    assert not any('_base_' in name for name in names)
    source, = tool.find_sources([root / 'fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py'])
    assert (source.name, source.folder) == ('mmseg/fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py', 'mmseg/fcn')


SWAPPED = [
    'mmdet/atss/atss_r50_fpn_1x_coco.py',
    'mmdet/cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py',
    'mmdet/centernet/centernet_r18_8xb16-crop512-140e_coco.py',
    'mmdet/dab_detr/dab-detr_r50_8xb2-50e_coco.py',
    'mmdet/deformable_detr/deformable-detr_r50_16xb2-50e_coco.py',
    'mmdet/detr/detr_r18_8xb2-500e_coco.py',
    'mmdet/dino/dino-4scale_r50_8xb2-12e_coco.py',
    'mmdet/faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
    'mmdet/fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py',
    'mmdet/hrnet/faster-rcnn_hrnetv2p-w18-1x_coco.py',
    'mmdet/lad/lad_r50-paa-r101_fpn_2xb8_coco_1x.py',
    'mmdet/mask2former/mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco-panoptic.py',
    'mmdet/mask2former_vis/mask2former_r50_8xb2-8e_youtubevis2019.py',
    'mmdet/masktrack_rcnn/masktrack-rcnn_mask-rcnn_r50_fpn_8xb1-12e_youtubevis2019.py',
    'mmdet/pvt/retinanet_pvtv2-b0_fpn_1x_coco.py',
    'mmdet/regnet/retinanet_regnetx-800MF_fpn_1x_coco.py',
    'mmdet/rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'mmdet/soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco.py',
    'mmdet/solov2/solov2_r50_fpn_1x_coco.py',
    'mmdet/swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
    'mmdet/yolo/yolov3_mobilenetv2_8xb24-ms-416-300e_coco.py',
    'mmdet/yolof/yolof_r50-c5_8xb8-1x_coco.py',
    'mmdet/yolox/yolox_s_8xb8-300e_coco.py',
    'mmseg/deeplabv3plus/deeplabv3plus_r18-d8_4xb2-80k_cityscapes-512x1024.py',
    'mmseg/fastfcn/fastfcn_r50-d32_jpu_psp_4xb4-80k_ade20k-512x512.py',
    'mmseg/knet/knet-s3_swin-t_upernet_8xb2-adamw-80k_ade20k-512x512.py',
    'mmseg/mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512.py',
    'mmseg/maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512.py',
    'mmseg/ocrnet/ocrnet_r101-d8_8xb2-80k_cityscapes-512x1024.py',
    'mmseg/point_rend/pointrend_r50_4xb2-80k_cityscapes-512x1024.py',
    'mmseg/pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024.py',
    'mmseg/segformer/segformer_mit-b0_8xb1-160k_cityscapes-1024x1024.py',
    'mmseg/segnext/segnext_mscan-t_1xb16-adamw-160k_ade20k-512x512.py',
    'mmseg/swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py',
]
REFUSED = [
    'mmdet/cornernet/cornernet_hourglass104_8xb6-210e-mstest_coco.py',
    'mmdet/tridentnet/tridentnet_r50-caffe_1x_coco.py',
    'mmseg/bisenetv2/bisenetv2_fcn_4xb4-160k_cityscapes-1024x1024.py',
    'mmseg/icnet/icnet_r18-d8_4xb2-80k_cityscapes-832x832.py',
    'mmseg/pidnet/pidnet-s_2xb6-120k_1024x1024-cityscapes.py',
    'mmseg/unet/unet-s5-d16_fcn_4xb4-40k_drive-64x64.py',
]


def with_ops(names: list[str]) -> list:
    """Detectors need mmcv's operators."""
    return [pytest.param(name, marks=pytest.mark.needs_ops) if name.startswith('mmdet/') else name for name in names]


def shipped(name: str) -> Config:
    package, _, path = name.partition('/')
    return Config.fromfile(Path(find_spec(package).submodule_search_locations[0], '.mim/configs', path))


@pytest.mark.parametrize('name', with_ops(SWAPPED))
def test_sample_is_swapped_and_built(name, tool):
    """With the smallest backbone; a Swin stays what it is, and so do its weights' names in mm and shapes."""
    cfg = shipped(name)
    swap = swap_backbone(cfg, arch=None if 'swin' in name else 'nano')
    shapes = tool.shapes_of(swap.cfg)
    assert swap.keeps_weights == ('swin' in name)
    if swap.keeps_weights:
        assert shapes == tool.shapes_of(cfg)


@pytest.mark.parametrize('name', with_ops(REFUSED))
def test_sample_is_refused(name):
    with pytest.raises(SwapRefused) as caught:
        swap_backbone(shipped(name))
    assert '\n' not in str(caught.value)
