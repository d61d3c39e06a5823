"""The sheet of prototypes, and the sheet of tiles that it is laid on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from dapl.batches.run_data import RunData
from dapl.common.progress import Reporter
from dapl.explain.draw import TileSheet, fitting_text
from dapl.explain.parts import ModelRecords
from dapl.explain.sheet import prototype_sheet, render_sources
from dapl.metrics.naming import share_text
from dapl.processes.interface import SingleProcess
from dapl.runs.loading import LoadedRun, load_run


@pytest.fixture
def loaded(dapl_run: Path) -> LoadedRun:
    return load_run(dapl_run)


@pytest.fixture
def run_data(loaded: LoadedRun) -> RunData:
    return RunData(loaded.config, SingleProcess(), Reporter(quiet=True))


def test_one_row_per_class(loaded: LoadedRun, run_data: RunData) -> None:
    sheet = prototype_sheet(loaded, run_data, tile=40)
    assert sheet.size == (3 * 48 + 8, 3 * (22 + 40 + 40 + 8) + 8)
    assert prototype_sheet(loaded, run_data, classes=1, tile=40).height == 22 + 40 + 40 + 8 + 8
    left, top = 8, 8 + 22
    assert np.asarray(sheet)[top : top + 40, left : left + 40].std() > 5, "an image is there"


def test_its_regions_are_those_of_the_metrics(
    loaded: LoadedRun, run_data: RunData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flat map has no region, so that nothing is outlined."""
    maps = type(loaded.model).maps
    size = loaded.config.data.image_size
    monkeypatch.setattr(type(loaded.model), "maps", lambda *arguments: torch.full_like(maps(*arguments), 0.3))
    record = loaded.records[0]
    tile = render_sources(loaded, run_data, [record], size)[record.index]
    dataset = run_data.dataset("train")
    image = run_data.images("train")[list(dataset.names).index(record.image), 0][0]
    assert np.array_equal(np.asarray(tile.image), image.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("system", ["dapl", "parts"])
def test_words_below_are_those_of_every_page(evaluated: Callable[[str], Path], system: str) -> None:
    loaded = load_run(evaluated(system))
    run_data = RunData(loaded.config, SingleProcess(), Reporter(quiet=True))
    known = ModelRecords(loaded.classes, loaded.records, loaded.run.looks())
    assert len(known.looks) == len(loaded.records)
    for index, tile in render_sources(loaded, run_data, loaded.records, 40).items():
        said, words = known.described(index), [text for text, _ in tile.lines]
        assert (said.name in words) == (said.name is not None)
        assert words[0].endswith(" · background") == said.background
        if loaded.records[index].kept and said.on_object is not None:
            assert words[-1] == f"{share_text(said.on_object)} on the object", "the number that decides on background"
        assert fitting_text(words[-1], ImageFont.load_default(10), 112) == words[-1], "what decides is never cut off"


def test_tiles_lie_side_by_side() -> None:
    sheet = TileSheet(count=3, tile=4, columns=2, margin=1, below=2, ground="black")
    for number in range(3):
        assert sheet.paste(number, Image.new("RGB", (4, 4), "white")) == sheet.place(number)
    assert sheet.image.size == (11, 15)
    assert np.asarray(sheet.image).any(2).sum() == 3 * 16, "none covers another"
    assert TileSheet(0, 4, 8).image.size == (4, 4)
    assert TileSheet(1, 4, 8, least_width=50, foot=9).image.size == (50, 13)


def test_text_is_cut_to_its_room() -> None:
    font = ImageFont.load_default(10)
    assert fitting_text("short", font, 1000) == "short"
    for end in (False, True):
        cut = fitting_text("a_long_name_of_a_file.jpg", font, 60, end)
        assert font.getlength(cut) <= 60
        assert cut.endswith(".jpg") == end
        assert cut.startswith("a_") == (not end)
