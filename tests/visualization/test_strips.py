"""Strips of panels, packed into lines."""
import pytest

from swin_rpe_mm.visualization.strips import strips


@pytest.mark.parametrize('headings', [['', '', '', ''], ['a very long heading of a very short strip ' * 2] * 4])
def test_nothing_lies_on_anything_else(headings):
    panels, shapes = [1, 1, 3, 11], [1., .5, 1.5, 1.]
    figure, made = strips(panels, shapes, headings, width=1.5)
    assert [len(strip.panels) for strip in made] == panels
    width, height = figure.get_size_inches()
    boxes = []
    for strip, shape in zip(made, shapes):
        for axis in strip.panels:
            box = axis.get_position()
            assert box.width * width == pytest.approx(1.5) and box.height * height == pytest.approx(1.5 * shape)
        boxes += [axis.get_position() for axis in (*strip.panels, strip.bar)]
    boxes += [text.get_window_extent().transformed(figure.transFigure.inverted()) for text in figure.texts
              if text.get_text()]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= 1 and box.y1 <= 1
        assert not any(box.overlaps(other) for other in boxes[:i])
