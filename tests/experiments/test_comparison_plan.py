"""Rows of a comparison: what is one row, what starts from what, and what cannot stand in one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dapl.common.errors import DaplError
from dapl.experiments.comparison import in_order, plan


@pytest.fixture
def files(tmp_path: Path, configs: Callable[[Path], list[Path]]) -> list[Path]:
    return configs(tmp_path)


def test_one_row_a_config_and_one_run_a_seed(files: list[Path], tmp_path: Path) -> None:
    entries = plan(files, tmp_path / "out", [3, 5], {"data.classes": 2})
    assert [entry.name for entry in entries] == ["share", "net", "ours", "box"]
    for entry in entries:
        assert [planned.config.seed for planned in entry.runs] == [3, 5]
        assert all(planned.config.data.classes == 2 for planned in entry.runs)
    assert len({planned.folder for entry in entries for planned in entry.runs}) == 8


def test_start_is_the_run_of_the_same_seed_and_comes_first(files: list[Path], tmp_path: Path) -> None:
    entries = plan(files, tmp_path / "out", [0, 1], {})
    by_name = {entry.name: entry for entry in entries}
    for share, net in zip(by_name["share"].runs, by_name["net"].runs, strict=True):
        assert share.config.start == str(net.folder)
        assert share.config.seed == net.config.seed
    order = [planned.folder for planned in in_order(entries)]
    for share, net in zip(by_name["share"].runs, by_name["net"].runs, strict=True):
        assert order.index(net.folder) < order.index(share.folder)


def test_runs_that_differ_in_the_seed_alone_are_one_row(compared: tuple[list[Path], Path], tmp_path: Path) -> None:
    runs = compared[1] / "runs"
    entries = plan([runs / "ours-seed0", runs / "net-seed0", runs / "ours-seed1"], tmp_path, [0], {})
    assert [[planned.folder.name for planned in entry.runs] for entry in entries] == [
        ["ours-seed0", "ours-seed1"],
        ["net-seed0"],
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"name": "toybirds", "classes": 4}}, "ours is on other data than net: data.classes is 4 there and 3"),
        ({"start": "ours"}, "start: names this config itself"),
    ],
)
def test_what_is_refused(change: dict, message: str, files: list[Path], tmp_path: Path) -> None:
    net, ours = files[1:3]
    ours.write_text(yaml.safe_dump(yaml.safe_load(ours.read_text()) | change))
    with pytest.raises(DaplError, match=message):
        plan([net, ours], tmp_path / "out", [0], {})


def test_configs_of_one_name_are_refused(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    again = tmp_path / "other" / files[2].name
    again.write_text(files[2].read_text())
    with pytest.raises(DaplError, match="two configs are called ours"):
        plan([files[2], again], tmp_path / "out", [0], {})


def test_a_circle_of_starts_is_refused(files: list[Path], tmp_path: Path) -> None:
    net = files[1]
    net.write_text(yaml.safe_dump(yaml.safe_load(net.read_text()) | {"start": "share"}))
    with pytest.raises(DaplError, match="wait for each other"):
        in_order(plan(files[:2], tmp_path / "out", [0], {}))
