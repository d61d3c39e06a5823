"""The figure of an explanation: of heads that see crops, crop beside crop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from dapl import load
from dapl.explain.drawings import group_notes, labels_of, overview, spread, view_of
from dapl.explain.evidence import Evidence
from dapl.explain.figure import draw_figure
from dapl.explain.patches import Patch

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_heads_that_see_crops_are_shown_crop_beside_crop(trained: Callable[[str], Path]) -> None:
    found = load(trained("parts")).explain(noise(0))
    assert found.with_crops
    rows = [row for evidence in found.classes for row in evidence.rows]
    assert all(row.cropped for row in rows)
    for evidence in found.classes:  # one row per part, and no part twice
        assert sorted(row.head for row in evidence.rows) == [0, 1, 2]
    row = rows[0]
    assert row.box is not None
    crop = found.close_up(row)
    assert crop is not None
    assert row.record is not None
    left, top, right, bottom = row.record.box or ()
    assert crop.image.shape == (3, bottom - top, right - left)  # no pixel beside what the head saw
    assert row.view == row.box
    assert np.asarray(draw_figure(found)).std() > 20  # not an empty sheet


def test_names_are_apart_and_within_the_image() -> None:
    assert spread([50, 50, 50], [10] * 3, 100) == [50, 60, 70]
    assert spread([90, 92, 95, 99], [10] * 4, 100) == [65, 75, 85, 95]
    assert spread([50, 50], [10, 30], 100) == [50, 70]
    assert spread([90, 90, 90], [40] * 3, 100) == [20, 60, 100]  # more than the image has room for: on below it


def crowded(row: Evidence, count: int) -> list[Evidence]:
    """Reasons at one place of an image of 64 pixels, with long names."""
    ends, bounds = ((30.0, 32.0), (36.0, 33.0)), (30, 28, 37, 36)
    pair = (("left_ornamental_brow", 1.0), ("right_ornamental_brow", 0.97))
    fields = {"parts": pair, "same_spot": (), "ends": ends, "bounds": bounds, "background": True}
    return [replace(row, prototype=j, head=j, **fields) for j in range(count)]


@pytest.mark.parametrize("count", [1, 10, 24])
def test_names_are_whole_and_do_not_overlap(trained: Callable[[str], Path], chromium: Browser, count: int) -> None:
    """Ten reasons at one place, and more than fit beside the image: as a browser draws them."""
    model = load(trained("parts"))
    row = next(row for seed in range(8) for row in model.explain(noise(seed)).classes[0].rows if row.outline)
    view = view_of(crowded(row, count), 64)
    assert view == (23, 21, 44, 42)  # a square around the place, for the object is small
    labels = labels_of(crowded(row, count), 24, 64, view)
    page = chromium.new_page(viewport={"width": 1200, "height": 1600})
    page.set_content(f"<style>text {{ font-family: sans-serif }}</style>{overview(labels, 64, True, view)}")
    drawing, *texts = page.evaluate(
        """() => [document.querySelector('svg'), ...document.querySelectorAll('text')].map(one => {
            const box = one.getBoundingClientRect();
            return [one.textContent, box.left, box.top, box.right, box.bottom]; })"""
    )
    said = " ".join(text for text, *_ in texts)
    for words in ("left ornamental brow 100 %,", "right ornamental brow 97 %"):
        assert said.count(words) == count
    assert "…" not in said
    places = [box for _, *box in texts]
    assert all(drawing[1] <= a and drawing[2] <= b and c <= drawing[3] and d <= drawing[4] + 1 for a, b, c, d in places)
    middle = (drawing[1] + drawing[3]) / 2
    for left in (True, False):
        side = sorted((top, bottom) for a, top, c, bottom in places if (c < middle) == left)
        line = side[0][1] - side[0][0] if side else 0
        assert all(after[0] - before[0] > 0.75 * line for before, after in pairwise(side))
    page.close()


def test_a_large_object_is_shown_in_the_whole_image(trained: Callable[[str], Path]) -> None:
    row = load(trained("parts")).explain(noise(0)).classes[0].rows[0]
    apart = [replace(row, bounds=(0, 0, 5, 5)), replace(row, bounds=(50, 20, 64, 40))]
    assert view_of(apart, 64) == view_of([], 64) == (0, 0, 64, 64)
    assert view_of([replace(row, bounds=(0, 60, 3, 64))], 64) == (0, 47, 17, 64)  # within the image, at its edge
    assert 'class="whole"' not in overview([], 64, True, (0, 0, 64, 64))
    assert 'class="whole"' in overview([], 64, True, (0, 47, 17, 64))


def test_a_crop_that_holds_half_of_what_is_outlined_says_so(trained: Callable[[str], Path]) -> None:
    """A head that looks at both eyes may see a crop with one and a half: the crop is shown as it is, with words."""
    why = load(trained("parts")).explain(noise(0))
    row = next(row for row in why.classes[0].rows if row.cropped)
    assert row.in_crop is not None
    assert 0 <= row.in_crop <= 1
    assert "the crop holds 62 % of what is outlined" in why.chips(replace(row, in_crop=0.625))
    assert "the crop holds" not in why.chips(replace(row, in_crop=0.95))
    assert "the crop holds" not in why.chips(replace(row, in_crop=None))


def noise(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_what_has_a_region_is_outlined_and_named_and_nothing_else_is(trained: Callable[[str], Path]) -> None:
    """The cosine of parts may be 0: such a prototype is nowhere in the image, gives nothing, and has no region."""
    model = load(trained("parts"))
    rows = [row for seed in range(8) for found in model.explain(noise(seed)).classes for row in found.rows]
    assert all((row.outline is not None) == (row.similarity > 0) for row in rows)
    assert {row.contribution for row in rows if row.outline is None} == {0.0}
    for row in rows:
        assert [label.prototypes for label in labels_of([row], 3, 64)] == [(row.prototype,)] * (row.similarity > 0)


def test_reasons_that_look_at_the_same_spot_share_a_name(trained: Callable[[str], Path]) -> None:
    model = load(trained("parts"))
    found = (model.explain(noise(seed)).classes[0].rows for seed in range(20))
    rows = next(rows for rows in found if all(row.similarity > 0 for row in rows))
    first, second, third = rows
    together = [replace(first, same_spot=(second.prototype,)), replace(second, same_spot=(first.prototype,)), third]
    labels = labels_of(together, 3, 64)
    assert sorted(len(label.prototypes) for label in labels) == [1, 2]
    assert {label.left for label in labels} == {True, False}
    heads = sorted((first.head, second.head))
    assert group_notes(together, 3) == [f"heads {heads[0]}, {heads[1]} look at the same spot"]
    assert group_notes(rows, 3) == []


def test_data_without_parts_says_how_much_lies_on_the_object(trained: Callable[[str], Path]) -> None:
    model = load(trained("parts"))
    found = (model.explain(noise(seed)).classes[0].rows for seed in range(20))
    rows = next(rows for rows in found if all(row.similarity > 0 for row in rows))
    bare = [replace(row, parts=(), part=None, here=None, on_object=0.625) for row in rows]
    assert {label.text for label in labels_of(bare, 3, 64)} == {"62 % on the object"}
    unknown = [replace(row, on_object=None) for row in bare]
    assert {label.text for label in labels_of(unknown, 3, 64)} == {""}
    named = [replace(bare[0], parts=(("left_wing", 0.9),)), replace(bare[1], here="left_eye"), bare[2]]
    assert {label.text for label in labels_of(named, 3, 64)} == {"left wing 90 %", "here left eye", "no clear part"}


def test_a_cut_is_the_box_alone() -> None:
    image = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(3, 8, 8)
    assert torch.equal(Patch(image, (2, 1, 5, 7), whole=True).cut().image, image[:, 1:7, 2:5])
