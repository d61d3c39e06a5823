"""The companions of an evaluation are those of the torchmetrics classes, fed by hand as docs/companions.md does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dapl import metrics as M
from dapl.batches.sources import grid_masks
from dapl.common.errors import DaplError
from dapl.common.seeds import generator
from dapl.config import parse_config
from dapl.data.build import build_splits
from dapl.data.sample import Dataset
from dapl.data.transforms import fit
from dapl.evaluation import EvaluationProtocol, evaluate, table
from dapl.evaluation.ground_truth import control_of
from dapl.evaluation.statistics import ClassStatistic
from dapl.metrics import functional as C
from dapl.metrics import functional as F
from dapl.runs.loading import load_run
from dapl.training.trainer import train

from .conftest import SIZE, tiny_config

HALF, PATCH, BLUR = round(36 * SIZE / 224), round(32 * SIZE / 224), round(10 * SIZE / 224)


def stacked(dataset: Dataset) -> tuple[Tensor, ...]:
    samples = [fit(dataset[index], SIZE) for index in range(len(dataset))]
    columns = [[getattr(sample, name) for sample in samples] for name in ("image", "keypoints", "visible", "mask")]
    images, keypoints, visible, masks = (torch.stack([v.as_subclass(Tensor) for v in column]) for column in columns)
    return images, torch.tensor(list(dataset.labels)), keypoints, visible, masks


@torch.no_grad()
def by_hand(folder: Path) -> dict[str, float]:
    loaded = load_run(folder)
    model, test = loaded.model, build_splits(loaded.config.data).test
    images, labels, keypoints, annotated, masks = stacked(test)
    output = model(images)
    named, _ = model.prototypes_of(labels)
    maps = model.maps(output.embedding, named)
    visible = C.visible_keypoints(keypoints, annotated, SIZE)
    found = C.corresponding_parts(maps, keypoints, visible, SIZE, HALF)
    consistency = M.Consistency(len(model.prototypes), len(test.parts))
    consistency.update(found, visible, named)
    noisy = C.perturb(images, (0.229, 0.224, 0.225), [generator(0, "noise", n) for n in range(len(test))])
    again = C.corresponding_parts(model.activation_maps(noisy, named), keypoints, visible, SIZE, HALF)
    stability = M.Stability(len(model.prototypes))
    stability.update(found, again, named, visible)
    oirr, overlap, size = M.OutsideInsideRelevanceRatio(), M.ObjectOverlap(), M.ExplanationSize()
    regions = F.activation_regions(maps, SIZE)
    oirr.update(maps, grid_masks(masks, maps.shape[-2:]))
    overlap.update(regions, masks.bool())
    size.update(output.scores * model.class_weights()[:, output.logits.argmax(1)].T)
    lost, matched = losses(model, images, labels, output.scores, named, regions, masks.bool())
    return {
        "consistency": consistency.compute().item(),
        "stability": stability.compute().item(),
        "oirr": oirr.compute().item(),
        "object_overlap": overlap.compute().item(),
        "explanation_size": size.compute().item(),
        "faithfulness": lost.difference.item(),
        "similarity_lost_region": lost.region.item(),
        "similarity_lost_random": lost.random.item(),
        "faithfulness_wins": lost.wins.item(),
        "own_share": lost.own_share.item(),
        "control_matched": matched.float().mean().item(),
    }


def losses(
    model, images, labels, scores, named, regions, masks, control: C.Control = "object"
) -> tuple[C.SimilarityLoss, Tensor]:
    own = scores.gather(1, named) * model.class_weights()[named, labels[:, None]]
    rows, mine = torch.arange(len(images)), own.argmax(1)
    region, prototype = regions[rows, mine], named[rows, mine]
    other, matched = C.control_regions(control, region, masks, [generator(0, "region", n) for n in rows.tolist()])
    hidden = (region, other, ~region, torch.ones_like(region))
    own, random, alone, nothing = (model(C.blur_out(images, r, BLUR)).scores[rows, prototype] for r in hidden)
    return C.faithfulness(scores[rows, prototype], own, random, None, alone, nothing), matched


@torch.no_grad()
def purity_by_hand(folder: Path) -> float:
    loaded = load_run(folder)
    model, train = loaded.model, build_splits(loaded.config.data).train
    images, _, keypoints, annotated, _ = stacked(train)
    output = model(images)
    names, groups = C.merge_left_right(list(train.parts))
    visible = C.visible_keypoints(keypoints, annotated, SIZE)
    boxes = C.patches(output.locations, output.embedding.grid, SIZE, PATCH)
    present = C.merge_parts(C.parts_in_patches(boxes, keypoints, visible), groups)
    purity = M.Purity(len(model.prototypes), len(names))
    relevant = (model.class_weights() > 1e-5).any(1)
    purity.update(output.scores, present, C.merge_parts(visible, groups), torch.arange(len(train)), relevant)
    return purity.compute().item()


def test_companions_are_those_of_the_classes(run: Path):
    result = evaluate(run, metrics="all", quiet=True)
    for name, value in by_hand(run).items():
        assert result[name] == pytest.approx(value, abs=1e-4), name
    assert result["purity"] == pytest.approx(purity_by_hand(run), abs=1e-5)
    assert result["sparsity"] <= 1
    assert result["class_size"] == 4
    text = table(result)
    assert "stability took one pass over the images, with noise" in text
    assert "purity took one pass over the training images" in text


def test_the_noise_of_stability_does_not_depend_on_what_a_backbone_normalises_by(tmp_path: Path):
    values = tiny_config(tmp_path / "cache").model_dump(mode="json")
    values["model"]["backbone"]["name"] = "test_convnext"
    run = train(parse_config(values), tmp_path / "run", quiet=True).folder
    assert load_run(run).model.backbone.std.eq(0.5).all()
    stability = evaluate(run, metrics="stability", quiet=True)["stability"]
    assert stability == pytest.approx(by_hand(run)["stability"], abs=1e-6)  # the mean of some shares in float32
    assert stability < 1


def test_companions_with_passes_of_their_own_run_only_when_asked_for(evaluated):
    assert not {"stability", "purity", "faithfulness"} & evaluated[1].numbers.keys()
    assert {"consistency", "oirr", "object_overlap", "sparsity"} <= evaluated[1].numbers.keys()


def test_a_companion_alone(run: Path):
    result = evaluate(run, metrics="faithfulness", quiet=True)
    assert set(result.numbers) == {
        "faithfulness",
        "similarity_lost_region",
        "similarity_lost_random",
        "faithfulness_wins",
        "own_share",
        "control_matched",
    }
    assert result.protocol["control"] == "object"  # drawn birds have masks
    assert result.protocol["field_share"] == 1  # attention
    text = table(result)
    assert "faithfulness against the control object: the same shape elsewhere" in text
    assert "a cell of this model sees the whole image" in text
    assert "faithfulness took four passes over the images" in text


@pytest.mark.parametrize("control", ["blob", "anywhere"])
@torch.no_grad()
def test_other_controls_by_their_names(run: Path, control: C.Control):
    result = evaluate(run, EvaluationProtocol(control=control), metrics="faithfulness", quiet=True)
    loaded = load_run(run)
    images, labels, _, _, masks = stacked(build_splits(loaded.config.data).test)
    output = loaded.model(images)
    named, _ = loaded.model.prototypes_of(labels)
    regions = F.activation_regions(loaded.model.maps(output.embedding, named), SIZE)
    lost, _ = losses(loaded.model, images, labels, output.scores, named, regions, masks.bool(), control)
    assert result["faithfulness"] == pytest.approx(lost.difference.item(), abs=1e-4)
    assert result.protocol["control"] == control
    assert f"faithfulness against the control {control}: " in table(result)
    saved = json.loads((run / "metrics.json").read_text())
    assert saved["protocol"]["control"] == control


def test_data_without_masks_has_no_object_to_match():
    assert control_of(EvaluationProtocol(), masks=False) == "anywhere"
    assert control_of(EvaluationProtocol(), masks=True) == "object"
    with pytest.raises(DaplError, match="control: blob needs foreground masks"):
        control_of(EvaluationProtocol(control="blob"), masks=False)


def test_a_class_statistic_weighs_the_rows_of_its_class_only():
    """Two classes of one prototype each: the share of hits among the (weighted) rows of its class, then the mean."""
    hits, labels = torch.tensor([[1], [0], [1]], dtype=torch.uint8), torch.tensor([0, 0, 1])
    columns = torch.cat((hits, torch.ones_like(hits)), dim=1)
    statistic = ClassStatistic("s", columns, labels, 3, lambda sums, label: sums[..., :1] / sums[..., 1:])
    weights = torch.tensor([[1.0, 1.0, 1.0], [3.0, 1.0, 0.0]]).double()
    assert statistic.values(weights)["s"].tolist() == [
        0.75,
        0.75,
    ]  # (1/2 + 1)/2; 3/4 alone, the other class was not drawn
