"""The data of a report, for every registered system: it agrees with the model, the records and the evaluation."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dapl import load
from dapl.batches.run_data import RunData
from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.data.build import build_splits
from dapl.data.listing import Listing
from dapl.data.transforms import fit
from dapl.evaluation import EvaluationProtocol, evaluate
from dapl.explain.parts import squares_of
from dapl.metrics.functional import regions
from dapl.metrics.functional.regions import model_regions, shown_regions
from dapl.models.backbone import Backbone
from dapl.models.build import SYSTEMS
from dapl.processes.launch import make_processes
from dapl.report.collect import Report, collect
from dapl.report.entries import FLAGS, SAME_SPOT, same_spot_groups
from dapl.runs.loading import load_run
from dapl.runs.run import Run, open_run

from .conftest import CLASSES, TEST_IMAGES

Reported = Callable[[str], tuple[Path, Report]]


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_every_prototype_of_every_class_is_there(reported: Reported, system: str) -> None:
    folder, report = reported(system)
    loaded = load_run(folder)
    membership, weights = loaded.model.prototypes.membership, loaded.model.class_weights()
    found = {(entry["class"], entry["prototype"]): entry for entry in report.data["prototypes"]}
    assert set(found) == {(c, j) for j, c in membership.nonzero().tolist()}
    assert len(found) == len(report.data["prototypes"])
    for (label, j), entry in found.items():
        record = loaded.records[j]
        assert entry["kept"] == record.kept
        assert entry["foreground"]["patch"] == pytest.approx(record.foreground_share, abs=1e-4)
        assert len(entry["tests"]) == 3
        assert entry["source"]["image"] == record.image
        assert (entry["source"]["outline"] is None) == (record.outline is None)
        if record.kept:
            assert entry["weight"] == pytest.approx(float(weights[j, label]), abs=1e-4)
        else:
            assert entry["weight"] is None
            assert entry["flags"] == ["removed"]
            assert entry["reason"] == record.reason
    json.dumps(report.data, allow_nan=False)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_confusions_are_those_behind_the_accuracy(reported: Reported, system: str) -> None:
    folder, report = reported(system)
    cells = report.data["confusion"]["cells"]
    assert sum(count for *_, count in cells) == CLASSES * TEST_IMAGES
    right = sum(count for own, taken, count in cells if own == taken)
    numbers = json.loads((folder / "metrics.json").read_text())["numbers"]
    assert right / (CLASSES * TEST_IMAGES) == pytest.approx(numbers["accuracy"]["value"])
    assert report.data["confusion"]["wrong"] == CLASSES * TEST_IMAGES - right


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"blackbox"}))
def test_matrices_are_those_of_the_evaluation(reported: Reported, system: str) -> None:
    folder, report = reported(system)
    heads = report.data["heads"]
    rows = {row["part"]: row for row in csv.DictReader((folder / "metrics" / "per_part.csv").open())}
    assert heads["parts"] == list(rows)
    compared = 0
    for part, shares in zip(heads["parts"], heads["on_parts"], strict=True):
        known = [share for share in shares if share is not None]
        if rows[part]["best_head_share"]:
            assert max(known) == pytest.approx(float(rows[part]["best_head_share"]), abs=1e-3)
            compared += 1
    assert compared


def test_shares_on_the_object_are_those_of_the_evaluation(reported: Reported) -> None:
    """The model has no flat maps: where some regions are empty, the mean over prototypes is not that over images."""
    folder, report = reported("pixpnet")
    rows = {row["class"]: row for row in csv.DictReader((folder / "metrics" / "per_class.csv").open())}
    for label, one in enumerate(report.data["classes"]):
        own = [e["foreground"]["test"] for e in report.data["prototypes"] if e["class"] == label]
        mean = float(rows[one["name"]]["region_background_share"])
        assert 1 - sum(own) / len(own) == pytest.approx(mean, abs=1e-3)
        assert one["accuracy"] == pytest.approx(float(rows[one["name"]]["accuracy"]), abs=1e-4)


def test_what_was_pruned_is_shown_with_the_reason(reported: Reported) -> None:
    _, report = reported("protopnet")
    removed = [entry for entry in report.data["prototypes"] if not entry["kept"]]
    assert len(removed) == CLASSES * 2, "threshold 1 leaves each class its best"
    assert all("foreground" in entry["reason"] or "share" in entry["reason"] for entry in removed)
    assert report.data["counts"] == {"prototypes": 9, "kept": 3}


def test_merged_and_shared_prototypes(reported: Reported) -> None:
    _, report = reported("protopshare")
    entries = report.data["prototypes"]
    merged = [entry for entry in entries if not entry["kept"]]
    shared = [entry for entry in entries if "shared" in entry["flags"]]
    assert merged
    assert all(entry["reason"].startswith("merged into prototype") for entry in merged)
    assert shared, "the fixture merges across classes"
    for entry in shared:
        walls = {other["class"] for other in entries if other["prototype"] == entry["prototype"]}
        assert walls == set(entry["classes"]), "a shared prototype is on the wall of each of its classes"


def test_a_black_box_has_numbers_only(reported: Reported) -> None:
    _, report = reported("blackbox")
    assert report.data["prototypes"] == []
    assert report.images == {}
    assert report.data["numbers"]["headlines"][0]["name"] == "accuracy"


def test_no_image_goes_through_the_backbone_twice(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums over the split are there already; what is left is the images that the page shows."""
    passed: list[int] = []
    forward = Backbone.forward
    monkeypatch.setattr(Backbone, "forward", lambda self, images: passed.append(len(images)) or forward(self, images))
    _, without = open_run(run, {"cache.features": False})
    slow = collect(run, without, quiet=True)
    sources = {entry["source"]["image"] for entry in slow.data["prototypes"]}
    assert sum(passed) == CLASSES * 3 + len(sources) + 1, "and the large image once more"
    passed.clear()
    more = collect(run, without, images=TEST_IMAGES, quiet=True)
    assert sum(passed) == CLASSES * TEST_IMAGES + len(sources) + 1
    assert {len(entry["tests"]) for entry in more.data["prototypes"]} == {TEST_IMAGES}
    passed.clear()
    fast = collect(run, quiet=True)
    assert sum(passed) == 1, "features of all images are kept; the large one is read from its file"
    for quick, thorough in zip(fast.data["prototypes"], slow.data["prototypes"], strict=True):
        pairs = zip((quick["source"], *quick["tests"]), (thorough["source"], *thorough["tests"]), strict=True)
        for one, other in pairs:
            assert one["score"] == pytest.approx(other["score"], abs=2e-3)
            assert one["foreground"] == pytest.approx(other["foreground"], abs=0.02)  # a pixel more or less


def test_it_evaluates_first_where_that_was_not_done(trained: Callable[[str], Path], tmp_path: Path) -> None:
    without = shutil.ignore_patterns("metrics.json", "metrics")
    shutil.copytree(trained("dapl"), tmp_path / "run", ignore=without)
    report = collect(tmp_path / "run", quiet=True)
    measured = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert measured.get("chance") is None, "chance takes longer than all that the page shows"
    assert {row["name"] for row in report.data["numbers"]["headlines"]} >= {"accuracy", "coverage", "diversity"}


def test_sums_are_kept_and_made_anew_for_another_model(run: Path, reported: Reported) -> None:
    file = run / "metrics" / "split_sums.json"
    values = json.loads(file.read_text())
    values["confusion"][0][0] += 100
    file.write_text(json.dumps(values))
    assert collect(run, quiet=True).data["confusion"]["totals"][0] == TEST_IMAGES + 100, "taken from the file"
    shutil.copy(run / "checkpoints" / "last.safetensors", run / "checkpoints" / "best.safetensors")
    assert collect(run, quiet=True).data["confusion"]["totals"][0] == TEST_IMAGES
    file.write_text("no JSON")
    assert collect(run, quiet=True).data["confusion"] == reported("dapl")[1].data["confusion"]


def test_it_is_the_same_each_time_and_names_no_path_of_the_machine(run: Path) -> None:
    first, second = collect(run, quiet=True), collect(run, quiet=True)
    assert first.data == second.data
    assert first.images == second.images
    text = json.dumps(first.data)
    assert "cache" in text, "the config is shown"
    for path in (run.parent, Path.home(), Path.cwd()):
        assert str(path) not in text


def test_flags_say_what_they_say(reported: Reported) -> None:
    _, report = reported("dapl")
    entries = report.data["prototypes"]
    for entry in entries:
        assert entry["on_object"] == entry["foreground"]["test"], "one number, wherever it is shown"
        assert ("background" in entry["flags"]) == (entry["on_object"] < 0.5)
        near = entry["overlap"]["iou"] >= 0.5
        assert (SAME_SPOT in entry["flags"]) == near == bool(entry["same_spot"])
        assert set(entry["flags"]) <= set(FLAGS)
    counted = {flag["name"]: flag["count"] for flag in report.data["flags"]}
    assert counted["background"] == sum("background" in entry["flags"] for entry in entries)
    worst = report.data["offenders"]["background"]
    assert [one["value"] for one in worst] == sorted(one["value"] for one in worst)
    assert sum(len(one["prototypes"]) for one in report.data["groups"]) == counted[SAME_SPOT]


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"blackbox"}))
def test_explain_report_and_sheet_agree_on_every_name_and_flag(reported: Reported, system: str) -> None:
    """The same is said of each prototype, by whichever way it is looked at."""
    folder, report = reported(system)
    classifier = load(folder)
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    seen = set()
    for label in range(CLASSES):
        why = classifier.explain(image, against=label, top=1000)
        rows = {row.prototype: row for one in why.classes for row in one.rows}
        for entry in report.data["prototypes"]:
            if entry["class"] == label and entry["kept"]:
                row = rows[entry["prototype"]]
                assert row.part == entry["part"]
                assert [name for name, _ in row.parts] == entry["names"]
                assert row.background == ("background" in entry["flags"])
                assert row.on_object == pytest.approx(entry["on_object"], abs=1e-4)
                assert list(row.same_spot) == entry["same_spot"]
                assert (row.colour, row.dashed) == (entry["colour"], entry["dashed"])
                seen.add(entry["prototype"])
    assert seen == {record.index for record in classifier.known.records if record.kept}


def test_groups_of_prototypes_at_the_same_spot() -> None:
    def entry(j: int, label: int, head: int | None, same: list[int], names: list[str]) -> dict:
        return {"prototype": j, "class": label, "head": head, "same_spot": same, "names": names, "kept": True}

    heads = [entry(0, 0, 0, [2], ["wing"]), entry(1, 0, 1, [], []), entry(2, 0, 2, [0], ["wing", "face"])]
    heads += [entry(3, 1, 0, [5], ["wing"]), entry(4, 1, 1, [], []), entry(5, 1, 2, [3], ["face"])]
    assert same_spot_groups(heads) == [
        {"heads": [0, 2], "classes": [0, 1], "prototypes": [0, 2, 3, 5], "names": ["wing", "face"]}
    ]
    none = [entry(j, label, None, same, []) for j, label, same in ((0, 0, [1]), (1, 0, [0]), (2, 1, []))]
    assert same_spot_groups(none) == [{"heads": None, "classes": [0], "prototypes": [0, 1], "names": []}]


def test_the_overview_and_the_strip_of_heads(reported: Reported) -> None:
    _, report = reported("parts")
    data = report.data
    assert "overview.jpg" in report.images
    own = [entry for entry in data["prototypes"] if entry["class"] == data["overview"]["class"]]
    assert {row["colour"] for row in data["overview"]["rows"]} <= {entry["colour"] for entry in own}
    assert [one["head"] for one in data["strip"]] == [0, 1, 2]
    for one in data["strip"]:
        assert {data["prototypes"][number]["head"] for number in one["entries"]} == {one["head"]}
        assert len(one["entries"]) == CLASSES
        assert one["text"] == (one["name"] or "no clear part")
    assert reported("protopnet")[1].data["strip"] == [], "without heads there is nothing to follow over classes"


def test_masks_that_were_made_are_said_to_be(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dapl.report import collect as module

    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "made.jsonl").write_text('{"name": "a.png", "method": "features"}\n' * 2)
    assert collect(run, quiet=True).data["masks"] is None, "drawn birds have masks of their own"
    monkeypatch.setattr(module, "list_files", lambda data: Listing("birds", [], [], {}, masks=tmp_path / "masks"))
    said = collect(run, quiet=True).data["masks"]
    assert said.startswith("The masks of 2 images were made by a program (features), not drawn by a person")


def test_other_protocols_stand_below_the_full_numbers(run: Path) -> None:
    before = collect(run, quiet=True).data
    evaluate(run, EvaluationProtocol(tau=0.5), metrics="coverage", quiet=True, chance=False)
    evaluate(run, metrics="accuracy", quiet=True)
    after = collect(run, quiet=True).data
    assert after["numbers"]["rows"] == before["numbers"]["rows"]
    assert [other["protocol"] for other in after["numbers"]["others"]] == [f"tau 0.5: {CLASSES * TEST_IMAGES} images"]
    assert after["prototypes"] == before["prototypes"]


def test_overlap_is_the_mean_iou_of_regions(reported: Reported) -> None:
    """Against regions that are computed here, image by image."""
    folder, _ = reported("pixpnet")
    loaded = load_run(folder)
    run_data = RunData(loaded.config, make_processes(loaded.config), Reporter(quiet=True))
    labels = torch.tensor(list(run_data.dataset("test").labels))
    images = run_data.images("test")
    ious = []
    for index in (labels == 1).nonzero().flatten().tolist():
        maps = loaded.model.activation_maps(images[index, 0][0].unsqueeze(0), torch.tensor([3, 4]))[0]
        first, second = model_regions(loaded.model, maps, 64)
        ious.append(float((first & second).sum() / (first | second).sum()))
    overlap = json.loads((folder / "metrics" / "split_sums.json").read_text())
    expected = sum(ious) / len(ious)
    assert 0 < expected < 1, "the test says nothing"
    assert overlap["iou"][1][0][1] / overlap["pairs"][1][0][1] == pytest.approx(expected, abs=1e-5)


def test_what_is_said_of_heads_that_see_crops_is_of_what_is_drawn(
    evaluated: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "MOST_OF_CROP", 0.1)  # as if the drawn birds, which are large, were small
    folder = Path(shutil.copytree(evaluated("parts"), tmp_path / "run"))
    (folder / "metrics.json").unlink()
    evaluate(folder, quiet=True, chance=False)
    loaded = load_run(folder)
    model, test = loaded.model, build_splits(loaded.config.data).test
    on_object: dict[int, list[float]] = {}
    smaller = False
    for index in range(len(test)):
        sample = fit(test[index], 64)
        with torch.no_grad():
            output = model(sample.image.as_subclass(Tensor).unsqueeze(0))
        own = model.prototypes.by_class()[0][sample.label]
        maps, squares = model.maps(output.embedding, own)[0], squares_of(model, output.embedding, 0, own)
        drawn = shown_regions(model, maps, 64, squares)
        smaller |= bool((drawn != model_regions(model, maps, 64)).any())
        mask = sample.mask.as_subclass(Tensor).bool()  # type: ignore[union-attr]
        for j, region in zip(own.tolist(), drawn, strict=True):
            on_object.setdefault(j, []).append(float((region & mask).sum() / region.sum()))
    assert smaller, "the test says nothing"
    for look in Run(folder).looks():  # nothing is drawn of a flat map; a share has four decimals
        assert look.on_object == pytest.approx(np.nanmean(on_object[look.index]), abs=1e-4)


def test_bad_arguments(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DaplError, match="images: is 0"):
        collect(run, images=0)
    with pytest.raises(DaplError, match="not a run directory"):
        collect(tmp_path)
