"""Outlines of regions: there is one wherever there is a region."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from dapl.metrics.functional.regions import activation_regions
from dapl.runs.checkpoint import bounding_boxes
from dapl.runs.outlines import _closed_lines, lines_of, main_bounds, outline_of, outlines_of


@pytest.mark.parametrize("side", [64, 224])
def test_a_region_of_specks_has_an_outline(side: int) -> None:
    region = np.zeros((side, side), dtype=bool)
    assert outline_of(region) is None
    region[31, 33] = True
    (line,) = lines_of(outline_of(region) or "")
    assert len(line) == 4
    assert all(32 <= x <= 36 and 30 <= y <= 34 for x, y in line)
    region[40:60, 11:30] = True  # beside a blob the speck is left out
    (line,) = lines_of(outline_of(region) or "")
    assert len(line) > 8
    assert outline_of(region) == outline_of(region, (11, 31, 34, 60))


@pytest.mark.parametrize("side", [64, 224])
def test_regions_traced_together_are_those_traced_alone(side: int) -> None:
    random = np.random.default_rng(0)
    coarse = random.random((12, 7, 7)) > 0.8
    coarse[3] = False
    regions = coarse.repeat(side // 7, axis=1).repeat(side // 7, axis=2)
    boxes = []
    for region in regions:
        rows, columns = np.nonzero(region)
        boxes.append((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) if len(rows) else None)
    traced = outlines_of(regions, boxes)
    together = [None if one is None else one.path for one in traced]
    assert together == [outline_of(region) for region in regions]
    assert [path is None for path in together] == [box is None for box in boxes]
    assert len({path for path in together if path}) > 8
    for one in filter(None, traced):
        path, main, ends, whole = one
        longest = max(lines_of(path), key=len)
        assert ends == (min(longest), max(longest))
        bounds = [(min(x), min(y), max(x), max(y)) for x, y in (zip(*line, strict=True) for line in lines_of(path))]
        left, top, right, bottom = max(bounds, key=lambda b: (b[2] - b[0]) * (b[3] - b[1]))
        assert all(abs(whole[n] - max(b[n] for b in bounds)) < 1 for n in (2, 3))
        assert all(abs(whole[n] - min(b[n] for b in bounds)) < 1 for n in (0, 1))
        found = main_bounds(path)
        assert found == main
        assert all(abs(a - b) < 1 for a, b in zip(found, (left, top, right, bottom), strict=True))


def test_any_number_of_smooth_regions_traced_together_are_those_traced_alone() -> None:
    regions = activation_regions(torch.rand(300, 6, 6, generator=torch.Generator().manual_seed(0)), 96)
    boxes = bounding_boxes(regions)
    together = [None if one is None else one.path for one in outlines_of(regions.numpy(), boxes)]
    assert together == [outline_of(region) for region in regions.numpy()]
    assert outlines_of(regions[:0].numpy(), []) == []


def test_lines_are_those_of_a_tracer_of_contours() -> None:
    """Against contourpy, which traces any surface: the same points, from the same one on, in the same order."""
    contourpy = pytest.importorskip("contourpy")
    random = np.random.default_rng(0)
    for share in (0.05, 0.3, 0.5, 0.8) * 10:
        height, width = random.integers(3, 30, 2)
        ground = np.zeros((height, width), dtype=bool)
        ground[1:-1, 1:-1] = random.random((height - 2, width - 2)) < share
        ground[1, 1] = True
        points, ends = _closed_lines(ground)
        tracer = contourpy.contour_generator(z=ground.astype(float), line_type="Separate")
        expected = tracer.lines(0.5)
        assert [points[a:b].tolist() for a, b in pairwise(ends)] == [(one @ [1, 1j]).tolist() for one in expected]
