"""A training step, projection, evaluation and the last layer, each beside the backbone pass that nobody can avoid.

The paper's head (200 classes × 10 heads, D1 = 16) on an EfficientNet-Lite0 at 224 px; random images and weights,
which cost what real ones cost.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.timing import Ratio, ratio
from dapl.batches.sources import Batch
from dapl.common.seeds import generator
from dapl.config import BackboneConfig, DaplModel, ForegroundConfig, LastLayerStage, LossConfig
from dapl.models.build import build_model
from dapl.processes.interface import SingleProcess
from dapl.training.projection import project
from dapl.training.stages import Objective, last_layer

CLASSES, BATCH, IMAGES, SIDE = 200, 32, 64, 224


def ratios(turns: int = 5) -> Iterator[Ratio]:
    model = build_model(DaplModel(backbone=BackboneConfig(weights="random")), CLASSES)
    images = torch.randint(0, 256, (IMAGES, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator("images"))
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator("labels"))
    masks = (torch.rand(IMAGES, SIDE, SIDE, generator=generator("masks")) > 0.5).to(torch.uint8)
    batches = [
        Batch(rows, labels[rows], images=images[rows], masks=masks[rows]) for rows in torch.arange(IMAGES).split(BATCH)
    ]
    yield from _steps(model, batches[0], turns)
    yield from _passes(model, batches, turns)
    yield _last_layer(model, batches, turns)


def _steps(model, batch: Batch, turns: int) -> Iterator[Ratio]:
    model.train()
    bare = torch.optim.Adam(model.backbone.parameters(), lr=1e-6)

    def backbone_step() -> None:
        bare.zero_grad()
        model.backbone(batch.images).mean().backward()
        bare.step()

    for name, weights in (
        ("training step, DAPL", LossConfig()),
        ("training step, DAPL + FG", LossConfig(foreground=ForegroundConfig(weight=10.0))),
    ):
        objective = Objective(model, weights)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)

        def step(objective: Objective = objective, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            objective(batch, objective.draw_negatives(generator("negatives")))["total"].backward()
            optimizer.step()

        yield ratio(name, "backbone step, same images", "≤ 1.10", step, backbone_step, turns)


def _passes(model, batches: list[Batch], turns: int) -> Iterator[Ratio]:
    model.eval()
    processes = SingleProcess()

    @torch.no_grad()
    def backbone_pass() -> None:
        for batch in batches:
            model.backbone(batch.images)

    @torch.no_grad()
    def evaluation() -> None:
        for batch in batches:
            model(batch.images)

    yield ratio(
        "projection", "backbone pass", "≤ 1.10", lambda: project(model, batches, 0.5, processes), backbone_pass, turns
    )
    yield ratio("evaluation (scores, logits)", "backbone pass", "≤ 1.10", evaluation, backbone_pass, turns)


def _last_layer(model, batches: list[Batch], turns: int) -> Ratio:
    """An epoch of the last layer on cached scores, as it is done, and over images, as it would be otherwise."""
    stage = LastLayerStage(epochs=1, batch_size=BATCH)
    labels = torch.cat([batch.labels for batch in batches])
    with torch.no_grad():
        scores = torch.cat([model(batch.images).scores for batch in batches])
    optimizer = torch.optim.Adam(model.classifier.parameters(), lr=stage.learning_rate)

    def over_images() -> None:
        model.requires_grad_(False)
        model.classifier.requires_grad_(True)
        for batch in batches:
            loss = torch.nn.functional.cross_entropy(model(batch.images).logits, batch.labels)
            optimizer.zero_grad()
            (loss + stage.l1 * model.classifier.weight.abs().sum()).backward()
            optimizer.step()

    def over_scores() -> None:
        last_layer(model, scores, labels, stage, ("benchmark",), lambda epoch, means: None)

    return ratio("last layer over images", "last layer on cached scores", "≥ 50", over_images, over_scores, turns)
