"""Interventions on the images of a data set, for any model, or for a finished run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapl.batches.pixels import base_rows
from dapl.batches.run_data import Split
from dapl.common.errors import DaplError
from dapl.common.files import check_writable
from dapl.common.progress import Reporter
from dapl.common.seeds import generator
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.sample import Dataset
from dapl.data.toybirds import ToyBirds
from dapl.evaluation.interventions.protocols import (
    AT_THRESHOLDS,
    BACKGROUNDS,
    IRRELEVANT,
    OF_THE_MODEL,
    THRESHOLDS,
    WHOLE,
    ImageScores,
    Protocols,
    summarise_scores,
)
from dapl.evaluation.interventions.result import Interventions, write_figures
from dapl.evaluation.interventions.subjects import Attribution, ExplainedModel, Oracle, Subject, attribution_of
from dapl.evaluation.protocol import SPLITS, one_of
from dapl.evaluation.statistics import mean, with_intervals
from dapl.processes.launch import make_processes
from dapl.runs.loading import load_run
from dapl.runs.run import Run, versions

IMAGES = 60
"""Taken of the split, unless more are asked for: each of them is drawn in about sixty variants."""


def interventions(
    model: Callable[[Tensor], Tensor],
    dataset: Dataset,
    attributions: Mapping[str, Attribution],
    *,
    images: int | None = IMAGES,
    thresholds: Sequence[float] = THRESHOLDS,
    resamples: int = 1000,
    seed: int = 0,
    batch: int = 64,
    device: str | torch.device = "cpu",
    quiet: bool = False,
) -> Interventions:
    """Measure explanations of any PyTorch model on drawn birds (docs/interventions.md).

    >>> import torch
    >>> birds = ToyBirds(classes=3, images_per_class=2, size=48, split="test")
    >>> def redness(images):                              # a model: uint8 B×3×S×S → B×C
    ...     red, green, blue = images.double().mean((2, 3)).unbind(1)
    ...     return torch.stack([red - blue, green - red, blue - green], dim=1)
    >>> def everywhere(images, classes):                  # its explanation: B×S×S
    ...     return torch.ones(len(images), *images.shape[-2:])
    >>> found = interventions(redness, birds, {"everywhere": everywhere}, images=2, quiet=True)
    >>> list(found.explanations)
    ['everywhere', 'drops', 'shuffled', 'even', 'oracle']

    Args:
        model: from images, uint8 B×3×S×S, to logits B×C, its classes in the order of the data's.
        dataset: `ToyBirds`, or a subset of one.
        attributions: explanations by name: (images, classes long B) → relevance B×S×S for these classes.
        images: how many of the images, drawn at random; None takes all.
        thresholds: shares from which on a piece counts as important; the best is taken for each explanation.
        resamples: of the bootstrap over images.
        seed: of the images chosen, of what is shuffled and of the resamples.
        batch: images per pass.
        device: of the model.
        quiet: print no progress.
    """
    if not attributions:
        raise DaplError("attributions: none is given; interventions measure one explanation or more.")
    birds, rows = drawn_birds(dataset)
    chosen = chosen_rows(rows, images, seed)
    subject = ExplainedModel(model, attributions, device, batch)
    asked = _measured(birds, subject, chosen, thresholds, resamples, seed, Reporter(quiet))
    right = _measured(birds, Oracle(birds, seed), chosen, thresholds, resamples, seed, Reporter(quiet=True))
    protocol = {
        "data": birds.fingerprint,
        "split": birds.split,
        "images": len(chosen),
        "thresholds": list(thresholds),
        "irrelevant": IRRELEVANT,
        "backgrounds": BACKGROUNDS,
        "resamples": resamples,
        "seed": seed,
        "versions": versions(),
    }
    explanations = {**asked.explanations, "oracle": right.explanations["oracle"]}
    best = {**asked.thresholds, "oracle": right.thresholds["oracle"]}
    return Interventions(protocol, explanations, asked.model, asked.counts, best)


def drawn_birds(dataset: Dataset) -> tuple[ToyBirds, list[int]]:
    """The toy birds behind any subset, and the rows of them that it shows; other data is refused."""
    birds, rows = base_rows(dataset)
    if not isinstance(birds, ToyBirds):
        raise DaplError(
            "interventions need drawn birds (data.name: toybirds): of no other data can a part be taken away with "
            "everything else left as it is."
        )
    return birds, list(rows)


def chosen_rows(rows: Sequence[int], images: int | None, seed: int) -> list[int]:
    """Some of them at random, in their order."""
    if images is None or images >= len(rows):
        return list(rows)
    if images < 2:
        raise DaplError(f"images: is {images}; give at least 2, or there is nothing to take an interval of.")
    order = torch.randperm(len(rows), generator=generator(seed, "interventions"))[:images]
    return [rows[place] for place in sorted(order.tolist())]


def _measured(
    birds: ToyBirds,
    subject: Subject,
    rows: Sequence[int],
    thresholds: Sequence[float],
    resamples: int,
    seed: int,
    reporter: Reporter,
) -> Interventions:
    protocols = Protocols(birds, subject, thresholds, seed)
    scores: list[ImageScores] = []
    with reporter.track("interventions", len(rows)) as advance:
        for row in rows:
            scores.append(protocols.of_image(row))
            advance(1)
    found, best = {}, {}
    for name in protocols.names:
        at_thresholds = torch.stack([score.at_thresholds[name] for score in scores])
        whole = torch.stack([score.whole[name] for score in scores])
        found[name], place = summarise_scores(at_thresholds, whole, resamples, seed)
        best[name] = thresholds[place]
    of_model = torch.stack([score.of_model for score in scores])
    numbers = with_intervals([mean(**dict(zip(OF_THE_MODEL, of_model.unbind(1), strict=True)))], resamples, seed)
    first = protocols.names[0]
    applies = torch.stack([torch.cat([s.at_thresholds[first][:, 0], s.whole[first]]) for s in scores]).isfinite().sum(0)
    counts = dict(zip((*AT_THRESHOLDS, *WHOLE), applies.tolist(), strict=True))
    return Interventions({"images": len(rows)}, found, numbers, counts, best)


def run_interventions(
    folder: Run | Path | str,
    attributions: Sequence[str] | None = None,
    *,
    images: int | None = IMAGES,
    split: Split = "test",
    config: Config | None = None,
    seed: int = 0,
    quiet: bool = False,
    files: bool = True,
) -> Interventions:
    """Measure how a finished run explains itself; with ``files``, interventions.json and drawings go into its folder.

    >>> run_interventions("runs/birds", ["own", "gradcam"], images=30)       # doctest: +SKIP

    Args:
        folder: the run.
        attributions: names of `attributions.ATTRIBUTIONS`; by default ``own``, and ``gradcam`` for the black box.
        images: how many images of the split; None takes all.
        split: test, validation or train.
        config: replaces the run's own where only data or runtime differ.
        seed: of the images chosen and of the resamples.
        quiet: print no progress.
        files: write them.
    """
    one_of("split", split, SPLITS)
    run = Run.open(folder)
    if files:
        check_writable(run.folder)
    config = config or run.config()
    if config.data.name != "toybirds":
        raise DaplError(
            f"{run.folder}: was trained on {config.data.name}; interventions need drawn birds (data.name: toybirds), "
            "of which a part can be taken away with everything else left as it is."
        )
    loaded = load_run(run, config=config)
    device = make_processes(config).device
    model = loaded.model.to(device)
    names = list(attributions or (["own"] if len(model.prototypes) else ["gradcam"]))
    explanations = {name: attribution_of(name, model) for name in names}
    dataset: Any = getattr(build_splits(config.data), split)
    found = interventions(
        lambda images: model(images).logits,
        dataset,
        explanations,
        images=images,
        seed=seed,
        batch=config.runtime.evaluation_batch,
        device=device,
        quiet=quiet,
    )
    facts = {"run": run.folder.name, "system": config.model.system, "split": split, "attributions": names}
    found = replace(found, protocol=found.protocol | facts)
    if files:
        found.save(run.interventions_file)
        birds, rows = drawn_birds(dataset)
        subject = ExplainedModel(lambda images: model(images).logits, explanations, device)
        write_figures(run.interventions_folder, found, birds, chosen_rows(rows, images, seed), subject)
    return found
