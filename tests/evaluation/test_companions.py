"""The companions of an evaluation are those of the torchmetrics classes, fed by hand as docs/companions.md does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dapl import metrics as M
from dapl.batches.sources import grid_masks
from dapl.common.seeds import generator
from dapl.data.build import build_splits
from dapl.data.sample import Dataset
from dapl.data.transforms import fit
from dapl.evaluation import evaluate, table
from dapl.evaluation.statistics import ClassStatistic
from dapl.metrics import functional as C
from dapl.metrics import functional as F
from dapl.runs.loading import load_run

SIZE = 64
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
    noisy = C.perturb(images, model.backbone.std.flatten(), [generator(0, "noise", n) for n in range(len(test))])
    again = C.corresponding_parts(model.activation_maps(noisy, named), keypoints, visible, SIZE, HALF)
    stability = M.Stability(len(model.prototypes))
    stability.update(found, again, named, visible)
    oirr, overlap, size = M.OutsideInsideRelevanceRatio(), M.ObjectOverlap(), M.ExplanationSize()
    regions = F.activation_regions(maps, SIZE)
    oirr.update(maps, grid_masks(masks, maps.shape[-2:]))
    overlap.update(regions, masks.bool())
    size.update(output.scores * model.class_weights()[:, output.logits.argmax(1)].T)
    lost = losses(model, images, labels, output.scores, named, regions)
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
    }


def losses(model, images, labels, scores, named, regions) -> C.SimilarityLoss:
    own = scores.gather(1, named) * model.class_weights()[named, labels[:, None]]
    rows, mine = torch.arange(len(images)), own.argmax(1)
    region, prototype = regions[rows, mine], named[rows, mine]
    moved = C.random_regions(region, [generator(0, "region", n) for n in rows.tolist()])
    after = [model(C.blur_out(images, r, BLUR)).scores[rows, prototype] for r in (region, moved)]
    return C.faithfulness(scores[rows, prototype], *after)


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
    }


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
