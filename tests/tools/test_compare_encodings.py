"""The comparison of encodings: what it measures is right, a stopped run goes on where it was, tables show all seeds."""
import json

import pytest
import torch
from tiny import REPO, load_tool

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.per_image.feature_cache import get_features
from swin_rpe_mm.rpe.interpolate import MODES

ITERATIONS = """
train_cfg = dict(type='IterBasedTrainLoop', max_iters=6, val_interval=6)
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=6)]
model['backbone'].update(embed_dims=8, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))
model['decode_head'].update(in_channels=[8, 16, 32, 64])
model['auxiliary_head'].update(in_channels=32)
"""


@pytest.fixture(scope='module')
def tool():
    return load_tool('analysis_tools/compare_encodings')


@pytest.fixture
def windows(tool, make_config, tmp_path):
    """``windows(*args)`` runs the tool on a tiny segmentor for 2 iterations; returns what the results file holds."""
    config = make_config('segmentation', ITERATIONS)
    out = tmp_path / 'made' / 'windows.json'

    def run(*args: str) -> dict:
        tool(['windows', '--config', config, '--iters', '2', '--finetune-iters', '1', '--window', '4',
              '--new-window', '5', '--val-images', '3', '--out', str(out), *args])
        return json.loads(out.read_text())

    run.out = out
    return run


def test_cost(tool, tmp_path, capsys):
    out = tmp_path / 'made/cost.json'
    tool(['cost', '--encodings', 'none', 'log-cpb', 'v2', '--image-size', '40', '56', '--rounds', '1',
          '--out', str(out)])
    written = json.loads(out.read_text())
    costs = written['cost']
    assert written['settings'] == dict(arch='nano', image_size=[40, 56], batch_size=1, rounds=1)
    assert list(costs) == ['table', 'none', 'log-cpb', 'v2']
    for arch in ('nano', 'tiny'):
        plain, table = (sum(p.numel() for p in SwinRPE(arch=arch, rpe=rpe).parameters())
                        for rpe in (None, dict(type='TableRPE')))
        assert costs['table'][f'parameters, {arch}'] == table - plain > 0
        assert costs['none'][f'parameters, {arch}'] == 0
        assert costs['v2'][f'parameters, {arch}'] == costs['log-cpb'][f'parameters, {arch}']
    assert costs['log-cpb']['GMAC'] > costs['none']['GMAC'] > 0
    for kind in ('forward', 'forward + backward'):
        assert costs['table'][f'{kind}, ratio'] == 1
        assert all(row[f'{kind}, s'] > 0 for row in costs.values())
    printed = capsys.readouterr().out
    assert all(name in printed for name in costs) and str(out) in printed


@pytest.mark.slow
def test_windows_measures_every_step(windows, capsys):
    """Modes are tried where there is a table, and only there; every encoding has its turn before the next seed."""
    found = windows('--encodings', 'rotary-axial', 'low-rank', '--seeds', '3', '4')
    assert found['settings'] == dict(config='tiny_segmentation.py', iters=2, finetune_iters=1, window=4, new_window=5,
                                     val_images=3, cfg_options={})
    assert {encoding: list(seeds) for encoding, seeds in found['mIoU'].items()} == {
        'rotary-axial': ['3', '4'], 'low-rank': ['3', '4']}
    for seed in ('3', '4'):
        assert list(found['mIoU']['rotary-axial'][seed]) == ['trained', 'as it is', 'fine-tuned']
        assert list(found['mIoU']['low-rank'][seed]) == ['trained', *MODES, 'fine-tuned']
    values = [value for seeds in found['mIoU'].values() for steps in seeds.values() for value in steps.values()]
    assert all(0 < value <= 100 for value in values)
    printed = capsys.readouterr().out
    assert '| low-rank | 2 |' in printed
    turns = [tuple(line.split()[1:3]) for line in printed.splitlines() if 'trained  ' in line]
    assert turns == [('3', 'rotary-axial'), ('3', 'low-rank'), ('4', 'rotary-axial'), ('4', 'low-rank')]
    assert not list(windows.out.parent.rglob('*.pth'))  # weights go when an encoding is done


def test_a_mode_that_cannot_reach_the_window_is_left_empty(windows):
    found = windows('--encodings', 'table', '--seeds', '0', '--new-window', '9')
    steps = found['mIoU']['table']['0']
    assert steps['geometric'] is None
    assert None not in [steps[mode] for mode in MODES if mode != 'geometric']


@pytest.mark.slow
def test_a_stopped_run_goes_on(windows, monkeypatch):
    """What is in the file stays; what is missing comes out as it would have in one go."""
    whole = windows('--encodings', 'table', '--seeds', '0')
    windows.out.unlink()

    class Stopped(Exception):
        pass

    def stop(backbone, window, mode='bicubic'):
        if mode == 'geometric':
            raise Stopped
        return set_window_size(backbone, window, mode)

    set_window_size = SwinRPE.set_window_size
    with monkeypatch.context() as patch:
        patch.setattr(SwinRPE, 'set_window_size', stop)
        with pytest.raises(Stopped):
            windows('--encodings', 'table', '--seeds', '0')
    partial = json.loads(windows.out.read_text())
    assert list(partial['mIoU']['table']['0']) == ['trained', 'bicubic', 'linear']
    marked = json.loads(windows.out.read_text())
    marked['mIoU']['table']['0']['bicubic'] = 12.5  # would be overwritten if it were measured again
    windows.out.write_text(json.dumps(marked))

    resumed = windows('--encodings', 'table', '--seeds', '0')
    assert resumed['mIoU']['table']['0'] == {**whole['mIoU']['table']['0'], 'bicubic': 12.5}
    written = windows.out.stat().st_mtime_ns
    windows('--encodings', 'table', '--seeds', '0')
    assert windows.out.stat().st_mtime_ns == written  # nothing left to do


def test_training_is_that_of_the_seed_and_the_window(windows, monkeypatch):
    """The model is trained with the encoding and the window asked for, and fine-tuned with the new one."""
    seen = []
    forward = SwinRPE.forward

    def watch(backbone, images):
        if backbone.training and get_features(images, backbone) is None:  # not one image of a batch that it has seen
            attention = backbone.stages[0].blocks[0].attn.w_msa
            seen.append((type(attention.rpe).__name__, attention.geometry.query_size, torch.initial_seed()))
        return forward(backbone, images)

    monkeypatch.setattr(SwinRPE, 'forward', watch)
    windows('--encodings', 'clipped', '--seeds', '7')
    assert seen == [('ClippedRPE', (4, 4), 7)] * 2 + [('ClippedRPE', (5, 5), 7)]


def results(path, values: dict, **settings) -> str:
    settings = dict(config='c.py', iters=9, finetune_iters=2, window=7, new_window=12, val_images=5, cfg_options={},
                    **settings)
    path.write_text(json.dumps(dict(settings=settings, mIoU=values, seconds={})))
    return str(path)


def test_table_has_mean_and_spread(tool, tmp_path, capsys):
    first = results(tmp_path / '1.json', {
        'table': {'0': {'trained': 50., 'bicubic': 40., 'geometric': None}, '1': {'trained': 53., 'bicubic': 42.}},
        'none': {'0': {'trained': 30., 'as it is': 29.}}})
    second = results(tmp_path / '2.json', {'table': {'2': {'trained': 51.5, 'fine-tuned': 60.}}})
    other = results(tmp_path / '3.json', {'none': {'0': {'trained': 77.}}}, note='other settings')
    tool(['table', first, second, other])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:6] == [
        '| encoding | seeds | 7 | 12, as it is | 12, bicubic | 12, geometric | 12, fine-tuned |',
        '|---|---:|---:|---:|---:|---:|---:|',
        '| table | 3 | 51.5 (50.0..53.0) | - | 41.0 (40.0..42.0) | - | 60.0 |',
        '| none | 1 | 30.0 | 29.0 | - | - | - |',
    ]
    assert '| none | 1 | 77.0 |' in lines[6:]


@pytest.mark.parametrize('args, sentence', [
    (['cost', '--rounds', '0'], '--rounds must be at least 1, got 0'),
    (['cost', '--image-size', '0', '9'], r'--image-size must be two sides of at least 1 pixel, got \[0, 9\]'),
    (['cost', '--encodings', 'tabel'], '--encodings must be of none, table, .*; got tabel'),
    (['windows', '--new-window', '7'], '--new-window must be larger than --window 7, got 7'),
    (['windows', '--iters', '0'], '--iters must be at least 1, got 0'),
    (['windows', '--encodings', 'tabel'], '--encodings must be of none, table, .*; got tabel'),
    (['windows', '--config', 'absent.py'], 'config file absent.py does not exist'),
    (['windows', '--config', str(REPO / 'configs/demo/mask-rcnn_swin-rpe-nano_fpn_shapes.py')],
     'must be of a segmentor that is trained by iterations'),
    (['table', 'absent.json'], 'results absent.json do not exist'),
])
def test_bad_arguments(tool, args, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence) as caught:
        tool(args)
    assert '\n' not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_results_of_other_settings_are_not_mixed(tool, tmp_path):
    out = results(tmp_path / 'out.json', {})
    with pytest.raises(InputError, match=r'out.json holds results for other settings \(config, .*\): name another'):
        tool(['windows', '--out', out])
    (tmp_path / 'cost.json').write_text('{"cost": {}}')
    with pytest.raises(InputError, match='cost.json is no JSON file that "windows" has written'):
        tool(['table', str(tmp_path / 'cost.json')])
