"""What a training changes and keeps: model, records, position and the best so far; how it is measured and saved.

`Trainer` (in `trainer`) is a `RunState` that runs the schedule. Everything that a killed run needs to go on is here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.batches.cache import GB
from dapl.batches.features import digest_of
from dapl.batches.run_data import RunData, Split
from dapl.batches.sources import Batch, in_order, run_model
from dapl.common.errors import BrokenError, DaplError
from dapl.common.files import expand_path, refusing, write_json
from dapl.common.progress import Reporter
from dapl.config import Config, FitStage, LastLayerStage, LocateStage, Stage
from dapl.data.build import InMemorySplits
from dapl.models.build import build_model
from dapl.models.protopnet import ProtoPNet
from dapl.models.weight_sources import SOURCES
from dapl.processes.interface import Processes, own_batches, sum_rows
from dapl.runs.checkpoint import (
    Checkpoint,
    Position,
    fresh_records,
    load_checkpoint,
    optimizer_tensors,
    records_of,
    records_to_json,
    restore_model,
    save_checkpoint,
)
from dapl.runs.run import Run
from dapl.runs.schemas import CheckpointFacts
from dapl.training.loggers import open_logger
from dapl.training.stages import Response, Scores, Terms, all_responses, of_table, streamed_scores


class RunState:
    """A run that is being trained, at a position between two steps."""

    def __init__(
        self, processes: Processes, config: Config, run: Run, reporter: Reporter, given: InMemorySplits | None = None
    ) -> None:
        self.processes, self.config, self.run, self.reporter = processes, config, run, reporter
        self.run_data = RunData(config, processes, reporter, None if given is None else given.splits())
        self.classes = list(self.run_data.splits.train.classes)
        _check_data(config, self.run_data)
        resuming = run.last.exists()
        fresh = not resuming and config.start is None
        self.model = build_model(config.model, len(self.classes), config.seed, pretrained=fresh)
        self.model.to(processes.device).requires_grad_(False)  # a stage says what learns
        self.records = fresh_records(self.model, self.classes)
        self.position = Position()
        self.best: list[float] | None = None
        """[accuracy, −cross-entropy] on validation of the best model since prototypes were last changed for good."""
        self.optimizer_state: dict[str, Tensor] = {}
        self.epoch_sums: Terms = {}
        self._known_scores: dict[Split, tuple[str, dict[Response, Tensor]]] = {}
        self._written_records: list[dict[str, Any]] | None = None
        if resuming:
            self._restore()
        else:
            self._forget_log()
            if config.start is not None:
                self._start_from(Run.open(expand_path(config.start.replace("{seed}", str(config.seed)), "start")))
            self.run_data.share(self.model.overview)
        first = self._epochs_before(self.position)
        self.logger = None
        if processes.global_rank == 0:  # after a resume, epochs that are done again replace the old ones
            self.logger = open_logger(config.runtime.logger, run.folder, config.model_dump(mode="json"), first)

    # --- numbers ------------------------------------------------------------------------------------------------

    def _order(self, count: int) -> Sequence[Tensor]:
        return in_order(count, self.config.runtime.evaluation_batch)

    def _scores(self, split: Split, what: Response) -> tuple[Tensor, Tensor]:
        """The score (or distance) of each prototype on each image, n×P, and the labels.

        Pruning, merging, the last layer and the validations between them ask for those of the same model: they are
        computed when the first does, and again when something has changed that decides them.
        """
        source, deciding = self.run_data.source(split, self.model), self._deciding_scores()
        known, tables = self._known_scores.get(split, ("", {}))
        if known != deciding or what not in tables:
            with self.reporter.track(f"{what} of {split}", len(source)) as advance:
                order, wanted = self._order(len(source)), {what, "scores"}
                tables = all_responses(self.model, source, order, self.processes, advance, sorted(wanted))
            self._known_scores[split] = deciding, tables
        return tables[what], source.labels

    def _deciding_scores(self) -> str:
        """Whose a prototype is, and whether it is kept, decides the logits alone, as the classifier does."""
        prototypes, classifier = self.model.prototypes, self.model.components().get("classifier")
        beside = {id(prototypes.of_class), id(prototypes.kept), *map(id, classifier.parameters() if classifier else ())}
        named = (*self.model.named_parameters(), *self.model.named_buffers(), ("stand_in", prototypes.stand_in))
        return digest_of({name: one for name, one in named if one is not None and id(one) not in beside})

    def _batches(self, split: Split, what: str) -> Iterator[Batch]:
        """The batches of this process, for a stage that leaves the backbone as it is."""
        source = self.run_data.source(split, self.model)
        with self.reporter.track(what, len(source)) as advance:
            for batch in source.batches(own_batches(self._order(len(source)), self.processes)):
                yield batch
                advance(len(batch))

    def _validation_masks(self, indices: Tensor) -> Tensor:
        masks = self.run_data.pixel_masks("validation", indices)
        assert masks is not None
        return masks

    def _validate(self) -> Terms:
        frozen = not any(p.requires_grad for p in self.model.extractor.parameters())
        # While the backbone learns, its features are worth nothing after this one look at them.
        source = self.run_data.source("validation", self.model) if frozen else self.run_data.images("validation")
        found = torch.zeros(len(source), 2)
        self.model.eval()
        for batch in source.batches(own_batches(self._order(len(source)), self.processes)):
            with torch.no_grad():
                with self.processes.autocast():
                    scores = run_model(self.model, batch.to(self.processes.device)).scores.float()
                found[batch.indices] = judge_images(self.model.classify(scores).cpu(), batch.labels.cpu())
        return judged(sum_rows(found, self.processes))

    def _scores_to_read(self, split: Split, what: Response = "scores") -> tuple[Scores, Tensor]:
        """Scores (or distances) of the split in batches, from a table where that is not too large, and the labels."""
        source = self.run_data.source(split, self.model)
        size = len(source) * self.model.score_count * 4 * len({what, "scores"}) / GB
        if size <= self.config.cache.scores_gb:
            scores, labels = self._scores(split, what)
            return of_table(scores), labels
        self.reporter.line(
            f"  {what} of {split}: {size:.1f} GB are more than cache.scores_gb, {self.config.cache.scores_gb:g}, so "
            "every pass computes them anew"
        )
        return streamed_scores(self.model, source, self.processes, what), source.labels

    def _judge(self, scores: Scores, labels: Tensor) -> Terms:
        """How the model classifies images that have these scores."""
        order, device = self._order(len(labels)), self.processes.device
        self.model.eval()
        with torch.no_grad():
            found = [
                judge_images(self.model.classify(rows.to(device)).cpu(), labels[indices])
                for indices, rows in zip(order, scores(order), strict=True)
            ]
        return judged(torch.cat(found))

    def _after_epoch(
        self,
        number: int,
        stage: FitStage | LastLayerStage,
        epoch: int,
        means: Terms,
        validation: Terms,
        images_per_second: float | None = None,
    ) -> None:
        entry = {"event": "epoch", "stage": number, "name": stage.stage, "epoch": epoch}  # type: ignore[union-attr]
        if images_per_second is not None:
            entry["images_per_second"] = round(images_per_second, 1)
            if self._is_best(validation):
                self._save_best(self.model.state_dict())
            # The terms of the loss, one by one, are in metrics.jsonl: a line has to fit a terminal.
            self.reporter.line(
                f"  {epoch + 1:3d}/{stage.epochs}  loss {means['total']:.3f}  train {means['accuracy']:.1%}  "
                f"validation {validation['accuracy']:.1%}  {images_per_second:.0f} images/s"
            )
        elif epoch + 1 == stage.epochs:
            self.reporter.line(
                f"  {stage.epochs} epochs  cross_entropy {means['cross_entropy']:.3f}  train {means['accuracy']:.1%}  "
                f"validation {validation['accuracy']:.1%}"
            )
        self._log(entry | {"train": means, "validation": validation})
        if self.logger is not None:
            groups = (("train", means), ("validation", validation))
            values = {f"{group}/{name}": value for group, terms in groups for name, value in terms.items()}
            with refusing(self.run.folder):
                self.logger.scalars(values, self._epochs_before(Position(number, epoch)))

    def _epochs_before(self, position: Position) -> int:
        return sum(map(epochs_of, self.config.schedule[: position.stage])) + position.epoch

    # --- what is saved ------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        if self.processes.global_rank == 0:
            splits = self.run_data.splits
            images = {name: len(getattr(splits, name)) for name in ("train", "validation", "test")}
            parts = list(splits.train.parts)
            write_json(self.run.data_file, {"classes": self.classes, "parts": parts, "images": images})
            facts = self.model.facts(self.config.data.image_size)
            parameters = sum(parameter.numel() for parameter in self.model.parameters())
            described = {"system": self.config.model.system, "parameters": parameters, **facts}
            if (source := SOURCES.get(self.config.model.backbone.weights)) is not None:
                described["weights"] = source.title
            write_json(self.run.model_file, described)
            self.reporter.line(
                f"{self.config.data.name}: {len(self.classes)} classes, "
                + ", ".join(f"{count} {name}" for name, count in images.items())
                + f"; {len(self.model.prototypes)} prototypes"
            )
            for name, value in facts.items():
                self.reporter.line(f"  {name.replace('_', ' ')}: {' × '.join(map(str, value))} pixels")
            self._write_prototypes()

    def _log(self, entry: dict[str, Any]) -> None:
        if self.processes.global_rank == 0:
            self.run.log(entry)

    def _start_best(self) -> Terms:
        """Prototypes have changed for good: what was best before is another model, and this one is the best so far."""
        self.best = None
        validation = self._judge(*self._scores_to_read("validation"))
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
            "shared_backbone": sorted(self.run_data.shared),
            "prototypes": records_to_json(self.records),
        }

    def _save_best(self, state: dict[str, Tensor]) -> None:
        if self.processes.global_rank == 0:
            save_checkpoint(self.run.best, Checkpoint(self.position, state, facts=self._facts()))
            self._write_prototypes()
        self.processes.barrier()

    def _save(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        if self.processes.global_rank == 0:
            self.run.sync_log()
            state = {} if optimizer is None else optimizer_tensors(optimizer)
            save_checkpoint(self.run.last, Checkpoint(self.position, self.model.state_dict(), state, self._facts()))
        self.processes.barrier()

    def _write_prototypes(self) -> None:
        """Once by every process that trains the run, and where something has changed: most epochs change nothing."""
        size, records = self.config.data.image_size, records_to_json(self.records)
        if records != self._written_records:
            write_json(self.run.prototypes_file, {"image_size": [size, size], "prototypes": records})
            self._written_records = records

    def _restore(self) -> None:
        checkpoint = load_checkpoint(self.run.last)
        restore_model(self.model, checkpoint.model, self.run.last)
        self.position = position = checkpoint.position
        check_position(position, self.config.schedule, self.run.last)
        self.optimizer_state = checkpoint.optimizer
        facts = CheckpointFacts.model_validate(checkpoint.facts)
        self.best, self.epoch_sums = facts.best, dict(facts.epoch_sums)
        shared = facts.shared_backbone
        self.run_data.shared = {shared} if isinstance(shared, str) else set(shared)  # one, in older runs
        self.records = records_of(checkpoint, self.model, self.run.last)
        self._forget_log()
        self.reporter.line(
            f"resuming at stage {position.stage + 1}, epoch {position.epoch + 1}, step {position.step + 1}"
        )

    def _start_from(self, run: Run) -> None:
        """The best model of another run, with what is known of its prototypes."""
        checkpoint = load_checkpoint(run.best)
        if run.class_names() != self.classes:
            raise DaplError(f"start: {run.folder} was trained on other classes than this data has.")
        restore_model(self.model, checkpoint.model, run.best)
        self.records = records_of(checkpoint, self.model, run.best)
        ours, theirs = (getattr(config.model, "other_class_weight", None) for config in (self.config, run.config()))
        if isinstance(self.model, ProtoPNet) and ours is not None and ours != theirs:
            self.model.set_other_class_weight(ours)  # ProtoPShare merges a ProtoPNet without evidence against a class
        self.reporter.line(f"starting from {run.folder}")

    def _forget_log(self) -> None:
        """Drop the lines of what is about to be done again; the line of a stage comes after those of its epochs."""
        reached = self.position[:2]
        if self.processes.global_rank == 0:
            self.run.forget_log(lambda entry: (entry["stage"], entry.get("epoch", math.inf)) < reached)


def epochs_of(stage: Stage) -> int:
    """How many epochs a stage writes to the log."""
    return getattr(stage, "epochs", 0) * getattr(stage, "steps", 1)


def check_position(position: Position, schedule: Sequence[Stage], path: Path) -> None:
    """Refuse a checkpoint that stands somewhere outside of the schedule.

    >>> check_position(Position(1, 0, 0), [LastLayerStage(epochs=2)], Path("last.safetensors"))  # its end
    >>> check_position(Position(0, 3, 0), [LastLayerStage(epochs=2)], Path("last.safetensors"))
    Traceback (most recent call last):
    dapl.common.errors.BrokenError: last.safetensors: position: stands at stage 1, epoch 4, step 1, which the schedule \
does not have; restore it from a copy, or train anew.
    """
    stage, epoch, step = position
    epochs = epochs_of(schedule[stage]) if stage < len(schedule) else 0
    inside = stage < len(schedule) and (epoch, step) <= (epochs, 0)
    if not inside and position != (len(schedule), 0, 0):
        raise BrokenError(
            f"{path}: position: stands at stage {stage + 1}, epoch {epoch + 1}, step {step + 1}, which the schedule "
            "does not have; restore it from a copy, or train anew."
        )


def judge_images(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the label of each image is right, and its cross-entropy: logits B×C → B×2."""
    return torch.stack([(logits.argmax(1) == labels).float(), F.cross_entropy(logits, labels, reduction="none")], dim=1)


def judged(images: Tensor) -> Terms:
    """Accuracy and cross-entropy of what `judge_images` gave for all images, n×2."""
    right, cross_entropy = images.double().mean(0).tolist()
    return {"accuracy": right, "cross_entropy": cross_entropy}


def _check_data(config: Config, run_data: RunData) -> None:
    if not len(run_data.splits.validation):
        raise DaplError("data: no class has the two training images that it takes to hold one out; add some.")
    if config.loss.foreground.weight and not run_data.splits.train.has_masks:
        raise DaplError(
            "loss.foreground.weight: the data has no foreground masks, so the foreground loss cannot be computed; "
            "set it to 0 or add masks."
        )
    locate = config.loss.locate
    locates = any(isinstance(stage, LocateStage) for stage in config.schedule) and locate.foreground
    if locates and locate.foreground_from == "masks" and not run_data.splits.train.has_masks:
        raise DaplError(
            "loss.locate.foreground_from: the data has no foreground masks; set it to features, or add masks."
        )
