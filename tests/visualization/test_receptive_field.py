"""Effective receptive fields against differences of outputs, and their squares against loops."""
import pytest
import torch
from oracles.cases import pixels
from watched import image, tiny

from swin_rpe_mm.visualization.receptive_field import (
    Field,
    draw_fields,
    receptive_fields,
    shares_by_side,
    side_of_share,
    squared_gradients,
)

EXTENT = (39, 50)


@torch.no_grad()
def middle_outputs(backbone, images, probes) -> list[float]:
    """The output that is looked at of each stage, times its probe."""
    outs = []
    handles = [stage.register_forward_hook(lambda module, args, out: outs.append(out[0])) for stage in backbone.stages]
    backbone(images, [EXTENT])
    for handle in handles:
        handle.remove()
    rows, columns = (10, 5), (18, 9)  # of the map and of the middle of the extents (10, 13) and (5, 7)
    places = [rows[0] // 2 * columns[0] + 13 // 2, rows[1] // 2 * columns[1] + 7 // 2]
    return [float(out[0, place] @ probe) for out, place, probe in zip(outs, places, probes)]


@pytest.mark.parametrize('arguments', [{}, dict(arch='v2-nano', halo=1)], ids=['plain', 'v2, halo'])
def test_gradient_is_the_slope(arguments):
    backbone = tiny(**arguments)
    images = image(40, 72)
    probes = [pixels(16).double(), pixels(32, seed=1).double()]
    fields = squared_gradients(backbone, images, probes, [EXTENT])
    assert [field.centre for field in fields] == [(22, 26), (20, 28)]
    assert all(field.values.shape == EXTENT for field in fields)
    for y, x in ((22, 26), (20, 28), (17, 30), (38, 49), (0, 0)):
        slopes = torch.zeros(2, dtype=torch.float64)
        for channel in range(3):
            ends = []
            for step in (1e-5, -1e-5):
                moved = images.clone()
                moved[0, channel, y, x] += step
                ends.append(middle_outputs(backbone, moved, probes))
            slopes += torch.tensor([(a - b) / 2e-5 for a, b in zip(*ends)], dtype=torch.float64)**2
        for field, slope in zip(fields, slopes):
            assert float(field.values[y, x]) == pytest.approx(float(slope), rel=1e-5, abs=1e-12)


def test_mean_over_images_that_lie_with_their_centres_on_each_other():
    backbone = tiny()
    one, two = image(40, 40), image(64, 24)
    mean = receptive_fields(backbone, [(one, None), (two, None)], seed=3)
    generator = torch.Generator().manual_seed(3)
    squares = []
    for images in (one, two):
        probes = [(torch.randint(0, 2, (channels, ), generator=generator) * 2 - 1).double() for channels in (16, 32)]
        squares.append(squared_gradients(backbone, images, probes))
    # tokens of 4 px in the middle: (5, 5) of 10x10 and (8, 3) of 16x6, whose centres lie at (22, 22) and (34, 14)
    assert mean[0].values.shape == (40, 24) and mean[0].centre == (22, 14)
    first, second = (fields[0].values for fields in squares)
    expected = ((first[:, 8:32] + second[12:52]) / 2).sqrt()
    assert torch.allclose(mean[0].values, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize('centre', [(4., 6.), (3.5, 2.5)])
def test_shares_of_squares(centre):
    field = Field(pixels(9, 11).abs().double(), centre, (4, 4))
    sides, shares = shares_by_side(field)
    assert float(shares[-1]) == pytest.approx(1)
    for side, share in zip(sides.tolist(), shares.tolist()):
        inside = sum(float(field.values[y, x]) for y in range(9) for x in range(11)
                     if max(abs(y + .5 - centre[0]), abs(x + .5 - centre[1])) < side / 2)
        assert share == pytest.approx(inside / float(field.values.sum()))
    side = side_of_share(field, .5)
    assert float(shares[sides == side]) >= .5 and not (shares[sides < side] >= .5).any()


def test_figure():
    fields = receptive_fields(tiny(), [(image(), None)])
    figure = draw_fields(fields, [(4, 4), (4, 4)])
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert [title.split('\n')[0] for title in titles] == ['stage 0', 'stage 1']
    for title, field in zip(titles, fields):
        assert f'50 % in {side_of_share(field, .5):.0f} px' in title
    first = torch.from_numpy(figure.axes[0].images[0].get_array().data)
    assert torch.allclose(first, (fields[0].values / fields[0].values.max()).clamp(min=1e-4))
