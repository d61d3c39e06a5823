"""The figure of an explanation: of heads that see crops, crop beside crop."""

from collections.abc import Callable
from pathlib import Path

import torch

from dapl import load
from dapl.explain.figure import draw_figure
from dapl.explain.patches import Patch


def test_heads_that_see_crops_are_shown_crop_beside_crop(trained: Callable[[str], Path]) -> None:
    image = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = load(trained("parts")).explain(image)
    assert found.with_crops
    rows = [row for evidence in found.classes for row in evidence.rows]
    assert all(row.cropped for row in rows)
    row = rows[0]
    assert row.box is not None
    crop = found.crop(row)
    assert crop is not None
    assert row.record is not None
    left, top, right, bottom = row.record.box or ()
    assert crop.image.shape == (3, bottom - top, right - left)  # no pixel beside what the head saw
    two_tiles = draw_figure(load(trained("protopnet")).explain(image))
    assert draw_figure(found).width > two_tiles.width  # where, this crop, that crop


def test_a_cut_is_the_box_alone() -> None:
    image = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(3, 8, 8)
    assert torch.equal(Patch(image, (2, 1, 5, 7), whole=True).cut().image, image[:, 1:7, 2:5])
