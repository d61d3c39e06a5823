"""The rows that benchmarks write into the documentation: what was measured, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from benchmarks import __main__ as bench
from benchmarks import own_data, scale
from benchmarks import report as report_bench
from benchmarks.peers import __main__ as peers
from benchmarks.timing import Ratio

from dapl.data.shards import read_shards


def test_drawn_shards_are_read_and_measured(tmp_path: Path) -> None:
    scale.draw_shards(tmp_path / "shards", 40)
    found = read_shards(tmp_path / "shards")
    assert {split: len(images) for split, images in found.items()} == {"train": 40, "test": 10}
    assert found["train"].classes == [str(label) for label in range(scale.CLASSES)]
    assert tuple(found["train"][0].image.shape) == (3, scale.SIDE, scale.SIDE)

    row = scale.measure(40, tmp_path)
    assert row["images"] == 40
    assert 0 < row["cache_gb"] < scale.LIMIT_GB
    assert row["kept"] == "features, images"
    assert row["memory_gb"] > 0.05, "libraries alone take more"
    assert row["train_seconds"] > 0 < row["evaluate_seconds"]


def test_the_curve_compares_each_size_with_the_one_before() -> None:
    row = {"evaluate_seconds": 2.0, "memory_gb": 0.3, "cache_gb": 0.1, "kept": "images", "accuracy": 0.5}
    rows = [{**row, "images": 3000, "train_seconds": 8.0}, {**row, "images": 30000, "train_seconds": 97.0}]
    first, second = scale.curve(rows).splitlines()[2:]
    assert first == "| 3,000 | 8 s | 2.0 s |  | 0.30 GB | 0.100 of 0.25: images | 50.0% |"
    assert second.split("|")[4].strip() == "9.9"


def test_the_calculation_on_paper_is_one_of_products() -> None:
    text = scale.on_paper({"decoded_per_second": 100.0, "compact_bytes": 20_000})
    lines = {cells[1]: cells[2:4] for line in text.splitlines() if (cells := [c.strip() for c in line.split("|")])[1:]}
    assert lines["prototypes"] == ["10,000", "20"]
    assert lines["pixels at 224²"][0] == f"{1_281_167 * 3 * 224 * 224 / 2**30:,.1f} GB"
    assert lines["scores of all images"][0].endswith("streamed")
    assert lines["scores of all images"][1].endswith("kept")
    # 16 cores decode 1,600 images per second, which one GPU does not keep up with in training
    assert lines["one epoch, all learning, 1 GPU"][1] == f"{354_000 / 400 / 60:.1f} min"
    assert lines["one epoch on a frozen backbone, a projection, an evaluation, 8 GPUs"][1].startswith(
        f"{354_000 / 12_000 / 60:.1f} min"
    )
    slow = scale.on_paper({"decoded_per_second": 10.0, "compact_bytes": 20_000})
    assert f"{354_000 / 160 / 60:.1f} min (decoding)" in slow


def test_a_page_is_changed_between_its_marks_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{scale.MARKS[0]}old\n{scale.MARKS[1]}after\n")
    for text in ("new", "newer"):
        scale.write_between_marks(page, text)
    assert page.read_text() == f"before\n{scale.MARKS[0]}\nnewer\n{scale.MARKS[1]}after\n"


def test_rows_beside_a_peer() -> None:
    timed = {"total": 60.0, "memory_gb": 2.0}
    theirs = {"_train_epoch": [6.0] * peers.EPOCHS + [1.0] * 10, "project": [4.0], "prune": [3.0, 1.0]}
    ours = {"_fit": [2.0], "_project": [1.0], "_prune_impure": [0.5], "_last_layer": [0.25]}
    found = {
        f"{name} {program}": {**timed, "seconds": {}} for name in peers.COMMANDS for program in ("cabrnet", "dapl")
    }
    found["train cabrnet"]["seconds"] = {f"cabrnet.archs:{name}": value for name, value in theirs.items()}
    found["train dapl"] = {"seconds": {f"dapl:Trainer.{n}": v for n, v in ours.items()}, "total": 6.0, "memory_gb": 1.0}
    found["render cabrnet"]["seconds"] = {"cabrnet.archs:extract_prototypes": [20.0, 10.0]}
    more = peers.MORE_EPOCHS - peers.EPOCHS
    found["train longer cabrnet"], found["train longer dapl"] = {"total": 60.0 + 4 * more}, {"total": 6.0 + 0.5 * more}
    rows = {row["what"]: (row["cabrnet"], row["dapl"]) for row in peers.rows(found, images=160)}
    assert rows["training step"] == pytest.approx((30 / 10, 2 / 10))  # two batches of 80 in each epoch
    assert rows["pruning"] == (4.0, 0.5)
    assert rows["last layer, 10 epochs"] == (10.0, 0.25)
    assert rows["rendering all prototypes"] == (30.0, 60.0)
    assert rows["end to end, the four commands"] == (240.0, 186.0)
    assert rows["the four commands with 10 epochs"] == pytest.approx((240 + 4 * more, 186 + 0.5 * more))
    assert rows["lines of YAML"][0] > rows["lines of YAML"][1]

    line = peers.by_epochs(found)
    assert line["cabrnet"] == pytest.approx({"per_epoch": 4.0, "fixed": 240 - 5 * 4, "computed": 220 + 4 * 100})
    assert line["dapl"]["computed"] == pytest.approx(186 + 0.5 * (100 - 5))


def test_the_longer_training_of_both_differs_in_its_epochs_only(tmp_path: Path) -> None:
    shutil.copytree(peers.HERE / "cabrnet", tmp_path / "cabrnet")
    shutil.copy(peers.HERE / "dapl.yaml", tmp_path)
    peers.write_longer(tmp_path)
    read = lambda name: yaml.safe_load((tmp_path / name).read_text())  # noqa: E731
    theirs, longer = read("cabrnet/training.yml"), read("cabrnet-longer/training.yml")
    assert longer["num_epochs"] == longer["periods"]["warmup"]["epoch_range"][1] + 1 == peers.MORE_EPOCHS
    theirs["num_epochs"], theirs["periods"]["warmup"]["epoch_range"] = peers.MORE_EPOCHS, [0, peers.MORE_EPOCHS - 1]
    assert longer == theirs
    ours = read("dapl.yaml")
    assert ours["schedule"][0]["epochs"] == peers.EPOCHS
    ours["schedule"][0]["epochs"] = peers.MORE_EPOCHS
    assert read("dapl-longer.yaml") == ours


def test_the_page_of_a_run_is_measured_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "report"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "000-photos.jpg").write_bytes(b"photo")
    (folder / "report.json").write_text(json.dumps({"classes": [1]}))
    found = report_bench._written(folder)
    assert found is not None
    assert (found.data, found.images) == ({"classes": [1]}, {"000-photos.jpg": b"photo"})
    assert report_bench._written(tmp_path) is None
    page = report_bench.PageSize("folder", 29.0, (1.0, 1.5, 9.0))
    assert page.is_within()
    assert "1.50 s to interactive" in str(page)
    assert not report_bench.PageSize("folder", 31.0, (1.0,)).is_within()


def test_groups_of_classes_have_nothing_in_common_with_the_new_user() -> None:
    names = [f"{number:03d}.Bird" for number in range(1, 201)]
    groups = own_data.class_groups(names)
    every = [name for group in groups for name in group]
    assert (len(groups), len(every), len(set(every))) == (6, 36, 36)
    assert not {name[:3] for name in every} & set(own_data.LEFT_OUT)
    assert groups == own_data.class_groups(names)


def test_ratios_can_be_measured_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ratio = {name: Ratio(f"{name} step", "bare", 1.5, (1.0, 2.0), "≤ 2") for name in ("one", "two")}
    modules = {name: SimpleNamespace(ratios=lambda name=name: [ratio[name]]) for name in ratio}
    monkeypatch.setattr(bench, "MODULES", modules)
    monkeypatch.setattr(bench, "KEPT", tmp_path / "benchmarks.json")
    bench.main(["two"])
    found = json.loads(bench.KEPT.read_text())
    assert (found["command"], [row["what"] for row in found["ratios"]]) == ("python -m benchmarks two", ["two step"])
    bench.main(["one"])
    found = json.loads(bench.KEPT.read_text())
    assert (found["command"], [row["what"] for row in found["ratios"]]) == ("make bench", ["one step", "two step"])
    with pytest.raises(SystemExit, match="there is no benchmark three; give some of one, two"):
        bench.main(["three"])


def test_functions_are_replaced_as_soon_as_the_program_has_loaded_them(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, str(peers.HERE / "timed.py"), str(report), "dapl.cli:main"]
    timed, left_out = "dapl.config.reading:load_config", "dapl.cli.train:_run"
    config = str(peers.HERE / "dapl.yaml")
    subprocess.run([*command, left_out, timed, "--", "train", config, "--out", "nowhere"], check=True, cwd=tmp_path)
    found = json.loads(report.read_text(encoding="utf-8"))
    assert list(found["seconds"]) == [timed]
    assert len(found["seconds"][timed]) == 1
    assert 0 < found["seconds"][timed][0] < found["total"]
    assert list(tmp_path.iterdir()) == [report], "nothing was trained"
