"""All that the page of a run shows, as plain data and a few image files: no HTML here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapl.config import Config
from dapl.data.given import hand_over
from dapl.data.sample import Splits
from dapl.errors import DaplError
from dapl.evaluation.protocol import Protocol
from dapl.loading import LoadedRun, load_run
from dapl.models.contract import PrototypeModel
from dapl.progress import Reporter
from dapl.report.charts import curves
from dapl.report.entries import FLAGS, Material, counts, members, offenders, wall
from dapl.report.glances import glance_over, source_rows, spread_pictures
from dapl.report.plain import name_of, rounded
from dapl.report.run_facts import (
    HEADLINES,
    class_numbers,
    evaluation_of,
    model_facts,
    not_measured,
    number_rows,
    training_facts,
)
from dapl.report.sheets import heat_sheet, photo_sheet, tile_side
from dapl.report.split_looks import kept_looks
from dapl.run import Run
from dapl.training.features import digest
from dapl.training.lanes import Lanes, Split
from dapl.training.launch import make_fabric

PICTURES = 3
"""Pictures of a class that each of its prototypes is shown on."""
_CONFUSIONS = 15


@dataclass(frozen=True)
class Report:
    """What a page is made of."""

    data: dict[str, Any]
    """Plain values; docs/report.md names them."""
    images: dict[str, bytes] = field(default_factory=dict)
    """Two sheets a class, by file name."""


def collect(
    folder: Path | str,
    config: Config | None = None,
    pictures: int = PICTURES,
    splits: Splits | None = None,
    quiet: bool = False,
) -> Report:
    """Of a run's best model; `dapl evaluate` is run first where its numbers are not there.

    ``config`` replaces the run's own where only data, caches or runtime differ; ``pictures``: of a class that each
    prototype is shown on; ``splits``: the data of a run that was trained on data handed over in Python.
    """
    if pictures < 1:
        raise DaplError(f"pictures: is {pictures}; each prototype must be shown on one picture or more.")
    run = Run.open(Path(folder))
    config = _one_process(config or run.config())
    hand_over(config.data, splits)
    reporter = Reporter(quiet)
    evaluation = evaluation_of(run) or _evaluate(run, config, splits, quiet)
    loaded = load_run(run.folder, config=config)
    lanes = Lanes(config, make_fabric(config), reporter, splits)
    split: Split = evaluation["protocol"].get("split", "test")
    _check_classes(loaded, lanes, split)
    loaded.model.to(lanes.fabric.device)
    lanes.shared_backbone = digest(loaded.model.backbone)
    return _Collecting(loaded, lanes, split, _protocol(evaluation), evaluation, pictures, reporter).report()


class _Collecting:
    def __init__(
        self, loaded: LoadedRun, lanes: Lanes, split: Split, protocol: Protocol, evaluation: dict[str, Any],
        pictures: int, reporter: Reporter,
    ) -> None:  # fmt: skip
        self.loaded, self.lanes, self.split, self.protocol = loaded, lanes, split, protocol
        self.evaluation, self.pictures, self.reporter = evaluation, pictures, reporter
        self.model: PrototypeModel = loaded.model
        run = loaded.run
        self.looks = kept_looks(
            run.evaluation_folder / "looks.json", run.best, self.model, lanes, split, protocol, reporter
        )  # fmt: skip

    def report(self) -> Report:
        run, config, evaluation = self.loaded.run, self.loaded.config, self.evaluation
        entries, classes, images = self._walls() if len(self.model.prototypes) else ([], self._classes(), {})
        rows = number_rows(evaluation)
        data = {
            "run": name_of(run.folder.resolve().name),
            "split": self.split,
            "model": model_facts(run, config, len(self.model.prototypes), len(self.loaded.classes)),
            "training": training_facts(run, config),
            "curves": curves(run.logged()),
            "numbers": {
                "headlines": [row for name in HEADLINES for row in rows if row["name"] == name],
                "rows": rows,
                "missing": not_measured(evaluation),
                "protocol": self._protocol_line(),
                "coverage_curve": evaluation.get("curves", {}),
            },
            "confusion": self._confusion(),
            "heads": self._heads(),
            "classes": classes,
            "prototypes": entries,
            "offenders": offenders(entries),
            "flags": [{"name": flag, "text": text, "count": counts(entries)[flag]} for flag, text in FLAGS.items()],
            "parts": sorted({entry["part"] for entry in entries if entry["part"]}),
            "heads_count": self.model.prototypes.groups,
            "counts": self._counts(),
            "notes": _notes(entries),
        }
        return Report(data, images)

    def _walls(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, bytes]]:
        """Rows, classes and sheets."""
        material = self._material()
        classes, images = self._classes(), {}
        entries: list[dict[str, Any]] = []
        for label, shown in enumerate(classes):
            made = wall(label, material)
            entries += made.entries
            tests = [material.pictures[index] for index in material.chosen[label]]
            shown["tests"] = [
                {"picture": name_of(seen.name), "predicted": seen.predicted, "probability": rounded(seen.probability)}
                for seen in tests
            ]
            for kind, tiles, make in (("photos.jpg", made.photos, photo_sheet), ("heat.png", made.heats, heat_sheet)):
                if tiles:
                    name = f"{label:03d}-{kind}"
                    images[name], layout = make(tiles)
                    shown[kind.split(".")[0]] = {"file": name} | layout
        return entries, classes, images

    def _material(self) -> Material:
        lanes, model, records = self.lanes, self.model, self.loaded.records
        side = min(tile_side(len(model.prototypes)), lanes.config.data.image_size // 16 * 16)
        own = members(model)
        dataset = lanes.dataset(self.split)
        chosen = spread_pictures(dataset.labels, len(own), self.pictures)
        on_pictures = {index: own[label] for label, rows in enumerate(chosen) for index in rows}
        sources = source_rows(records, lanes.dataset("train").names)
        return Material(
            model=model,
            records=records,
            looks=self.looks,
            parts=dataset.parts,
            chosen=chosen,
            pictures=glance_over(model, lanes, self.split, on_pictures, self.protocol, side, self.reporter),
            sources=glance_over(model, lanes, "train", sources, self.protocol, side, self.reporter),
            source_of={j: index for index, prototypes in sources.items() for j in prototypes},
        )

    def _classes(self) -> list[dict[str, Any]]:
        measured = class_numbers(self.loaded.run)
        right = self.looks.confusion.diagonal()
        pictures = self.looks.confusion.sum(1)
        return [
            {
                "name": name,
                "pictures": int(pictures[label]),
                "accuracy": rounded(float(right[label] / pictures[label])),
                "coverage": rounded(measured.get(name, {}).get("coverage")),
                "diversity": rounded(measured.get(name, {}).get("diversity")),
                "tests": [],
                "photos": None,
                "heat": None,
            }
            for label, name in enumerate(self.loaded.classes)
        ]

    def _confusion(self) -> dict[str, Any]:
        """Cells that are not 0, and the pairs that are confused most often."""
        found = self.looks.confusion.long()
        totals = found.sum(1).tolist()
        cells = [[i, j, int(found[i, j])] for i, j in found.nonzero().tolist()]
        wrong = sorted((cell for cell in cells if cell[0] != cell[1]), key=lambda cell: (-cell[2], cell[0], cell[1]))
        return {"cells": cells, "totals": totals, "wrong": sum(cell[2] for cell in wrong), "worst": wrong[:_CONFUSIONS]}

    def _heads(self) -> dict[str, Any]:
        """Heads × parts and heads × heads; None where there is nothing to show."""
        parts = self.lanes.dataset(self.split).parts
        on_parts = self.looks.heads_on_parts() if len(parts) else torch.zeros(0, 0)
        overlap = self.looks.heads_overlap()
        known = overlap[~overlap.isnan()]
        return {
            "parts": list(parts) if on_parts.numel() else [],
            "on_parts": _table(on_parts) if on_parts.numel() else None,
            "overlap": _table(overlap) if len(known) else None,
            "mean_overlap": rounded(float(known.mean())) if len(known) else None,
            "real": self.model.prototypes.groups > 1,
        }

    def _counts(self) -> dict[str, int]:
        records = self.loaded.records
        return {"prototypes": len(records), "kept": sum(record.kept for record in records)}

    def _protocol_line(self) -> str:
        used, protocol = self.evaluation["protocol"], self.protocol
        line = f"{used.get('data', '')}, {self.split}: {used.get('pictures', 0):,} pictures"
        if len(self.model.prototypes):
            line += f"; regions above percentile {protocol.percentile:g}, τ {protocol.tau:g}"
            line += f", parts {used['part_mode']}" if used.get("part_mode") else ""
            line += f", scope {used.get('scope', 'image')}"
        return f"{line}. 95 % intervals from {protocol.resamples:,} resamples."


def _notes(entries: list[dict[str, Any]]) -> list[str]:
    lost = {entry["prototype"] for entry in entries if entry["source"] and entry["source"]["tile"] is None}
    return [f"The training pictures of {len(lost)} prototypes are not at hand."] if lost else []


def _table(values: Tensor) -> list[list[float | None]]:
    return [[rounded(value, 3) for value in row] for row in values.tolist()]


def _one_process(config: Config) -> Config:
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"devices": 1, "nodes": 1})})


def _evaluate(run: Run, config: Config, splits: Splits | None, quiet: bool) -> dict[str, Any]:
    from dapl.evaluation import evaluate

    evaluate(run.folder, config=config, quiet=quiet, splits=splits)
    return evaluation_of(run)


def _protocol(evaluation: dict[str, Any]) -> Protocol:
    """The one of the numbers, so that pictures and matrices agree with them; always over pictures."""
    used = evaluation["protocol"]
    known = {f.name: used[f.name] for f in fields(Protocol) if used.get(f.name) is not None}
    return Protocol(**known | {"scope": "image"})


def _check_classes(loaded: LoadedRun, lanes: Lanes, split: Split) -> None:
    found = list(lanes.dataset(split).classes)
    if found != loaded.classes:
        raise DaplError(
            f"data: the {split} split has {len(found)} classes that are not the {len(loaded.classes)} of the run, or "
            "in another order; make the report with the data of the run."
        )
