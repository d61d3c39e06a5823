"""Every system is measured as it shows itself: none without prototypes, shared ones, maps by receptive field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dapl.batches.sources import grid_masks
from dapl.cli import main
from dapl.config import dump_config, parse_config
from dapl.data.build import build_splits
from dapl.data.transforms import fit
from dapl.evaluation import Evaluation, EvaluationProtocol, evaluate, table
from dapl.metrics import functional as F
from dapl.metrics.registry import NAMES
from dapl.runs.loading import LoadedRun, load_run
from dapl.runs.run import Run
from dapl.training.trainer import train

from .conftest import SIZE, tiny_config
from .test_evaluate import LOOKS, exact_parts

BACKBONE = {"name": "mobilenetv2_100", "weights": "random", "stages": [-4]}
"""A stage whose cells see less than the image."""
ANSWERS = {"accuracy", "balanced_accuracy", "ece", "cross_entropy"}


def trained(folder: Path, model: dict[str, Any], schedule: list[dict[str, Any]], **fields: Any) -> Path:
    """The tiny run of these tests with another model and schedule."""
    values = tiny_config(folder.parent / "cache").model_dump(mode="json") | fields
    config = parse_config(values | {"model": {"backbone": BACKBONE} | model, "schedule": schedule})
    return train(config, folder, quiet=True).folder


@torch.no_grad()
def slowly(loaded: LoadedRun, bicubic: bool) -> dict[str, float]:
    """One image at a time; the prototypes of its class are picked by hand, and so are their maps on pixels."""
    model, rows = loaded.model, []
    test = build_splits(loaded.config.data).test
    membership, kept = model.prototypes.membership.tolist(), model.prototypes.kept.tolist()
    for index in range(len(test)):
        sample = fit(test[index], SIZE)
        output = model(sample.image.as_subclass(Tensor).unsqueeze(0))
        own = [j for j in range(len(kept)) if kept[j] and membership[j][sample.label]]
        maps = model.maps(output.embedding)[0, own]
        if bicubic:
            pixels = torch.nn.functional.interpolate(maps[None], (SIZE, SIZE), mode="bicubic", align_corners=False)[0]
        else:
            pixels = model.to_pixels(maps, (SIZE, SIZE))
        regions = F.activation_regions(pixels, None)
        parts, visible = exact_parts(sample)
        mask = sample.mask.as_subclass(Tensor)  # type: ignore[union-attr]
        assigned = F.assign(F.overlap(regions, parts), 0.2, visible)
        row = {name: getattr(F, name)(assigned, visible) for name in ("coverage", "precision", "recall", "imbalance")}
        row |= {name: getattr(F, name)(regions, assigned, visible) for name in ("diversity", "redundancy")}
        row["background_bias"] = F.background_bias(maps, grid_masks(mask[None], maps.shape[-2:])[0]).nanmean()
        row["region_background_share"] = F.region_background_share(regions, mask.bool()).nanmean()
        row["accuracy"] = (output.logits.argmax() == sample.label).float()
        rows.append(row)
    return {name: torch.stack([row[name] for row in rows]).double().nanmean().item() for name in rows[0]}


def check(result: Evaluation, expected: dict[str, float]) -> None:
    for name in ("accuracy", *LOOKS):
        assert result[name] == pytest.approx(expected[name], abs=2e-5), name
    assert result["coverage"] > 0  # or the test says nothing


# --- the black box ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blackbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stages = [{"stage": "last_layer", "epochs": 3, "learning_rate": 0.1}]
    return trained(tmp_path_factory.mktemp("blackbox") / "run", {"system": "blackbox"}, stages)


@torch.no_grad()
def test_a_black_box_has_answers_and_nothing_else(blackbox: Path) -> None:
    result = evaluate(blackbox, metrics="all", quiet=True)
    assert set(result.numbers) == ANSWERS
    loaded = load_run(blackbox)
    test = build_splits(loaded.config.data).test
    right = []
    for index in range(len(test)):
        sample = fit(test[index], SIZE)
        right.append(loaded.model(sample.image.as_subclass(Tensor).unsqueeze(0)).logits.argmax().item() == sample.label)
    assert result["accuracy"] == pytest.approx(sum(right) / len(right))
    assert result.missing == dict.fromkeys(
        (name for name in NAMES if name not in ANSWERS), "the model has no prototypes"
    )
    assert json.loads(Run(blackbox).evaluation_file.read_text())["missing"] == result.missing
    said = " ".join(table(result).split())
    assert "the model has no prototypes" in said
    assert "not measured: coverage, diversity, " in said
    assert {path.name for path in Run(blackbox).evaluation_folder.iterdir()} == {"per_class.csv"}


@pytest.mark.parametrize("scope", ["dataset", "projection"])
def test_no_scope_finds_prototypes_in_a_black_box(scope: str, blackbox: Path) -> None:
    result = evaluate(blackbox, EvaluationProtocol(scope=scope), quiet=True)
    assert set(result.numbers) == ANSWERS
    assert "coverage" in result.missing


# --- ProtoPShare ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ProtoPShare with prototypes of several classes, and of several numbers per class."""
    folder = tmp_path_factory.mktemp("protopshare")
    model = {"prototypes_per_class": 4, "width": 8}
    stages = [{"stage": "warm_up", "epochs": 1, "batch_size": 16}, {"stage": "project"}]
    start = trained(folder / "protopnet", model | {"system": "protopnet"}, stages)
    merging = [{"stage": "merge", "steps": 2, "epochs": 2, "share": 0.2}]
    return trained(folder / "run", model | {"system": "protopshare"}, merging, start=str(start))


def test_shared_prototypes_are_measured_right(shared: Path) -> None:
    result, loaded = evaluate(shared, quiet=True), load_run(shared)
    prototypes = loaded.model.prototypes
    owners = prototypes.membership[prototypes.kept].sum(1)
    assert owners.max() > 1, "choose another share for this test"
    assert prototypes.kept.sum() < len(prototypes)
    check(result, slowly(loaded, bicubic=True))
    assert result.prototypes["prototypes"] == 12
    assert result.prototypes["prototypes_kept"] == int(prototypes.kept.sum())


@torch.no_grad()
def test_a_class_explains_itself_by_all_that_it_has_a_part_in(shared: Path) -> None:
    """Numbers that are read off the model: weights that are not 0, shared ones counted for each class."""
    loaded = load_run(shared)
    weights, kept = loaded.model.class_weights(), loaded.model.prototypes.kept
    result = evaluate(shared, metrics="sparsity", quiet=True)
    sizes = [sum(weights[j, c].item() != 0 for j in range(len(kept)) if kept[j]) for c in range(len(loaded.classes))]
    assert result["class_size"] == pytest.approx(sum(sizes) / len(sizes))


def test_each_shared_prototype_on_its_source(shared: Path) -> None:
    """An image stands for a class once for each of its prototypes, whoever else has them."""
    result = evaluate(shared, EvaluationProtocol(scope="projection"), metrics="background_bias", quiet=True)
    loaded = load_run(shared)
    training, model = build_splits(loaded.config.data).train, loaded.model
    biases = []
    for label in range(len(loaded.classes)):
        own = []
        for record in loaded.records:
            if record.kept and model.prototypes.membership[record.index, label]:
                sample = fit(training[list(training.names).index(record.image or "")], SIZE)
                with torch.no_grad():
                    image = sample.image.as_subclass(Tensor)[None]
                    maps = model.activation_maps(image, torch.tensor([record.index]))
                grid = grid_masks(sample.mask.as_subclass(Tensor)[None], maps.shape[-2:])  # type: ignore[union-attr]
                own.append(F.background_bias(maps, grid).item())
        biases.append(sum(own) / len(own))
    assert result["background_bias"] == pytest.approx(sum(biases) / len(biases), abs=1e-5)


# --- PixPNet ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pixpnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stages = [{"stage": "warm_up", "epochs": 1, "batch_size": 16}, {"stage": "project"}]
    model = {"system": "pixpnet", "prototypes_per_class": 3, "width": 8}
    return trained(tmp_path_factory.mktemp("pixpnet") / "run", model, stages)


def test_regions_of_pixpnet_are_its_own(pixpnet: Path) -> None:
    result, loaded = evaluate(pixpnet, quiet=True), load_run(pixpnet)
    check(result, slowly(loaded, bicubic=False))
    assert result["coverage"] != pytest.approx(slowly(loaded, bicubic=True)["coverage"], abs=1e-3)


def test_the_run_says_how_much_a_cell_sees(pixpnet: Path) -> None:
    model = load_run(pixpnet).model
    said = json.loads(Run(pixpnet).model_file.read_text())
    assert said["system"] == "pixpnet"
    assert said["receptive_field"] == model.facts(SIZE)["receptive_field"]
    assert max(said["receptive_field"]) < SIZE
    assert said["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_boxes_of_pixpnet_s_prototypes_lie_in_what_their_cells_see(pixpnet: Path) -> None:
    """The patch that a prototype became is where its region has its highest point, so box and field meet."""
    loaded = load_run(pixpnet)
    fields = loaded.model.receptive_fields((SIZE, SIZE))  # type: ignore[operator]
    for record in loaded.records:
        assert record.location is not None
        assert record.box is not None
        (top, bottom), (left, right) = fields.rows[record.location[0]], fields.columns[record.location[1]]
        box_left, box_top, box_right, box_bottom = record.box
        middle = (left + right) / 2, (top + bottom) / 2
        assert box_left <= middle[0] <= box_right
        assert box_top <= middle[1] <= box_bottom


# --- by the command ---------------------------------------------------------------------------------------------


def test_training_prints_the_field_and_draws_the_prototypes(
    pixpnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "run"
    assert main(["train", str(Run(pixpnet).config_file), "--out", str(out)]) == 0
    height, width = json.loads(Run(out).model_file.read_text())["receptive_field"]
    assert f"receptive field: {height} × {width} pixels" in capsys.readouterr().err
    assert Run(out).sheet_file.exists()


def test_training_a_black_box_draws_none(blackbox: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, out = tmp_path / "blackbox.yaml", tmp_path / "run"
    path.write_text(dump_config(Run(blackbox).config()))
    assert main(["train", str(path), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "the model has no prototypes" in " ".join(said.out.split())
    assert not Run(out).sheet_file.exists()
    assert Run(out).read_prototypes() == []
