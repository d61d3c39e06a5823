"""Segmentations of COCO: run lengths and polygons, decoded as pycocotools does it, or refused before it sees them."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest

from dapl.common.errors import DaplError
from dapl.data.coco_masks import decode

tools = pytest.importorskip("pycocotools.mask", reason="pip install 'dapl[coco]'")


def test_run_lengths_round_trip() -> None:
    for seed in range(30):
        size = (7 + seed, 60 - seed)
        noise = np.random.default_rng(seed).integers(0, 2, size, dtype=np.uint8)
        mask = noise.repeat(3, 0)[: size[0]] if seed % 2 else noise  # longer runs, too
        lengths = [len(list(run)) for _, run in groupby(mask.flatten(order="F").tolist())]
        compressed = tools.encode(np.asfortranarray(mask))["counts"].decode()
        for counts in (compressed, ([0] if mask[0, 0] else []) + lengths):
            assert np.array_equal(decode({"size": list(size), "counts": counts}, size, "here"), mask)
    for value in (0, 1):
        full = np.full((5, 4), value, np.uint8, order="F")
        counts = tools.encode(full)["counts"].decode()
        assert np.array_equal(decode({"size": [5, 4], "counts": counts}, (5, 4), "here"), full)


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ([[1, 1, 5, 5]], "neither run lengths nor a list of polygons"),
        ([[1, 1, 5, 5, 3, 3, 4]], "neither run lengths nor a list of polygons"),
        ([[1, 1, 5, "x", 3, 3]], "neither run lengths nor a list of polygons"),
        ([[1, 1, 5, float("nan"), 3, 3]], "neither run lengths nor a list of polygons"),
        ("mask.png", "neither run lengths nor a list of polygons"),
        ({"size": [4, 5], "counts": [20]}, "the mask is 5×4, but its image is 4×5"),
        ({"counts": [20]}, "the mask is None, but"),
        ({"size": [5, 4], "counts": [3, 3]}, "do not add up to 4×5 pixels"),
        ({"size": [5, 4], "counts": [30, -10]}, "do not add up"),
        ({"size": [5, 4], "counts": 20}, "do not add up"),
        ({"size": [5, 4], "counts": "b0P"}, "do not add up"),  # the last number does not end
        ({"size": [5, 4], "counts": "~~"}, "do not add up"),
        ({"size": [5, 4], "counts": "00"}, "do not add up"),
    ],
)
def test_a_segmentation_that_is_none_is_refused(segmentation: Any, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        decode(segmentation, (5, 4), "zoo.json, annotation 7")
