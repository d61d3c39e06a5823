"""From a config to a finished run: `train` starts the processes, and a `Trainer` in each runs the schedule.

Read this first. What a stage does to the model is in `stages`, `projection` and `pruning`; what is measured, logged and
saved along the way is in `state`, whose `RunState` a `Trainer` is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapl.batches.run_data import Split
from dapl.batches.sources import Batch, BatchSource
from dapl.common.errors import BrokenError, DaplError
from dapl.common.files import refusing, remove_if_empty
from dapl.common.progress import Reporter
from dapl.common.seeds import generator
from dapl.config import (
    Config,
    DiscriminateStage,
    GradientStage,
    JointStage,
    LastLayerStage,
    LocateStage,
    MergeStage,
    ProjectStage,
    PruneStage,
    PurePruneStage,
    WarmUpStage,
    WeighHeadsStage,
)
from dapl.data.build import InMemorySplits, hand_over
from dapl.data.sample import Splits
from dapl.metrics.functional.regions import shown_regions
from dapl.models.parts import Parts
from dapl.processes.interface import Processes, own_batches, sum_rows
from dapl.processes.launch import is_first_process, launch
from dapl.runs.checkpoint import Position, restore_optimizer
from dapl.runs.run import Run
from dapl.training.parts import (
    FOREGROUND_SAMPLE,
    FeatureForeground,
    LocateObjective,
    discriminate,
    feature_foreground,
    start_heads,
)
from dapl.training.projection import project, record_projection, set_to_class_means
from dapl.training.pruning import foreground_shares, merge, own_among_nearest, plan_merge, prune
from dapl.training.stages import FitEpoch, Objective, Terms, burst, last_layer, make_optimizer, not_finite, weigh_heads
from dapl.training.state import RunState, judge_images, judged


def train(config: Config, out: Path, resume: bool = False, quiet: bool = False, splits: Splits | None = None) -> Run:
    """Train a model by its schedule. With ``resume`` the run in ``out`` goes on from its last checkpoint.

    ``splits``: the data, where ``config.data`` is `GivenData`.
    """
    given = hand_over(config.data, splits)
    run = Run.open(out) if resume and is_first_process() else Run(out)
    if not is_first_process():  # of those that torchrun started
        launch(config, _train_process, out, resume, quiet, given)
        return run
    if not resume:
        run.check_free()
    try:
        with run.locked("training"):
            try:
                launch(config, _train_process, out, resume, quiet, given)
            except DaplError:
                if not resume and not run.last.exists():  # nothing to go on with: put it right and start again
                    run.clear()
                raise
    except DaplError:
        remove_if_empty(out)
        raise
    return run


def _train_process(
    processes: Processes, config: Config, out: Path, resume: bool, quiet: bool, given: InMemorySplits | None
) -> None:
    run, writes = Run(out), processes.global_rank == 0
    with run.locked_for_writing() if writes else nullcontext():
        if writes:
            _begin(run, config, resume)
        processes.barrier()
        Trainer(processes, config, run, Reporter(quiet or not writes), given).train()


def _begin(run: Run, config: Config, resume: bool) -> None:
    if not resume:
        Run.create(run.folder, config)
        return
    run.sweep()
    if not run.environment_file.exists():  # killed before it was written
        run.write_environment(config)


class Trainer(RunState):
    """Runs the schedule, one method per kind of stage."""

    def train(self) -> None:
        self._describe()
        stages = self.config.schedule
        for number in range(self.position.stage, len(stages)):
            stage = stages[number]
            started = time.monotonic()
            self.reporter.line(f"[{number + 1}/{len(stages)}] {stage.stage}")
            facts: dict[str, Any] = {}
            if isinstance(stage, (LocateStage, WarmUpStage, JointStage)):
                self._fit(number, stage)
            elif isinstance(stage, DiscriminateStage):
                assert isinstance(self.model, Parts)
                discriminate(self.model, self._batches("train", "discriminants"), stage.shrinkage, self.processes)
            elif isinstance(stage, ProjectStage):
                facts = self._project(stage)
            elif isinstance(stage, WeighHeadsStage):
                facts = self._weigh_heads()
            elif isinstance(stage, MergeStage):  # before LastLayerStage, which it is too
                self._merge(number, stage)
            elif isinstance(stage, LastLayerStage):
                self._last_layer(number, stage)
            elif isinstance(stage, PruneStage):
                facts = self._prune(stage)
            elif isinstance(stage, PurePruneStage):
                facts = self._prune_impure(stage)
            self.position = Position(number + 1)
            seconds = round(time.monotonic() - started, 3)
            self._log({"event": "stage", "stage": number, "name": stage.stage, "seconds": seconds, **facts})
            self._save()
        if self.logger is not None:
            with refusing(self.run.folder):
                self.logger.close()

    def _fit(self, number: int, stage: GradientStage) -> None:
        self._known_scores.clear()
        optimizer = make_optimizer(self.model, stage)
        # Where backbone or locator learn, what the prototypes were made of is no longer what the heads see.
        self.model.follow_sources(isinstance(stage, WarmUpStage) and stage.pointers)
        if self.optimizer_state:
            restore_optimizer(optimizer, self.optimizer_state, self.run.last)
            self.optimizer_state = {}
        source, objective, validate = self._to_fit(stage)
        position = (self.config.seed, number)
        if isinstance(objective, LocateObjective) and self.position == Position(number):
            self._start_heads(number, stage, objective)
        wrapped, stepping = self.processes.setup(objective, optimizer)
        for index in range(self.position.epoch, stage.epochs):
            epoch = FitEpoch(
                self.processes, wrapped, objective.draw_negatives, stepping, stage, source, position, index
            )
            started, first = time.monotonic(), self.position.step
            if first >= max(1, len(epoch)):
                raise BrokenError(
                    f"{self.run.last}: position: stands at step {first + 1} of an epoch of {len(epoch)}; the data is "
                    "another one, or the file is broken. Restore them, or train anew."
                )
            with self.reporter.track(f"epoch {index + 1}/{stage.epochs}", len(epoch) - first) as advance:
                for step, terms in epoch.steps(first):
                    self.epoch_sums = {name: self.epoch_sums.get(name, 0.0) + value for name, value in terms.items()}
                    advance(1)
                    every = self.config.runtime.checkpoint_steps
                    if every and (step + 1) % every == 0 and step + 1 < len(epoch):
                        self.position = Position(number, index, step + 1)
                        self._save(optimizer)
            images = sum(epoch.sizes[first:]) / (time.monotonic() - started)
            means = {name: value / len(epoch) for name, value in self.epoch_sums.items()}
            self.epoch_sums = {}
            validation = validate()
            if broken := [name for name, value in validation.items() if not math.isfinite(value)]:
                raise not_finite(f"{stage.stage}, epoch {index + 1}, on validation", broken)
            worst = max(means.get("cross_entropy", 0.0), validation["cross_entropy"])
            if error := burst(f"{stage.stage}, epoch {index + 1}", worst, len(self.classes)):
                raise error
            self._after_epoch(number, stage, index, means, validation, images)
            self.position = Position(number, index + 1)
            self._save(optimizer)
        self.model.requires_grad_(False)
        if isinstance(stage, LocateStage):
            # From here on the heads look where they look: what they see is features, for all stages that follow.
            self.run_data.share(self.model.extractor)

    def _to_fit(self, stage: GradientStage) -> tuple[BatchSource, Objective | LocateObjective, Callable[[], Terms]]:
        """The images or features of a stage, what is minimised on them, and how it is judged after an epoch."""
        if isinstance(stage, LocateStage):
            assert isinstance(self.model, Parts)
            locating = LocateObjective(self.model, self.config.loss)
            locating.foreground = self._feature_foreground(stage, locating)
            return self._to_locate(stage, "train"), locating, lambda: self._validate_locating(stage, locating)
        objective = Objective(self.model, self.config.loss)
        if {"backbone", "locator"} & stage.learning_rates.keys():
            return self.run_data.images("train", stage.augment), objective, self._validate
        return self.run_data.source("train", self.model, stage.augment), objective, self._validate

    def _feature_foreground(self, stage: LocateStage, objective: LocateObjective) -> FeatureForeground | None:
        """What tells the object by the features; None where masks do, or where nothing asks for it."""
        weights, has_masks = self.config.loss.locate, self.run_data.dataset("train").has_masks
        by_masks = weights.foreground_from == "masks" or (weights.foreground_from == "auto" and has_masks)
        if by_masks or not weights.foreground:
            return None
        if "backbone" in stage.learning_rates:
            raise DaplError(
                "loss.locate.foreground_from: the foreground is told by features that stay as they are; give masks, or "
                "take the backbone out of the learning rates of locate."
            )
        self.reporter.line("  the object is told by the features" + ("" if has_masks else ": the data has no masks"))
        with torch.no_grad():
            return feature_foreground([objective.stages(batch) for batch in self._sample(stage)])

    def _start_heads(self, number: int, stage: GradientStage, objective: LocateObjective) -> None:
        """The first `locate` starts at what stands on the object; a later one, or a run's heads, are gone on with."""
        before = any(isinstance(other, LocateStage) for other in self.config.schedule[:number])
        if before or self.config.start is not None:
            return
        assert isinstance(self.model, Parts)
        assert isinstance(stage, LocateStage)
        looked: list[tuple[tuple[Tensor, ...], Tensor | None]] = []
        with torch.no_grad():
            for batch in self._sample(stage):
                stages = objective.stages(batch)
                grid = max((maps.shape[-2:] for maps in stages), key=lambda shape: shape.numel())
                looked.append((stages, objective.object_masks(batch, stages, grid)))
        weights, random = self.config.loss.locate, generator(self.config.seed, "heads")
        start_heads(self.model.locator, looked, random, weights.start_share, weights.start_variation)

    def _sample(self, stage: LocateStage) -> Iterator[Batch]:
        """Up to `FOREGROUND_SAMPLE` training images, spread over all; every process looks at the same ones."""
        source = self._to_locate(stage, "train")
        sample = torch.arange(0, len(source), math.ceil(len(source) / FOREGROUND_SAMPLE))
        self.model.eval()
        for batch in source.batches(sample.split(self.config.runtime.evaluation_batch)):
            yield batch.to(self.processes.device)

    def _to_locate(self, stage: LocateStage, split: Split) -> BatchSource:
        """Features of the backbone alone, of both views, or images where it learns."""
        if "backbone" in stage.learning_rates:
            return self.run_data.images(split, stage.augment if split == "train" else "none")
        if split == "train":
            return self.run_data.source(split, self.model, "flip", self.model.overview, both=True)
        return self.run_data.source(split, self.model, "none", self.model.overview)

    def _validate_locating(self, stage: LocateStage, objective: LocateObjective) -> Terms:
        source = self._to_locate(stage, "validation")
        found = torch.zeros(len(source), 2)
        self.model.eval()
        for batch in source.batches(own_batches(self._order(len(source)), self.processes)):
            with torch.no_grad(), self.processes.autocast():
                logits = objective.logits(batch.to(self.processes.device)).float().cpu()
            found[batch.indices] = judge_images(logits, batch.labels.cpu())
        return judged(sum_rows(found, self.processes))

    def _project(self, stage: ProjectStage) -> dict[str, Any]:
        if stage.nearest_to == "class_mean":
            set_to_class_means(self.model, self._batches("train", "means of the classes"), self.processes)
        batches = self._batches("train", "projection")
        found = project(self.model, batches, stage.foreground_share, self.processes)
        size = self.config.data.image_size
        regions = shown_regions(self.model, found.maps, size, found.squares).cpu()
        self.records = record_projection(self.records, found, self.run_data.dataset("train"), regions)
        ungrounded = sum(record.grounded is False for record in self.records)
        if ungrounded:
            self.reporter.line(
                f"  {ungrounded} of {len(self.records)} prototypes had no patch with more than "
                f"{stage.foreground_share:.0%} foreground; they took the best there was and are marked grounded: false"
            )
        return {"ungrounded": ungrounded, "validation": self._start_best()}

    def _weigh_heads(self) -> dict[str, Any]:
        scores, labels = self._scores_to_read("validation")
        alone = weigh_heads(self.model, scores, labels, self._order(len(labels)))
        self.reporter.line(f"  each head alone knows the class of {alone.min():.0%} to {alone.max():.0%} of the images")
        return {"alone": alone.tolist(), "validation": self._start_best()}

    def _last_layer(self, number: int, stage: LastLayerStage, before: int = 0) -> None:
        """``before``: epochs of the stage that are already in the log."""
        scores, labels = self._scores_to_read("train")
        held_out = self._scores_to_read("validation")
        best_state = None

        def after_epoch(epoch: int, means: Terms) -> None:
            nonlocal best_state
            validation = self._judge(*held_out)
            self._after_epoch(number, stage, before + epoch, means, validation)
            if self._is_best(validation):
                best_state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

        position = (self.config.seed, number, before) if before else (self.config.seed, number)
        last_layer(self.model, scores, labels, stage, position, after_epoch)
        self.model.requires_grad_(False)
        if best_state is not None:
            self._save_best(best_state)

    def _merge(self, number: int, stage: MergeStage) -> None:
        for step in range(self.position.epoch // stage.epochs, stage.steps):
            read, labels = self._scores_to_read("train", "distances")
            plan = plan_merge(read(self._order(len(labels))), self.model.prototypes.kept, stage.share)
            merge(self.model, self.records, plan)
            validation = self._start_best()
            self._last_layer(number, stage, step * stage.epochs)
            left = int(self.model.prototypes.kept.sum())
            assert self.best is not None
            self.reporter.line(
                f"  step {step + 1}/{stage.steps}  {sum(len(others) for _, others in plan)} merged, {left} left  "
                f"validation {validation['accuracy']:.1%}, tuned {self.best[0]:.1%}"
            )
            epoch = (step + 1) * stage.epochs - 1
            entry = {"event": "merge", "stage": number, "epoch": epoch, "step": step, "prototypes": left}
            self._log(entry | {"validation": validation, "tuned": {"accuracy": self.best[0]}})
            self.position = Position(number, epoch + 1)
            self._save()

    def _prune_impure(self, stage: PurePruneStage) -> dict[str, Any]:
        read, labels = self._scores_to_read("train", "distances")
        order, prototypes = self._order(len(labels)), self.model.prototypes
        batches = ((rows, labels[indices]) for indices, rows in zip(order, read(order), strict=True))
        own_of = lambda some: prototypes.of_images(some.to(prototypes.kept.device)).cpu()  # noqa: E731
        own = own_among_nearest(batches, own_of, stage.nearest)
        # As a share, so that the one rule holds: below the threshold it goes, and a class never loses its last one.
        removed = prune(self.model, own.to(prototypes.kept.device) / stage.nearest, stage.own / stage.nearest)
        reasons = [f"{count} of the {stage.nearest} nearest training images are of its class" for count in own.tolist()]
        return self._after_pruning(removed, reasons, "nearest to other classes")

    def _prune(self, stage: PruneStage) -> dict[str, Any]:
        if not self.run_data.dataset("validation").has_masks:
            self.reporter.line("  nothing pruned: the data has no foreground masks to tell background by")
            return {"removed": 0}
        batches = self._batches("validation", "background bias")
        shares = foreground_shares(
            self.model, batches, self._validation_masks, self.processes, stage.bias_of, stage.percentile
        )
        for record, share in zip(self.records, shares.tolist(), strict=True):
            record.region_foreground = None if share != share else share
        reasons = [f"foreground share {share:.2f} below {stage.threshold}" for share in shares.tolist()]
        removed = prune(self.model, shares, stage.threshold)
        return self._after_pruning(removed, reasons, f"{stage.bias_of} on background")

    def _after_pruning(self, removed: Tensor, reasons: Sequence[str], why: str) -> dict[str, Any]:
        for record, gone, reason in zip(self.records, removed.tolist(), reasons, strict=True):
            if gone:
                record.kept, record.reason = False, reason
        self.reporter.line(f"  {int(removed.sum())} of {len(removed)} prototypes removed, {why}")
        return {"removed": int(removed.sum()), "validation": self._start_best()}
