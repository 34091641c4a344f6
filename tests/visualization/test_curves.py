"""Curves of trainings: what is in the figure."""
import pytest

from swin_rpe_mm.visualization.curves import Curve, Panel, draw_curves, layer_of, look_of, smoothed


@pytest.mark.parametrize('key, title, unit', [
    ('rpe/stages.0.blocks.1/ratio', 'bias over content', 'ratio of standard deviations'),
    ('loss', 'losses', 'loss'),
    ('decode.d0.loss_mask', 'losses', 'loss'),
    ('lr', 'learning rate', 'learning rate'),
    ('coco/segm_mAP_75', 'average precision', 'AP (0 to 1)'),
    ('mIoU', 'intersection over union', 'IoU (%)'),
    ('decode.acc_seg', 'accuracy', 'accuracy (%)'),
    ('data_time', 'time', 'seconds per iteration'),
    ('my_figure', 'my_figure', 'value'),
])
def test_units(key, title, unit):
    assert look_of(key)[1:3] == (title, unit)


def test_layers():
    assert layer_of('rpe/stages.0.blocks.1/ratio') == 'stages.0.blocks.1'
    assert layer_of('coco/bbox_mAP') is None and layer_of('loss') is None


def test_smoothing():
    assert smoothed([1, 2, 6, 4, 2], 3).tolist() == [1, 3, 4, 4, 2]
    assert smoothed([1, 2, 6, 4, 2], 5).tolist() == [1, 3, 3, 4, 2]
    straight = [3 * i + 1 for i in range(9)]  # keeps its slope up to the ends
    assert smoothed(straight, 5) == pytest.approx(straight)


def lines(axis):
    return [(line.get_label(), line.get_xdata().tolist(), line.get_ydata().tolist(), line.get_color())
            for line in axis.get_lines()]


def test_values_and_axes():
    panels = [
        Panel('losses', look_of('loss'), [Curve('a', [1, 2, 3], [3., 1., 2.], 0), Curve('b', [1, 2], [9., 8.], 1)]),
        Panel('ratio', look_of('rpe/a/ratio'), [Curve('a', [1, 2], [.1, 10.], 1, [.05, 5.], [.2, 20.])]),
        Panel('AP', look_of('coco/bbox_mAP'), [Curve('b', [3], [.625], 1)], measured=True),
    ]
    figure = draw_curves(panels)
    losses, ratio, ap = figure.axes
    assert [line[:3] for line in lines(losses)] == [('a', [1, 2, 3], [3., 1., 2.]), ('b', [1, 2], [9., 8.])]
    assert [text.get_text() for text in losses.get_legend().get_texts()] == ['a', 'b']
    assert lines(losses)[1][3] == lines(ratio)[0][3] == lines(ap)[0][3] != lines(losses)[0][3]
    assert (losses.get_yscale(), ratio.get_yscale()) == ('linear', 'log')
    assert [axis.get_xlabel() for axis in figure.axes] == ['iteration'] * 3
    assert [axis.get_ylabel() for axis in figure.axes] == ['loss', 'ratio of standard deviations', 'AP (0 to 1)']
    assert len({axis.get_xlim() for axis in figure.axes}) == 1
    band = ratio.collections[0].get_datalim(ratio.transData)
    assert (band.y0, band.y1) == (.05, 20.)
    assert [text.get_text() for text in ap.texts] == ['0.625']


def test_smoothed_curves_over_their_values():
    noisy, rate = [Panel(key, look_of(key), [Curve(key, [1, 2, 3], [3., 1., 5.])]) for key in ('loss', 'lr')]
    figure = draw_curves([noisy, rate], smooth=3)
    assert [line[2] for line in lines(figure.axes[0])] == [[3., 1., 5.], [3., 3., 5.]]
    assert [line[2] for line in lines(figure.axes[1])] == [[3., 1., 5.]]


def test_one_legend_for_runs():
    panels = [Panel('loss', look_of('loss'), [Curve(name, [1], [1.], i) for i, name in enumerate('ab')])] * 2
    figure = draw_curves(panels, runs=['a', 'b'])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ['a', 'b']
    assert all(axis.get_legend() is None for axis in figure.axes)


def test_bar_of_layers():
    names = [f'stages.{i}' for i in range(4)]
    panel = Panel('entropy', look_of('rpe/a/entropy'), [Curve(name, [1, 2], [.5, .4]) for name in names], layers=True)
    figure = draw_curves([panel] * 2)
    axis, _, bar = figure.axes
    assert len({line[3] for line in lines(axis)}) == 4
    assert [text.get_text() for text in bar.get_yticklabels()] == names
    assert bar.get_title() == 'layer'


def test_shares_from_0_to_1():
    axis = draw_curves([Panel('saturated', look_of('rpe/a/saturated'), [Curve('a', [1, 2], [0., 0.])])]).axes[0]
    assert axis.get_ylim() == pytest.approx((-.04, 1.04)) and axis.get_yscale() == 'linear'


def test_values_that_are_no_numbers_leave_a_gap():
    """And a logarithm is not taken of what is not positive."""
    curves = [Curve('a', [1, 2, 3], [1., float('nan'), 2.]), Curve('b', [1], [0.])]
    axis = draw_curves([Panel('ratio', look_of('rpe/a/ratio'), curves)]).axes[0]
    assert axis.get_yscale() == 'linear' and len(lines(axis)) == 2
