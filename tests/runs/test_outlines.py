"""Outlines of regions: there is one wherever there is a region."""

import numpy as np
import pytest

from dapl.runs.outlines import lines_of, outline_of


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
