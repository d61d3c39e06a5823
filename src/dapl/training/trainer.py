"""From a config to a finished run: the schedule, with checkpoints and numbers along the way."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from dapl import losses
from dapl.config import Config, FitStage, JointStage, LastLayerStage, ProjectStage, PruneStage, WarmUpStage
from dapl.errors import DaplError
from dapl.files import write_json
from dapl.metrics.functional import activation_regions
from dapl.models.build import build_model
from dapl.progress import Advance, Reporter
from dapl.run import Run
from dapl.training.checkpoint import (
    Checkpoint,
    Position,
    load_checkpoint,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
    save_checkpoint,
)
from dapl.training.curves import Curves
from dapl.training.features import digest
from dapl.training.lanes import Lanes, Split
from dapl.training.launch import launch
from dapl.training.objective import Objective
from dapl.training.projection import project
from dapl.training.pruning import foreground_shares, prune
from dapl.training.records import fresh_records, record_projection, records_from_json, records_to_json
from dapl.training.sources import Batch, in_order
from dapl.training.stages import FitEpoch, Terms, all_scores, deal, last_layer, make_optimizer, not_finite


def train(config: Config, out: Path, resume: bool = False, quiet: bool = False) -> Run:
    """Train a model by its schedule. With ``resume`` the run in ``out`` goes on from its last checkpoint."""
    run = Run.open(out) if resume else Run(out)
    ours = not resume and run.is_free()
    try:
        launch(config, _train_process, out, resume, quiet)
    except DaplError:
        if ours and not run.last.exists():  # there is nothing to go on with: put right what was wrong and start again
            shutil.rmtree(out, ignore_errors=True)
        raise
    return run


def _train_process(fabric: Fabric, config: Config, out: Path, resume: bool, quiet: bool) -> None:
    if fabric.global_rank == 0:
        Run.open(out).sweep() if resume else Run.create(out, config)
    fabric.barrier()
    Trainer(fabric, config, Run(out), Reporter(quiet or fabric.global_rank > 0)).train()


class Trainer:
    """The state of a run between stages, and how it is saved."""

    def __init__(self, fabric: Fabric, config: Config, run: Run, reporter: Reporter) -> None:
        self.fabric, self.config, self.run, self.reporter = fabric, config, run, reporter
        self.lanes = Lanes(config, fabric, reporter)
        self.classes = list(self.lanes.splits.train.classes)
        _check_data(config, self.lanes)
        resuming = run.last.exists()
        self.model = build_model(config.model, len(self.classes), config.seed, pretrained=not resuming)
        self.model.to(fabric.device).requires_grad_(False)  # a stage says what learns
        self.records = fresh_records(self.model, self.classes)
        self.position = Position()
        self.best: list[float] | None = None
        """[accuracy, −cross-entropy] on validation of the best model since prototypes were last changed for good."""
        self.optimizer_state: dict[str, Tensor] = {}
        self.epoch_sums: Terms = {}
        if resuming:
            self._restore()
        else:
            self._forget_log()
            self.lanes.shared_backbone = digest(self.model.backbone)
        self.curves = Curves(run.tensorboard, self._epochs_before(self.position)) if fabric.global_rank == 0 else None

    # --- the schedule -------------------------------------------------------------------------------------------

    def train(self) -> None:
        self._describe()
        stages = self.config.schedule
        for number in range(self.position.stage, len(stages)):
            stage = stages[number]
            started = time.monotonic()
            self.reporter.line(f"[{number + 1}/{len(stages)}] {stage.stage}")
            facts: dict[str, Any] = {}
            if isinstance(stage, (WarmUpStage, JointStage)):
                self._fit(number, stage)
            elif isinstance(stage, ProjectStage):
                facts = self._project(stage)
            elif isinstance(stage, LastLayerStage):
                self._last_layer(number, stage)
            elif isinstance(stage, PruneStage):
                facts = self._prune(stage)
            self.position = Position(number + 1)
            seconds = round(time.monotonic() - started, 3)
            self._log({"event": "stage", "stage": number, "name": stage.stage, "seconds": seconds, **facts})
            self._save()
        if self.curves is not None:
            self.curves.close()

    def _fit(self, number: int, stage: WarmUpStage | JointStage) -> None:
        optimizer = make_optimizer(self.model, stage)
        if self.optimizer_state:
            restore_optimizer(optimizer, self.optimizer_state)
            self.optimizer_state = {}
        frozen = "backbone" not in stage.learning_rates
        source = (
            self.lanes.source("train", self.model, stage.augment)
            if frozen
            else self.lanes.pictures("train", stage.augment)
        )
        objective = Objective(self.model, self.config.loss)
        wrapped, stepping = self.fabric.setup(objective, optimizer)
        for index in range(self.position.epoch, stage.epochs):
            epoch = FitEpoch(
                self.fabric,
                wrapped,
                objective.draw_negatives,
                stepping,
                stage,
                source,
                (self.config.seed, number),
                index,
            )
            started, first = time.monotonic(), self.position.step
            with self.reporter.track(f"epoch {index + 1}/{stage.epochs}", len(epoch) - first) as advance:
                for step, terms in epoch.steps(first):
                    self.epoch_sums = {name: self.epoch_sums.get(name, 0.0) + value for name, value in terms.items()}
                    advance(1)
                    every = self.config.runtime.checkpoint_steps
                    if every and (step + 1) % every == 0 and step + 1 < len(epoch):
                        self.position = Position(number, index, step + 1)
                        self._save(optimizer)
            pictures = sum(epoch.sizes[first:]) / (time.monotonic() - started)
            means = {name: value / len(epoch) for name, value in self.epoch_sums.items()}
            self.epoch_sums = {}
            validation = self._validate()
            if broken := [name for name, value in validation.items() if not math.isfinite(value)]:
                raise not_finite(f"{stage.stage}, epoch {index + 1}, on validation", broken)
            self._after_epoch(number, stage, index, means, validation, pictures)
            self.position = Position(number, index + 1)
            self._save(optimizer)
        self.model.requires_grad_(False)

    def _project(self, stage: ProjectStage) -> dict[str, Any]:
        source = self.lanes.source("train", self.model)
        with self.reporter.track("projection", len(source)) as advance:
            batches = _counting(source.batches(deal(self._order(len(source)), self.fabric)), advance)
            found = project(self.model, batches, stage.foreground_share, self.fabric)
        size = self.config.data.image_size
        regions = activation_regions(found.maps.unsqueeze(1), (size, size)).squeeze(1).cpu()
        self.records = record_projection(self.records, found, self.lanes.dataset("train"), regions)
        ungrounded = sum(record.grounded is False for record in self.records)
        if ungrounded:
            self.reporter.line(
                f"  {ungrounded} of {len(self.records)} prototypes had no patch with more than "
                f"{stage.foreground_share:.0%} foreground; they took the best there was and are marked grounded: false"
            )
        return {"ungrounded": ungrounded, "validation": self._start_best()}

    def _last_layer(self, number: int, stage: LastLayerStage) -> None:
        scores, labels = self._scores("train")
        held_out, held_out_labels = self._scores("validation")
        best_state = None

        def after_epoch(epoch: int, means: Terms) -> None:
            nonlocal best_state
            validation = judge(self.model.classify(held_out.to(self.fabric.device)).cpu(), held_out_labels)
            self._after_epoch(number, stage, epoch, means, validation)
            if self._is_best(validation):
                best_state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

        last_layer(self.model, scores, labels, stage, (self.config.seed, number), after_epoch)
        self.model.requires_grad_(False)
        if best_state is not None:
            self._save_best(best_state)

    def _prune(self, stage: PruneStage) -> dict[str, Any]:
        source = self.lanes.source("validation", self.model)
        if not self.lanes.dataset("validation").has_masks:
            self.reporter.line("  nothing pruned: the data has no foreground masks to tell background by")
            return {"removed": 0}
        with self.reporter.track("background bias", len(source)) as advance:
            batches = _counting(source.batches(deal(self._order(len(source)), self.fabric)), advance)
            shares = foreground_shares(
                self.model, batches, self._validation_masks, self.fabric, stage.bias_of, stage.percentile
            )
        removed = prune(self.model, shares, stage.threshold).tolist()
        for record, share, gone in zip(self.records, shares.tolist(), removed, strict=True):
            record.region_foreground = None if share != share else share
            if gone:
                record.kept = False
                record.reason = f"foreground share {share:.2f} below {stage.threshold}"
        self.reporter.line(f"  {sum(removed)} of {len(removed)} prototypes removed, {stage.bias_of} on background")
        return {"removed": sum(removed), "validation": self._start_best()}

    # --- numbers ------------------------------------------------------------------------------------------------

    def _order(self, count: int) -> list[Tensor]:
        return in_order(count, self.config.runtime.evaluation_batch)

    def _scores(self, split: Split) -> tuple[Tensor, Tensor]:
        source = self.lanes.source(split, self.model)
        with self.reporter.track(f"scores of {split}", len(source)) as advance:
            return all_scores(self.model, source, self._order(len(source)), self.fabric, advance), source.labels

    def _validation_masks(self, indices: Tensor) -> Tensor:
        masks = self.lanes.pixel_masks("validation", indices)
        assert masks is not None
        return masks

    def _validate(self) -> Terms:
        frozen = not any(p.requires_grad for p in self.model.backbone.parameters())
        # While the backbone learns, its features are worth nothing after this one look at them.
        source = self.lanes.source("validation", self.model) if frozen else self.lanes.pictures("validation")
        scores = all_scores(self.model, source, self._order(len(source)), self.fabric, lambda count: None)
        with torch.no_grad():
            return judge(self.model.classify(scores.to(self.fabric.device)).cpu(), source.labels)

    def _after_epoch(
        self, number: int, stage: FitStage | LastLayerStage, epoch: int, means: Terms, validation: Terms,
        pictures_per_second: float | None = None,
    ) -> None:  # fmt: skip
        entry = {"event": "epoch", "stage": number, "name": stage.stage, "epoch": epoch}  # type: ignore[union-attr]
        if pictures_per_second is not None:
            entry["pictures_per_second"] = round(pictures_per_second, 1)
            if self._is_best(validation):
                self._save_best(self.model.state_dict())
            shown = "  ".join(f"{name} {value:.3f}" for name, value in means.items() if name != "accuracy")
            self.reporter.line(
                f"  {epoch + 1:3d}/{stage.epochs}  {shown}  train {means['accuracy']:.1%}  "
                f"validation {validation['accuracy']:.1%}  {pictures_per_second:.0f} pictures/s"
            )
        elif epoch + 1 == stage.epochs:
            self.reporter.line(
                f"  {stage.epochs} epochs  cross_entropy {means['cross_entropy']:.3f}  train {means['accuracy']:.1%}  "
                f"validation {validation['accuracy']:.1%}"
            )
        self._log(entry | {"train": means, "validation": validation})
        if self.curves is not None:
            self.curves.add(self._epochs_before(Position(number, epoch)), {"train": means, "validation": validation})

    def _epochs_before(self, position: Position) -> int:
        return sum(getattr(stage, "epochs", 0) for stage in self.config.schedule[: position.stage]) + position.epoch

    # --- what is saved ------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        if self.fabric.global_rank == 0:
            splits = self.lanes.splits
            pictures = {name: len(getattr(splits, name)) for name in ("train", "validation", "test")}
            self.run.describe_data(self.classes, splits.train.parts, pictures)
            self.reporter.line(
                f"{self.config.data.name}: {len(self.classes)} classes, "
                + ", ".join(f"{count} {name}" for name, count in pictures.items())
                + f"; {len(self.model.prototypes)} prototypes"
            )
            self._write_prototypes()

    def _log(self, entry: dict[str, Any]) -> None:
        if self.fabric.global_rank == 0:
            self.run.log(entry)

    def _start_best(self) -> Terms:
        """Prototypes have changed for good: what was best before is another model, and this one is the best so far."""
        self.best = None
        validation = self._validate()
        self._is_best(validation)
        self._save_best(self.model.state_dict())
        self.reporter.line(f"  validation {validation['accuracy']:.1%}")
        return validation

    def _is_best(self, validation: Terms) -> bool:
        """Is this the best so far? By accuracy, ties by cross-entropy. Remembers it."""
        value = [validation["accuracy"], -validation["cross_entropy"]]
        if self.best is not None and value <= self.best:
            return False
        self.best = value
        return True

    def _facts(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "epoch_sums": self.epoch_sums,
            "shared_backbone": self.lanes.shared_backbone,
            "prototypes": records_to_json(self.records),
        }

    def _save_best(self, state: dict[str, Tensor]) -> None:
        if self.fabric.global_rank == 0:
            save_checkpoint(self.run.best, Checkpoint(self.position, state, facts=self._facts()))
            self._write_prototypes()
        self.fabric.barrier()

    def _save(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        if self.fabric.global_rank == 0:
            state = {} if optimizer is None else optimizer_tensors(optimizer)
            save_checkpoint(self.run.last, Checkpoint(self.position, self.model.state_dict(), state, self._facts()))
        self.fabric.barrier()

    def _write_prototypes(self) -> None:
        size = self.config.data.image_size
        write_json(
            self.run.prototypes_file, {"image_size": [size, size], "prototypes": records_to_json(self.records)}
        )  # fmt: skip

    def _restore(self) -> None:
        checkpoint = load_checkpoint(self.run.last)
        restore_model(self.model, checkpoint.model, self.run.last)
        self.position = position = checkpoint.position
        self.optimizer_state = checkpoint.optimizer
        facts = checkpoint.facts
        self.best, self.epoch_sums = facts["best"], facts["epoch_sums"]
        self.lanes.shared_backbone = facts["shared_backbone"]
        self.records = records_from_json(facts["prototypes"])
        self._forget_log()
        self.reporter.line(
            f"resuming at stage {position.stage + 1}, epoch {position.epoch + 1}, step {position.step + 1}"
        )

    def _forget_log(self) -> None:
        """Of what is about to be done (again); the line of a stage comes after those of its epochs."""
        reached = self.position[:2]
        if self.fabric.global_rank == 0:
            self.run.forget_log(lambda entry: (entry["stage"], entry.get("epoch", math.inf)) < reached)


def judge(logits: Tensor, labels: Tensor) -> Terms:
    """Accuracy and cross-entropy of n×C logits."""
    return {
        "accuracy": float((logits.argmax(1) == labels).double().mean()),
        "cross_entropy": losses.cross_entropy(logits.detach(), labels).item(),
    }


def _counting(batches: Iterable[Batch], advance: Advance) -> Iterable[Batch]:
    for batch in batches:
        yield batch
        advance(len(batch))


def _check_data(config: Config, lanes: Lanes) -> None:
    if not len(lanes.splits.validation):
        raise DaplError("data: no class has the two training pictures that it takes to hold one out; add some.")
    if config.loss.foreground.weight and not lanes.splits.train.has_masks:
        raise DaplError(
            "loss.foreground.weight: the data has no foreground masks, so the foreground loss cannot be computed; "
            "set it to 0 or add masks."
        )
