import numpy as np
import pytest

from dapl.data.toybirds.drawing import SCENERY, Canvas, Frame

PIXELS = Frame(np.eye(2), np.zeros(2))
RED, BLUE = (200, 0, 0), (0, 0, 200)


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def test_what_is_painted_over_is_gone_from_image_and_parts():
    canvas = Canvas(12, 16)
    canvas.fill(PIXELS, [box(2, 2, 10, 10)], RED, part=1)
    canvas.fill(PIXELS, [box(6, 0, 16, 12)], BLUE)
    parts, (colours, coverage) = canvas.parts(), canvas.colours()
    assert parts.shape == (12, 16)
    assert parts[5, 4] == 1
    assert parts[5, 8] == SCENERY
    assert colours[5, 4].tolist() == list(RED)
    assert colours[5, 8].tolist() == list(BLUE)
    assert coverage[0, 0, 0] == 0
    assert coverage[5, 8, 0] == 1


def test_within_paints_only_over_the_parts_named():
    canvas = Canvas(12, 12)
    canvas.fill(PIXELS, [box(0, 0, 6, 12)], RED, part=1)
    canvas.fill(PIXELS, [box(6, 0, 12, 12)], RED, part=2)
    canvas.fill(PIXELS, [box(-4, 4, 20, 8)], BLUE, part=3, within=(1,))
    parts = canvas.parts()
    assert set(np.unique(parts[:, :5])) == {1, 3}
    assert set(np.unique(parts[:, 7:])) == {2}


def test_an_outline_off_the_canvas_paints_nothing():
    canvas = Canvas(8, 8)
    canvas.fill(PIXELS, [box(20, 20, 30, 30)], RED, part=1, within=(SCENERY,))
    canvas.fill(PIXELS, [box(-30, -30, -20, -20)], RED, part=1)
    assert not canvas.parts().any()


def test_edges_are_smooth_in_the_image_and_sharp_in_the_parts():
    canvas = Canvas(9, 9)
    canvas.fill(PIXELS, [np.array([(0.0, 0.0), (9.0, 0.0), (0.0, 9.0)])], RED, part=1)
    coverage = canvas.colours()[1]
    assert ((coverage > 0) & (coverage < 1)).any()
    assert set(np.unique(canvas.parts())) == {0, 1}


def test_more_paints_than_a_byte_can_hold_are_refused():
    canvas = Canvas(4, 4)
    for level in range(255):
        canvas.fill(PIXELS, [box(0, 0, 4, 4)], (level, 1, 0))
    with pytest.raises(ValueError, match="at most 256 paints"):
        canvas.fill(PIXELS, [box(0, 0, 4, 4)], RED)
