"""A comparison: what is one row, what starts from what, right numbers in every format; killed, it goes on."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.common.tables import mean_and_deviation
from dapl.evaluation import evaluate
from dapl.experiments import many_runs
from dapl.experiments.comparison import against_black_box, in_order, minutes_of, plan
from dapl.experiments.many_runs import measured
from dapl.runs.run import Run

from ..forked import Forked
from .conftest import COMPARED


@pytest.fixture
def files(tmp_path: Path, configs: Callable[[Path], list[Path]]) -> list[Path]:
    return configs(tmp_path)


def test_one_row_per_config_and_one_run_per_seed(files: list[Path], tmp_path: Path) -> None:
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


def test_runs_that_differ_in_the_seed_alone_are_one_row(compared: Path, tmp_path: Path) -> None:
    runs = compared / "runs"
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


# --- the table ------------------------------------------------------------------------------------------------------


def rows_of(out: Path) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads((out / "compare.json").read_text())["rows"]}


def test_numbers_are_those_of_evaluate_on_every_seed(compared: Path) -> None:
    out = compared
    for name, row in rows_of(out).items():
        folders = [out / "runs" / f"{name}-seed{seed}" for seed in (0, 1)]
        metrics = ("accuracy", "coverage", "diversity")
        found = [evaluate(folder, metrics=metrics, quiet=True, files=False) for folder in folders]
        for metric in metrics:
            if name == "box" and metric != "accuracy":
                assert row.get(metric) is None
                continue
            values = [result[metric] for result in found]
            assert row[metric]["values"] == pytest.approx(values)
            assert row[metric]["mean"] == pytest.approx(statistics.mean(values))
            assert row[metric]["deviation"] == pytest.approx(statistics.stdev(values))


def test_every_format_says_the_same(compared: Path) -> None:
    out = compared
    rows = rows_of(out)
    with (out / "compare.csv").open() as file:
        table = {row["name"]: row for row in csv.DictReader(file)}
    markdown = (out / "compare.md").read_text()
    chance = json.loads((out / "compare.json").read_text())["chance"]
    assert list(rows) == ["share", "net", "ours", "box"]
    assert list(table) == [*rows, *(f"chance: {name}" for name in chance["rows"])]
    for name, numbers in chance["rows"].items():
        assert float(table[f"chance: {name}"]["coverage"]) == numbers["coverage"]
        assert f"| chance: {name} | – |" in markdown
    assert chance["prototypes"] == 3  # of net and ours; share has fewer, box none
    for name, row in rows.items():
        assert float(table[name]["accuracy"]) == pytest.approx(row["accuracy"]["mean"])
        accuracy = row["accuracy"]
        assert f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['deviation']:.1f}" in markdown
    assert "toybirds, test split" in markdown
    assert "seeds 0, 1" in markdown


def test_the_json_says_how_and_on_what_it_was_made(compared: Path) -> None:
    """What a results page needs: intervals of every run, configs without the folders of one machine, the processor."""
    kept = json.loads((compared / "compare.json").read_text())
    assert kept["command"].startswith("dapl compare ")
    assert kept["command"].endswith(f"--seeds 0,1 --out {compared}")
    assert kept["machine"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert kept["images"] == {"train": 12, "validation": 3, "test": 9}
    assert [(run["name"], run["seed"]) for run in kept["runs"]] == [
        (name, seed) for name in COMPARED for seed in (0, 1)
    ]
    rows = rows_of(compared)
    for run in kept["runs"]:
        accuracy = run["numbers"]["accuracy"]
        assert accuracy["value"] == rows[run["name"]]["accuracy"]["values"][run["seed"]]
        assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
        assert run["trained"]["processor"] == kept["machine"]["processor"]
    assert str(compared.parent) not in "".join(kept["configs"].values())
    assert yaml.safe_load(kept["configs"]["share"])["start"] == "net-seed0"


def test_numbers_of_other_code_are_measured_again(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(compared / "runs" / "box-seed0", tmp_path / "run")
    run = Run.open(tmp_path / "run")
    kept = run.evaluation_folder / "test.json"
    changed = json.loads(kept.read_text())
    changed["evaluation"]["numbers"]["accuracy"]["value"] = 7.0
    kept.write_text(json.dumps(changed))
    assert measured(run, "test", "accuracy")["accuracy"] == 7.0  # as it was kept
    monkeypatch.setattr(many_runs, "code_digest", lambda: "other code")
    assert measured(run, "test", "accuracy")["accuracy"] <= 1


def test_merging_leaves_fewer_prototypes(compared: Path) -> None:
    rows = rows_of(compared)
    assert rows["share"]["prototypes_kept"]["mean"] < rows["net"]["prototypes_kept"]["mean"] == 9


def test_a_second_call_trains_and_measures_nothing(compared: Path, capsys: pytest.CaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in compared.rglob("*.safetensors")}
    assert before
    files = [str(compared.parent / f"{name}.yaml") for name in ("share", "net", "ours", "box")]
    assert main(["compare", *files, "--seeds", "0,1", "--out", str(compared)]) == 0
    assert {path: path.stat().st_mtime_ns for path in compared.rglob("*.safetensors")} == before
    shown = capsys.readouterr().out
    assert "warm_up" not in shown
    assert "share: " in shown
    assert "points against the black box" in shown


def test_what_is_asked_for_is_printed(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Stability and purity take passes of their own: whoever asks for all pays for them."""
    net = compared / "runs" / "net-seed0"  # the maps of the tiny DAPL are flat, and have no faithfulness
    assert main(["compare", str(net), "--metrics", "all", "--out", str(tmp_path), "--wide"]) == 0
    shown = capsys.readouterr().out
    with (tmp_path / "compare.csv").open() as file:
        row, *_ = csv.DictReader(file)  # then come the rows of chance
    for name in ("stability", "purity", "faithfulness"):
        assert math.isfinite(float(row[name]))
        assert name in (tmp_path / "compare.md").read_text()
    assert "stability" in " ".join(shown.split())
    box = compared / "runs" / "box-seed0"
    assert main(["compare", str(box), str(net), "--metrics", "coverage", "--out", str(tmp_path)]) == 0
    head = capsys.readouterr().out.partition("more columns with --wide")[0]
    assert "Coverage" in head
    assert "minutes" not in head  # of no use on a terminal of 80 columns
    titles = next(line for line in head.splitlines() if line.strip().startswith("system"))
    numbers = titles.partition("system")[2]
    assert len(numbers.strip()) <= 60  # the names of the rows fold into what is left of 80 columns


def test_every_option_of_the_protocol_is_taken(compared: Path, tmp_path: Path) -> None:
    net = compared / "runs" / "net-seed0"
    command = ["compare", str(net), "--metrics", "coverage", "--no-chance", "--out"]
    assert main([*command, str(tmp_path / "mass"), "--region", "mass", "--region-share", "0.5"]) == 0
    assert main([*command, str(tmp_path / "usual")]) == 0
    mass, usual = (json.loads((tmp_path / name / "compare.json").read_text()) for name in ("mass", "usual"))
    assert mass["protocol"] == usual["protocol"] | {"region": "mass", "region_share": 0.5}
    assert mass["rows"][0]["coverage"] != usual["rows"][0]["coverage"]
    assert "regions of 0.5 × the mass of the map" in (tmp_path / "mass" / "compare.md").read_text()


def test_what_interpretability_cost() -> None:
    rows = [
        {"name": "box", "system": "blackbox", "accuracy": mean_and_deviation([0.8, 0.9])},
        {"name": "ours", "system": "dapl", "accuracy": mean_and_deviation([0.82, 0.90])},
    ]
    assert against_black_box(rows) == ["ours: +1.0 ± 1.4 points against the black box"]
    assert against_black_box(rows[1:]) == []


def test_minutes_are_those_of_the_stages(compared: Path) -> None:
    run = Run.open(compared / "runs" / "net-seed0")
    stages = [entry for entry in run.logged() if entry["event"] == "stage"]
    assert len(stages) == 3
    assert minutes_of(run) == pytest.approx(sum(entry["seconds"] for entry in stages) / 60)


@pytest.mark.slow
def test_killed_it_goes_on(compared: Path, tmp_path: Path, configs: Callable[[Path], list[Path]]) -> None:
    """kill -9 in the middle, then the same command: the same weights as in the comparison that was not killed."""
    files, out = configs(tmp_path), tmp_path / "out"
    command = ["compare", *map(str, files), "--seeds", "0,1", "--out", str(out)]
    process = Forked(tmp_path / "said", main, command).process
    until = time.monotonic() + 120
    while not (tmp_path / "out" / "runs" / "ours-seed0" / "checkpoints").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.join()
    assert not (tmp_path / "out" / "compare.json").exists()
    assert main(command) == 0
    for mine in sorted((tmp_path / "out").rglob("best.safetensors")):
        theirs = compared / mine.relative_to(tmp_path / "out")
        ours, others = load_file(mine), load_file(theirs)
        assert ours.keys() == others.keys()
        assert all((ours[name] == others[name]).all() for name in ours), mine
    assert rows_of(tmp_path / "out")["ours"]["coverage"] == rows_of(compared)["ours"]["coverage"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds", "a"], "--seeds a: give whole numbers"),
        (["--seeds", "1,1"], "give different numbers"),
        (["--split", "tset"], "split"),
        (["--class", "no such bird"], "there is no class 'no such bird'"),
        (["--image", "7"], "--image 7: .* has test images 0 … 2"),
        (["--metrics", "covrage"], "did you mean 'coverage'"),
        (["--region", "mas"], "did you mean 'mass'"),
        (["--model.haeds", "3"], "unknown field"),
    ],
)
def test_bad_arguments(flags: list[str], message: str, compared: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", str(compared.parent / "ours.yaml"), "--out", str(compared), *flags]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_an_unfinished_run_is_refused(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "config.yaml").write_text((compared / "runs" / "net-seed0" / "config.yaml").read_text())
    assert main(["compare", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert "the run is not finished" in capsys.readouterr().err
