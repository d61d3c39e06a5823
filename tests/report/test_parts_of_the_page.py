"""Charts, sheets, choice of images and plain values."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from dapl.report.facts import curves, name_of, nice_ticks, rounded, without_paths
from dapl.report.images import heat_sheet, photo_sheet, source_rows, spread_images, tile_side
from dapl.runs.schemas import PrototypeRecord


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.18, 1.0), (-0.05, 4.2), (3.0, 3.0), (1e-7, 3e-7), (0.0, 1e9)])
def test_ticks_enclose_and_are_few(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low + 1e-9
    assert ticks[-1] >= high - 1e-9 * max(1, abs(high))
    assert 2 <= len(ticks) <= 7
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0])


def epoch(stage: int, name: str, number: int, **groups: dict[str, float]) -> dict:
    return {"event": "epoch", "stage": stage, "name": name, "epoch": number, **groups}


def test_curves_run_over_the_stages() -> None:
    logged = [
        epoch(0, "warm_up", 0, train={"accuracy": 0.0, "total": 4.0}, validation={"accuracy": 0.5}),
        epoch(0, "warm_up", 1, train={"accuracy": 0.5, "total": float("nan")}, validation={"accuracy": 0.75}),
        {"event": "stage", "stage": 1, "name": "project"},
        epoch(2, "last_layer", 0, train={"accuracy": 1.0}, validation={"accuracy": 1.0}),
    ]
    accuracy, loss = curves(logged)
    assert [line["name"] for line in accuracy["lines"]] == ["train", "validation"]
    assert [stage["name"] for stage in accuracy["stages"]] == ["warm up", "last layer"]
    train = accuracy["lines"][0]
    assert len(train["pieces"]) == 2, "a line is not drawn across the end of a stage"
    xs = [float(point.split(",")[0]) for piece in train["pieces"] for point in piece.split()]
    ys = [float(point.split(",")[1]) for piece in train["pieces"] for point in piece.split()]
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True), "up is more"
    assert (ys[0], ys[-1]) == (accuracy["bottom"], accuracy["top"])
    assert len(loss["lines"][0]["pieces"][0].split()) == 1, "what is not a number is left out"
    assert curves([]) == []


def test_long_training_is_thinned() -> None:
    logged = [epoch(0, "joint", n, train={"accuracy": n / 5000}) for n in range(5000)]
    chart = curves(logged)[0]
    points = chart["lines"][0]["pieces"][0].split()
    assert len(points) <= 402
    assert float(points[-1].split(",")[0]) == chart["ends"][-1]["x"], "the last epoch is always there"


def cut(content: bytes, layout: dict, number: int) -> np.ndarray:
    image = np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"))
    pitch = layout["side"] + 2 * layout["guard"]
    row, column = divmod(number, layout["columns"])
    y, x = row * pitch + layout["guard"], column * pitch + layout["guard"]
    return image[y : y + layout["side"], x : x + layout["side"]]


def test_photographs_come_back_from_their_sheet() -> None:
    tiles = [torch.full((3, 32, 32), shade, dtype=torch.uint8) for shade in range(0, 250, 25)]
    content, layout = photo_sheet(tiles)
    for number, image in enumerate(tiles):
        found = cut(content, layout, number)[..., :3].astype(int)
        assert np.abs(found - int(image[0, 0, 0])).max() <= 3, "neighbours do not run into each other"


def test_heat_comes_back_from_its_sheet_in_order() -> None:
    ramps = [torch.linspace(0, 255, 28 * 28).view(28, 28).byte(), torch.linspace(255, 0, 28 * 28).view(28, 28).byte()]
    content, layout = heat_sheet(ramps * 6)
    rising, falling = (cut(content, layout, number).astype(int) for number in (10, 11))
    assert np.array_equal(rising, falling[::-1, ::-1])
    assert rising[-1, -1, 0] > rising[0, 0, 0], "hot is bright"
    assert layout["guard"] == 1


def test_more_prototypes_get_smaller_tiles_in_whole_blocks() -> None:
    sides = [tile_side(count) for count in (10, 200, 2000, 10000)]
    assert sides == sorted(sides, reverse=True)
    assert all(side % 16 == 0 for side in sides)


def test_images_are_spread_and_not_picked() -> None:
    labels = [0] * 10 + [1] * 2 + [2] * 3
    assert spread_images(labels, 4, 3) == [[1, 5, 8], [10, 11], [12, 13, 14], []]


def test_sources_that_are_not_at_hand_are_left_out() -> None:
    images = ["b.png", "a.png", None, "b.png", "gone.png"]
    records = [PrototypeRecord(j, ["x"], 0, image=image) for j, image in enumerate(images)]
    assert source_rows(records, ["a.png", "b.png"]) == {0: [1], 1: [0, 3]}


def test_paths_of_the_machine_are_cut_to_their_name() -> None:
    assert name_of("/home/me/CUB/images/a.jpg") == "…/a.jpg"
    assert name_of("~/.cache/dapl") == "…/dapl"
    assert name_of("C:\\data\\birds") == "…/birds"
    assert name_of("class/a.jpg") == "class/a.jpg"
    assert name_of("$DAPL_CUB") == "$DAPL_CUB"
    assert without_paths({"a": ["/x/y", 3, {"b": "~/z"}]}) == {"a": ["…/y", 3, {"b": "…/z"}]}
    assert [rounded(value) for value in (0.123456, float("nan"), None)] == [0.1235, None, None]
