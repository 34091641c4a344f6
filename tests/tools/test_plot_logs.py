"""Curves from the logs of trainings."""
import json
import math
from pathlib import Path

import cv2
import pytest
from tiny import load_tool

from swin_rpe_mm.errors import InputError

LAYERS = [f'stages.{stage}.blocks.{block}' for stage in range(4) for block in range(2)]
STATISTICS = ('content_mean', 'content_std', 'content_max', 'bias_mean', 'bias_std', 'bias_max', 'ratio', 'entropy',
              'bias_grad_norm')


def write_run(folder: Path, factor: float = 1., layers=LAYERS, **metrics: float) -> Path:
    """A log as of 400 iterations, with figures of the monitor."""
    records = []
    for i in range(10, 401, 10):
        noise = 1 + .1 * math.sin(7 * i)
        records.append(
            dict(base_lr=1e-3 / i, lr=1e-3 / i, loss=factor * noise / i, loss_cls=factor / i, iter=i, step=i))
        if i % 50 == 0:
            records.append(dict({f'rpe/{layer}/{name}': factor * (1 + depth) * (1 + i / 400) / (2 + place)
                                 for depth, layer in enumerate(layers) for place, name in enumerate(STATISTICS)},
                                iter=i, step=i))
        if i % 200 == 0:
            records.append(dict({'coco/bbox_mAP': factor * i / 1000, 'coco/bbox_mAP_l': -1., **metrics}, step=i // 200))
    path = folder / '20260101_000000/vis_data/scalars.json'
    path.parent.mkdir(parents=True)
    path.write_text('\n'.join(map(json.dumps, records)))
    return folder


@pytest.fixture
def plot(tmp_path):
    tool = load_tool('analysis_tools/plot_logs')
    return lambda *arguments: tool([*map(str, arguments), '--out', str(tmp_path / 'made/curves.png')])


def test_one_run(plot, tmp_path, capsys):
    panels = plot(write_run(tmp_path / 'table', mIoU=70.), '--smooth', 5)
    assert [panel.title for panel in panels] == [
        'losses', 'lr', 'coco/bbox_mAP', 'mIoU', 'bias over content', 'spread of the logits without bias',
        'spread of the bias', 'entropy of attention', 'gradient of the encoding']
    by_title = {panel.title: panel for panel in panels}
    assert [curve.name for curve in by_title['losses'].curves] == ['loss', 'loss_cls']
    assert list(by_title['losses'].curves[1].x) == list(range(10, 401, 10))
    assert by_title['losses'].curves[1].y[3] == 1 / 40
    ratio = by_title['bias over content']
    assert ratio.layers and [curve.name for curve in ratio.curves] == LAYERS
    assert list(ratio.curves[2].x) == list(range(50, 401, 50)) and ratio.curves[2].y[7] == pytest.approx(3 * 2 / 8)
    ap = by_title['coco/bbox_mAP']
    assert ap.measured and (list(ap.curves[0].x), list(ap.curves[0].y)) == ([200, 400], [.2, .4])
    printed = capsys.readouterr().out
    assert '9 frames' in printed and str(tmp_path / 'table/20260101_000000/vis_data/scalars.json') in printed
    picture = cv2.imread(str(tmp_path / 'made/curves.png'))
    assert picture.shape[1] > picture.shape[0] > 900 and picture.std() > 20


def test_several_runs(plot, tmp_path):
    runs = [write_run(tmp_path / 'table', mIoU=70.), write_run(tmp_path / 'rotary', 2., LAYERS[:2])]
    panels = {panel.title: panel for panel in plot(*runs, '--legend', 'Table', 'Rotary')}
    assert [curve.name for curve in panels['loss'].curves] == ['Table', 'Rotary']
    assert panels['loss'].curves[1].y[0] == pytest.approx(2 * panels['loss'].curves[0].y[0])
    assert [(curve.name, curve.place) for curve in panels['mIoU'].curves] == [('Table', 0)]
    table, rotary = panels['bias over content, 8 layers'].curves
    assert (table.low[0], table.y[0], table.high[0]) == pytest.approx([1.125 / 8, 1.125 * 4.5 / 8, 1.125])
    assert (rotary.low[0], rotary.y[0], rotary.high[0]) == pytest.approx([2 * 1.125 / 8, 3 * 1.125 / 8, 4 * 1.125 / 8])


def test_chosen_figures(plot, tmp_path):
    runs = [write_run(tmp_path / 'table'), write_run(tmp_path / 'rotary')]
    panels = plot(*runs, '--keys', 'lr', 'rpe/stages.3.blocks.1/*max', 'coco/bbox_mAP_l')
    assert [panel.title for panel in panels] == [
        'lr', 'largest logit without bias, stages.3.blocks.1', 'largest bias, stages.3.blocks.1', 'coco/bbox_mAP_l']
    assert [curve.name for curve in panels[0].curves] == ['table', 'rotary']
    assert all(curve.low is None for panel in panels for curve in panel.curves)
    assert not panels[3].curves  # COCO's -1 is no value


def test_svg(tmp_path):
    out = tmp_path / 'curves.svg'
    load_tool('analysis_tools/plot_logs')([str(write_run(tmp_path / 'table')), '--keys', 'loss', '--out', str(out)])
    assert out.read_text().lstrip().startswith('<?xml') and out.stat().st_size > 5000
    assert [path.name for path in tmp_path.glob('curves*')] == ['curves.svg']


@pytest.mark.parametrize('arguments, sentence', [
    (['--keys', 'loss', 'los'], "--keys has 'los', which no run logged; there are base_lr, coco/bbox_mAP, "),
    (['--keys', 'nothing'], 'loss_cls, lr, rpe/*/bias_grad_norm, rpe/*/bias_max, rpe/*/bias_mean, '),
    (['--legend', 'a', 'b'], '--legend must have a name for each of 1 runs, got 2'),
    (['--smooth', '0'], '--smooth must be a whole number from 1, got 0'),
])
def test_bad_input(plot, tmp_path, arguments, sentence):
    with pytest.raises(InputError) as error:
        plot(write_run(tmp_path / 'table'), *arguments)
    assert sentence in str(error.value)


def test_wrong_suffix(tmp_path):
    with pytest.raises(InputError, match='--out must end in .png or .svg, got curves.pdf'):
        load_tool('analysis_tools/plot_logs')([str(write_run(tmp_path / 'table')), '--out', 'curves.pdf'])


def test_runs_of_the_same_name(plot, tmp_path):
    run = write_run(tmp_path / 'table')
    with pytest.raises(InputError, match='--legend must have another name for each run'):
        plot(run, run)
    other = write_run(tmp_path / 'b/table')
    assert [curve.name for curve in plot(run, other, '--keys', 'loss')[0].curves] == [str(run), str(other)]


def test_from_elsewhere(command, tmp_path):
    done = command('analysis_tools/plot_logs.py', str(write_run(tmp_path / 'table')), '--keys', 'loss')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'elsewhere/curves.png').stat().st_size > 10000
    done = command('analysis_tools/plot_logs.py', str(tmp_path / 'absent'))
    assert done.returncode == 2 and done.stderr.strip().endswith('or the folder it was trained in')
    assert 'Traceback' not in done.stderr
