"""The page on what the numbers mean: rows of chance are those found before, the image was drawn with its numbers."""

from __future__ import annotations

import json

import pytest

from .test_results import DOCS, data, pages

FOUND_BEFORE = {
    "random discs in the image": {"coverage": 0.423, "diversity": 0.654, "one_to_one_coverage": 0.305, "islands": 1.0},
    "random discs in the mask": {
        "coverage": 0.909,
        "diversity": 0.674,
        "one_to_one_coverage": 0.726,
        "consistency": 0.040,
        "part_identity": 0.18,
        "part_identity_null": 0.18,
    },
    "discs on clusters of the mask": {"coverage": 0.955, "diversity": 0.793, "one_to_one_coverage": 0.769},
    "smooth noise in the mask": {
        "coverage": 0.975,
        "diversity": 0.736,
        "one_to_one_coverage": 0.872,
        "island_coverage": 0.907,
        "island_diversity": 0.664,
    },
    "a fixed grid of discs": {"coverage": 0.746, "diversity": 0.763, "one_to_one_coverage": 0.581},
    "the image's centre, N times": {"coverage": 0.408, "diversity": 0.178, "one_to_one_coverage": 0.308},
    "the mask's centroid, N times": {"consistency": 0.950, "part_identity": 0.09},
    "oracle: discs on the keypoints": {"coverage": 1.000, "diversity": 0.746, "one_to_one_coverage": 0.906},
    "constant maps": {"coverage": 0.0, "diversity": 0.5},
}
"""On the 579 test images of CUB-20 under the default protocol, by code of its own, before the rows were written here.
Constant maps are the exception: then their region was the whole image, now it is empty."""


@pytest.mark.parametrize("row", FOUND_BEFORE)
def test_rows_of_chance_on_cub_are_those_that_were_found_before(row: str) -> None:
    kept = json.loads((DOCS / "results" / "cub20-chance.json").read_text())
    assert kept["data"] | {"name": "cub", "classes": 10, "fit": "crop"} == kept["data"]
    assert (kept["split"], kept["prototypes"], kept["protocol"]["tau"]) == ("test", 10, 0.2)
    for number, value in FOUND_BEFORE[row].items():
        # Other random numbers, another grid and another order of keypoints; 12 and 8 of 200 prototypes are consistent.
        assert kept["rows"][row][number] == pytest.approx(value, abs=0.0201), number


def test_the_image_was_drawn_with_the_numbers_of_its_file() -> None:
    image = DOCS / "images" / "what-the-numbers-mean.png"
    assert pages.drawn_from(image) == data.read("one-image").digest
    assert image.stat().st_size < 200_000
