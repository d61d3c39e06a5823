"""The figure of an explanation: of heads that see crops, crop beside crop."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dapl import load
from dapl.explain.drawings import group_notes, labels_of, spread
from dapl.explain.local import draw_figure
from dapl.explain.patches import Patch


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
    assert spread([50, 50, 50], 10, 100) == [50, 60, 70]
    heights = spread([90, 92, 95, 99], 10, 100)
    assert heights == [65, 75, 85, 95]


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
