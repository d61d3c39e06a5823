"""`evaluate` on a tiny run: equal to a slow recomputation, and the protocol changes what it should."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from dapl.batches.sources import grid_masks
from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.sample import Dataset, Sample
from dapl.data.transforms import fit
from dapl.evaluation import Evaluation, EvaluationProtocol, evaluate, table
from dapl.metrics import functional as F
from dapl.metrics.functional.parts import part_masks
from dapl.runs.loading import load_run
from dapl.runs.run import Run

LOOKS = (
    "coverage",
    "precision",
    "recall",
    "diversity",
    "redundancy",
    "imbalance",
    "background_bias",
    "region_background_share",
)


def exact_parts(sample: Sample) -> tuple[Tensor, Tensor]:
    assert sample.part_masks is not None
    parts = sample.part_masks.as_subclass(Tensor).bool()
    return parts, F.visible_parts(parts)


def discs(sample: Sample) -> tuple[Tensor, Tensor]:
    assert sample.keypoints is not None
    assert sample.visible is not None
    assert sample.box is not None
    keypoints, box = sample.keypoints.as_subclass(Tensor), sample.box.as_subclass(Tensor)[0]
    parts = part_masks(keypoints, sample.visible, 64, boxes=box)
    return parts, F.visible_parts(parts, sample.visible)


@torch.no_grad()
def slowly(folder: Path, find_parts=exact_parts, tau: float = 0.2, percentile: float = 95.0) -> dict[str, float]:
    """One image at a time, straight from the data set through the public functions."""
    loaded = load_run(folder)
    model, rows = loaded.model, []
    test = build_splits(loaded.config.data).test
    for index in range(len(test)):
        sample = fit(test[index], 64)
        output = model(sample.image.as_subclass(Tensor).unsqueeze(0))
        own, _ = model.prototypes_of(torch.tensor([sample.label]))
        maps = model.maps(output.embedding, own)[0]
        parts, visible = find_parts(sample)
        mask = sample.mask.as_subclass(Tensor)  # type: ignore[union-attr]
        regions = F.activation_regions(maps, 64, percentile)
        assigned = F.assign(F.overlap(regions, parts), tau, visible)
        row = {name: getattr(F, name)(assigned, visible) for name in ("coverage", "precision", "recall", "imbalance")}
        row |= {name: getattr(F, name)(regions, assigned, visible) for name in ("diversity", "redundancy")}
        grid = grid_masks(mask.unsqueeze(0), maps.shape[-2:])[0]
        row["background_bias"] = F.background_bias(maps, grid).nanmean()
        row["region_background_share"] = F.region_background_share(regions, mask.bool()).nanmean()
        row["accuracy"] = (output.logits.argmax() == sample.label).float()
        row["cross_entropy"] = torch.nn.functional.cross_entropy(output.logits, torch.tensor([sample.label]))
        rows.append(row)
    return {name: torch.stack([row[name] for row in rows]).double().nanmean().item() for name in rows[0]}


def test_numbers_are_those_of_a_slow_recomputation(evaluated: tuple[Path, Evaluation]):
    folder, result = evaluated
    for name, value in slowly(folder).items():
        assert result[name] == pytest.approx(value, abs=2e-5), name
    assert result["coverage"] > 0  # or the test says nothing
    assert result["redundancy"] > 0


def test_protocol_options_reach_the_numbers(run: Path):
    protocol = EvaluationProtocol(part_mode="disc", tau=0.4, percentile=90)
    result = evaluate(run, protocol, metrics=["coverage", "diversity", "background_bias"], quiet=True)
    expected = slowly(run, discs, tau=0.4, percentile=90)
    for name in LOOKS[:7]:
        assert result[name] == pytest.approx(expected[name], abs=2e-5), name
    assert set(result.numbers) == set(LOOKS[:7])
    written = json.loads(Run(run).evaluation_file.read_text())["protocol"]
    assert (written["part_mode"], written["tau"], written["percentile"], written["radius"]) == ("disc", 0.4, 90, 0.12)


@pytest.mark.parametrize("scope", ["dataset", "projection"])
def test_scope_changes_the_looks_and_not_the_answers(scope: str, run: Path, evaluated: tuple[Path, Evaluation]):
    result = evaluate(run, EvaluationProtocol(scope=scope), quiet=True)
    assert result["accuracy"] == evaluated[1]["accuracy"]
    assert result.numbers["ece"] == evaluated[1].numbers["ece"]
    assert result["coverage"] != evaluated[1]["coverage"]
    assert all(0 <= result[name] <= 1 for name in LOOKS)
    assert scope in table(result)


@torch.no_grad()
def test_scope_projection_is_each_prototype_on_its_source(run: Path):
    result = evaluate(
        run, EvaluationProtocol(scope="projection"), metrics="coverage,diversity,background_bias", quiet=True
    )
    loaded = load_run(run)
    train = build_splits(loaded.config.data).train
    coverages, diversities, biases = [], [], []
    for label in range(3):
        own = [record for record in loaded.records if record.index // 4 == label]
        regions, assigned, visible, images = [], [], [], []
        for record in own:
            index = list(train.names).index(record.image or "")
            sample = fit(train[index], 64)
            maps = loaded.model.activation_maps(sample.image.as_subclass(Tensor)[None], torch.tensor([record.index]))
            parts, seen = exact_parts(sample)
            region = F.activation_regions(maps, 64)[0]
            assigned.append(F.assign(F.overlap(region, parts), 0.2, seen)[0])
            regions.append(region[0])
            visible.append(seen)
            images.append(index)
            grid = grid_masks(sample.mask.as_subclass(Tensor)[None], maps.shape[-2:])  # type: ignore[union-attr]
            biases.append(F.background_bias(maps, grid).item())
        anywhere = torch.stack(visible).any(0)
        coverages.append(F.coverage(torch.stack(assigned), anywhere).item())
        diversities.append(
            F.diversity(torch.stack(regions), torch.stack(assigned), anywhere, images=torch.tensor(images)).item()
        )
    assert result["coverage"] == pytest.approx(sum(coverages) / 3, abs=1e-5)
    assert result["diversity"] == pytest.approx(sum(diversities) / 3, abs=1e-5)
    assert result["background_bias"] == pytest.approx(sum(biases) / len(biases), abs=1e-5)


def test_images_and_cached_features_give_the_same_numbers(run: Path, evaluated: tuple[Path, Evaluation]):
    config = Run.open(run).config({"cache.features": False, "cache.pixels": False})
    result = evaluate(run, config=config, quiet=True)
    for name, number in evaluated[1].numbers.items():
        assert result[name] == pytest.approx(number.value, abs=1e-5), name


def test_metrics_json_says_what_was_measured_how(evaluated: tuple[Path, Evaluation]):
    folder, result = evaluated
    written = json.loads(Run(folder).evaluation_file.read_text())
    assert set(written["numbers"]) == set(result.numbers)
    assert set(written["numbers"]) >= {*LOOKS, "accuracy", "balanced_accuracy", "ece", "cross_entropy", "consistency"}
    for name, number in written["numbers"].items():
        if name.endswith("_null"):  # a mean over random draws
            assert number["low"] is number["high"] is None
        elif name not in ("sparsity", "class_size"):  # which no image decides
            assert number["low"] - 1e-12 <= number["value"] <= number["high"] + 1e-12, name
    protocol = written["protocol"]
    expected = {
        "percentile": 95.0,
        "tau": 0.2,
        "part_mode": "exact",
        "radius": None,
        "scope": "image",
        "data": "toybirds",
        "split": "test",
        "images": 18,
        "image_size": 64,
    }
    assert expected.items() <= protocol.items()
    assert protocol["versions"]["dapl"]
    assert protocol["checkpoint"] == "checkpoints/best.safetensors"
    assert written["prototypes"]["prototypes"] == 12
    assert written["missing"] == {}


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_tables_by_class_add_up_to_the_numbers(evaluated: tuple[Path, Evaluation]):
    folder, result = evaluated
    rows = read_csv(Run(folder).evaluation_folder / "per_class.csv")
    assert [row["class"] for row in rows] == load_run(folder).classes
    weights = [int(row["images"]) for row in rows]
    assert sum(weights) == result.protocol["images"]
    for name in ("accuracy", "cross_entropy", *LOOKS):
        mean = sum(w * float(row[name]) for w, row in zip(weights, rows, strict=True)) / sum(weights)
        assert mean == pytest.approx(result[name], abs=1e-5), name


def test_tables_by_part_add_up_to_the_pooled_recall(run: Path):
    result = evaluate(run, EvaluationProtocol(scope="dataset"), metrics="coverage,diversity", quiet=True)
    rows = read_csv(Run(run).evaluation_folder / "per_part.csv")
    assert [row["part"] for row in rows] == list(build_splits(load_run(run).config.data).test.parts)
    seen = [int(row["rows"]) for row in rows]
    recall = sum(n * float(row["recall"]) for n, row in zip(seen, rows, strict=True)) / sum(seen)
    assert recall == pytest.approx(result["recall"], abs=1e-5)
    shared = [float(row["redundancy"]) for row in rows if row["redundancy"]]
    assert sum(shared) / len(shared) == pytest.approx(result["redundancy"], abs=1e-5)


def test_curve_against_tau_falls_and_passes_through_the_number(evaluated: tuple[Path, Evaluation]):
    curves = evaluated[1].curves
    assert curves["coverage"][curves["tau"].index(0.2)] == pytest.approx(evaluated[1]["coverage"])
    assert all(a >= b - 1e-12 for name in ("precision", "recall") for a, b in zip(curves[name], curves[name][1:]))  # noqa: B905


def test_plots_are_images_with_something_on_them(evaluated: tuple[Path, Evaluation]):
    folder = Run(evaluated[0]).evaluation_folder
    names = {"parts_heads.png", "coverage_tau.png", "redundancy.png", "background_bias.png"}
    assert {path.name for path in folder.glob("*.png")} == names
    for name in names:
        with Image.open(folder / name) as image:
            assert min(image.size) > 300
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20


class Bare:
    """A data set without its part annotations or masks."""

    def __init__(self, dataset: Dataset, parts: bool, masks: bool) -> None:
        self.dataset = dataset
        self.classes, self.labels, self.names = dataset.classes, dataset.labels, dataset.names
        self.with_parts, self.has_masks = parts, masks
        self.parts = dataset.parts if parts else []
        self.fingerprint = f"{dataset.fingerprint}-bare-{parts}-{masks}"

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[index]
        if not self.with_parts:
            sample = replace(sample, keypoints=None, visible=None, part_masks=None, box=None)
        return sample if self.has_masks else replace(sample, mask=None)


def without(monkeypatch: pytest.MonkeyPatch, parts: bool, masks: bool) -> None:
    def build(config):
        splits = build_splits(config)
        return replace(splits, test=Bare(splits.test, parts, masks))

    monkeypatch.setattr("dapl.batches.run_data.build_splits", build)


def test_data_without_parts_or_masks_gives_what_it_can_and_says_why(
    run: Path, monkeypatch: pytest.MonkeyPatch, evaluated: tuple[Path, Evaluation]
):
    without(monkeypatch, parts=False, masks=False)
    result = evaluate(run, quiet=True)
    read_off = {"sparsity", "class_size", "explanation_size"}
    read_off |= {"distinctiveness", "islands"}  # of the maps alone
    assert set(result.numbers) == {"accuracy", "balanced_accuracy", "ece", "cross_entropy"} | read_off
    assert result["accuracy"] == evaluated[1]["accuracy"]
    assert max(map(len, table(result).splitlines())) <= 80
    text = " ".join(table(result).split())
    assert "not measured: coverage, diversity, " in text
    assert "part identity, consistency: the data has no part annotations" in text
    assert "not measured: background bias, region background share, object overlap, oirr, comprehensiveness: " in text
    assert not (Run(run).evaluation_folder / "per_part.csv").exists()
    assert (Run(run).evaluation_folder / "redundancy.png").exists()  # heads may overlap whatever the parts are


def test_parts_without_masks_still_have_coverage(
    run: Path, monkeypatch: pytest.MonkeyPatch, evaluated: tuple[Path, Evaluation]
):
    without(monkeypatch, parts=True, masks=False)
    result = evaluate(run, quiet=True)
    assert result["coverage"] == pytest.approx(evaluated[1]["coverage"])
    on_object = {"background_bias", "region_background_share", "object_overlap", "oirr", "comprehensiveness"}
    assert set(result.missing) == on_object
    with pytest.raises(DaplError, match="part_mode: voronoi needs foreground masks"):
        evaluate(run, EvaluationProtocol(part_mode="voronoi"), quiet=True)


def test_less_never_replaces_more(run: Path):
    full = evaluate(run, quiet=True, chance=False)
    file, folder = Run(run).evaluation_file, Run(run).evaluation_folder
    tables = {path.name: path.read_bytes() for path in folder.iterdir()}
    evaluate(run, metrics="accuracy", quiet=True)
    written = json.loads(file.read_text())
    assert set(written["numbers"]) == set(full.numbers), "a part of the metrics is added, and takes nothing away"
    assert written["others"] == []
    assert {path.name for path in folder.iterdir()} == set(tables)
    header = (folder / "per_class.csv").read_text().splitlines()[0].split(",")
    assert set(header) == set(tables["per_class.csv"].decode().splitlines()[0].split(","))
    evaluate(run, EvaluationProtocol(tau=0.5), metrics="coverage", quiet=True, chance=False)
    evaluate(run, split="validation", quiet=True, chance=False)
    again = json.loads(file.read_text())
    assert again["numbers"] == written["numbers"]
    assert again["protocol"]["tau"] == 0.2
    assert [(one["protocol"]["split"], one["protocol"]["tau"]) for one in again["others"]] == [
        ("test", 0.5),
        ("validation", 0.2),
    ]
    assert "coverage" in again["others"][0]["numbers"]
    assert (folder / "test-tau-0.5" / "per_class.csv").is_file()
    assert (folder / "validation" / "per_class.csv").is_file()
    assert (folder / "parts_heads.png").read_bytes() == tables["parts_heads.png"]


def test_numbers_of_another_model_are_forgotten(run: Path):
    evaluate(run, quiet=True, chance=False)
    shutil.copy(Run(run).last, Run(run).best)
    evaluate(run, metrics="accuracy", quiet=True)
    assert set(json.loads(Run(run).evaluation_file.read_text())["numbers"]) == {"accuracy"}
    evaluate(run, quiet=True, chance=False)
    assert "coverage" in json.loads(Run(run).evaluation_file.read_text())["numbers"]


def test_where_prototypes_look_is_written_down(run: Path):
    result = evaluate(run, quiet=True, chance=False)
    looks = Run(run).looks()
    kept = [look for look in looks if look.on_object is not None]
    assert 1 - sum(look.on_object or 0 for look in kept) / len(kept) == pytest.approx(
        result["region_background_share"], abs=0.02
    )
    assert any(look.parts for look in looks)
    assert all(0 < share <= 1 for look in looks for share in look.parts.values())


def test_pruned_prototypes_do_not_count(run: Path, monkeypatch: pytest.MonkeyPatch):
    whole = evaluate(run, metrics="coverage,background_bias", quiet=True)

    def pruned(*arguments, **options):
        loaded = load_run(*arguments, **options)
        loaded.model.prototypes.kept[1::2] = False
        return loaded

    monkeypatch.setattr("dapl.evaluation.evaluator.load_run", pruned)
    half = evaluate(run, metrics="coverage,background_bias", quiet=True)
    assert half["recall"] <= whole["recall"]
    assert half["background_bias"] != whole["background_bias"]
    assert not math.isnan(half["coverage"])


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(run: Path, evaluated: tuple[Path, Evaluation]):
    config: Config = Run.open(run).config({"runtime.devices": 2})
    one = evaluate(run, metrics="all", quiet=True)
    two = evaluate(run, config=config, metrics="all", quiet=True)
    assert two.numbers.keys() == one.numbers.keys() > evaluated[1].numbers.keys()
    for name, number in one.numbers.items():
        expected = pytest.approx((number.value, number.low, number.high), abs=1e-5, nan_ok=True)
        assert (two.numbers[name].value, two.numbers[name].low, two.numbers[name].high) == expected, name
    assert two.curves["recall"] == pytest.approx(one.curves["recall"], abs=1e-6)
