"""All that the page of a run shows, as plain data and a few image files: no HTML, and no path of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapl.batches.run_data import RunData, Split
from dapl.common.errors import DaplError, WriteError
from dapl.common.files import check_writable
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.data.build import hand_over, list_files
from dapl.data.sample import Splits
from dapl.data.transforms import fit
from dapl.evaluation import evaluate
from dapl.evaluation.protocol import EvaluationProtocol, add_result, is_full
from dapl.evaluation.result import chance_sentence, region_text, warning_text
from dapl.evaluation.split_sums import cached_sums, looks_of
from dapl.explain.draw import head_colour, is_dashed, jpeg
from dapl.explain.drawings import labels_of, view_of
from dapl.explain.evidence import explain
from dapl.explain.parts import ModelRecords, facts_of, seen_of
from dapl.masks.doubts import made_note
from dapl.metrics.naming import clear_parts, is_background, part_text, share_text
from dapl.metrics.registry import HEADLINES
from dapl.models.contract import PrototypeModel
from dapl.processes.launch import make_processes
from dapl.report.entries import Walls, flag_counts, members, offenders, same_spot_groups
from dapl.report.facts import (
    class_numbers,
    curves,
    model_facts,
    name_of,
    not_measured,
    number_rows,
    other_numbers,
    rounded,
    training_facts,
)
from dapl.report.images import (
    ShownImage,
    heat_sheet,
    photo_sheet,
    show_images,
    source_rows,
    spread_images,
    tile_side,
)
from dapl.runs.loading import LoadedRun, load_run
from dapl.runs.run import Run, open_run

IMAGES = 3
"""Images of a class that each of its prototypes is shown on."""
_CONFUSIONS = 15
_STRIP_CLASSES = 10
"""Classes for which the strip of heads shows a prototype."""
_OVERVIEW_FILE, _OVERVIEW_ROWS = "overview.jpg", 12


@dataclass(frozen=True)
class Report:
    """What a page is made of."""

    data: dict[str, Any]
    """Plain values; docs/report.md names them."""
    images: dict[str, bytes] = field(default_factory=dict)
    """Two sheets per class, by file name."""


def collect(
    folder: Path | str,
    config: Config | None = None,
    images: int = IMAGES,
    splits: Splits | None = None,
    quiet: bool = False,
) -> Report:
    """Collect what the page shows of a run's best model; `dapl evaluate` is run first where its numbers are missing.

    >>> report = collect("runs/cub20")                    # doctest: +SKIP
    >>> len(report.data["prototypes"])                    # doctest: +SKIP
    200

    Args:
        folder: the run directory.
        config: replaces the run's own where only data, caches or runtime differ.
        images: images of its class that each prototype is shown on.
        splits: the data of a run that was trained on data handed over in Python.
        quiet: print no progress.
    """
    if images < 1:
        raise DaplError(f"images: is {images}; each prototype must be shown on one image or more.")
    run, config = open_run(folder, config)
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"devices": 1, "nodes": 1})})
    hand_over(config.data, splits)
    reporter = Reporter(quiet)
    try:
        evaluation = run.evaluation()
    except DaplError:
        evaluation = {}
    if not evaluation or not is_full(evaluation):
        evaluation = _measured(run, config, evaluation, splits, quiet)
    loaded = load_run(run.folder, config=config)
    split: Split = evaluation["protocol"].get("split", "test")
    processes = make_processes(config)
    run_data = RunData.of_model(config, loaded.model, loaded.classes, split, processes, reporter, splits)
    return _Collecting(loaded, run_data, split, _protocol(evaluation), evaluation, images, reporter).report()


def _measured(run: Run, config: Config, before: dict[str, Any], splits: Splits | None, quiet: bool) -> dict[str, Any]:
    """What `dapl evaluate` finds, kept in the run where that can be written: others may only read it.

    Without the rows of chance, which take several times as long as the numbers and all that the page shows.
    """
    try:
        check_writable(run.folder)
    except WriteError:
        found = evaluate(run.folder, config=config, quiet=quiet, splits=splits, files=False, chance=False)
        return add_result(before, found.to_json())[0]
    evaluate(run.folder, config=config, quiet=quiet, splits=splits, chance=False)
    return run.evaluation()


@dataclass
class _Collecting:
    loaded: LoadedRun
    run_data: RunData
    split: Split
    protocol: EvaluationProtocol
    evaluation: dict[str, Any]
    shown_on: int
    reporter: Reporter

    def __post_init__(self) -> None:
        self.model: PrototypeModel = self.loaded.model
        self.sums = cached_sums(self.loaded, self.run_data, self.split, self.protocol, self.reporter)
        looks = looks_of(self.sums, self.model, self.run_data.dataset(self.split).parts)
        self.known = ModelRecords(self.loaded.classes, self.loaded.records, looks)

    def report(self) -> Report:
        run, config, evaluation = self.loaded.run, self.loaded.config, self.evaluation
        entries, classes, images = self._walls() if len(self.model.prototypes) else ([], self._classes(), {})
        rows, records = number_rows(evaluation), self.loaded.records
        kept = sum(record.kept for record in records)
        overview = self._overview(classes, images) if images else None
        lost = {entry["prototype"] for entry in entries if entry["source"] and entry["source"]["tile"] is None}
        data = {
            "run": name_of(run.folder.resolve().name),
            "split": self.split,
            "model": model_facts(run, config, len(records), kept, len(self.loaded.classes)),
            "training": training_facts(run, config),
            "curves": curves(run.logged()),
            "numbers": {
                "headlines": [row for name in HEADLINES for row in rows if row["name"] == name],
                "rows": rows,
                "missing": not_measured(evaluation),
                "protocol": self._protocol_line(),
                "notice": evaluation["protocol"].get("notice"),
                "chance": chance_sentence(evaluation.get("chance")),
                "others": other_numbers(evaluation),
                "coverage_curve": evaluation.get("curves", {}),
            },
            "confusion": self._confusion(),
            "size": config.data.image_size,
            "overview": overview,
            "strip": self._strip(entries),
            "groups": same_spot_groups(entries),
            "heads": self._heads(),
            "classes": classes,
            "prototypes": entries,
            "offenders": offenders(entries),
            "flags": flag_counts(entries),
            "parts": sorted({name for entry in entries for name in entry["names"]}),
            "heads_count": self.model.prototypes.groups,
            "counts": {"prototypes": len(records), "kept": kept},
            "warnings": [warning_text(evaluation["warnings"])] if evaluation.get("warnings") else [],
            "notes": [f"The training images of {len(lost)} prototypes are not at hand."] if lost else [],
            "masks": self._masks_note() if entries else None,
        }
        return Report(data, images)

    def _masks_note(self) -> str | None:
        """Said where the shares on the object rest on masks that no person has drawn."""
        try:
            listing = list_files(self.loaded.config.data)
        except DaplError:  # some of the data is gone, which other lines say
            return None
        return None if listing is None or listing.masks is None else made_note(listing.masks)

    def _walls(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, bytes]]:
        """Rows, classes and sheets."""
        run_data, model, records = self.run_data, self.model, self.loaded.records
        dataset, own = run_data.dataset(self.split), members(model)
        chosen = spread_images(dataset.labels, len(own), self.shown_on)
        tests = self._shown(self.split, {index: own[label] for label, rows in enumerate(chosen) for index in rows})
        from_images = source_rows(records, run_data.dataset("train").names)
        sources = self._shown("train", from_images)
        source_of = {j: sources[index] for index, prototypes in from_images.items() for j in prototypes}
        shown = [[tests[index] for index in rows] for rows in chosen]
        walls = Walls(model, self.known, self.sums, dataset.parts, shown, source_of)
        classes, images = self._classes(), {}
        entries: list[dict[str, Any]] = []
        for label, facts in enumerate(classes):
            made = walls.wall(label)
            entries += made.entries
            facts["tests"] = [
                {"image": name_of(test.name), "predicted": test.predicted, "probability": rounded(test.probability)}
                for test in shown[label]
            ]
            for kind, tiles, make in (("photos.jpg", made.photos, photo_sheet), ("heat.png", made.heats, heat_sheet)):
                if tiles:
                    name = f"{label:03d}-{kind}"
                    images[name], layout = make(tiles)
                    facts[kind.split(".")[0]] = {"file": name} | layout
        return entries, classes, images

    def _overview(self, classes: list[dict[str, Any]], images: dict[str, bytes]) -> dict[str, Any] | None:
        """One image of the split that is taken right, large, with the regions of all prototypes of its class."""
        dataset = self.run_data.dataset(self.split)
        shown = ((label, test) for label, one in enumerate(classes) for test in one["tests"])
        found = next(((label, test) for label, test in shown if test["predicted"] == label), None)
        if found is None:
            return None
        label, test = found
        index = next(n for n, name in enumerate(dataset.names) if name_of(name) == test["image"])
        data = self.run_data.config.data
        whole = dataset[index]
        sample = fit(whole, data.image_size, data.fit)
        image = sample.image.as_subclass(Tensor)
        own, facts = members(self.model)[label], facts_of(sample, dataset.parts)
        why = explain(self.model, image, self.known, classes=[label], top=_OVERVIEW_ROWS, facts=facts, among=own)
        rows = why.classes[0].rows
        view = view_of(rows, data.image_size)
        images[_OVERVIEW_FILE] = jpeg(image, 90)
        return {
            "image": test["image"],
            "class": label,
            "file": _OVERVIEW_FILE,
            "rows": [{"outline": row.outline, "colour": row.colour, "dashed": row.dashed} for row in rows],
            "view": view,
            "seen": seen_of(whole, data.fit),
            "labels": [asdict(one) for one in labels_of(rows, why.heads, data.image_size, view)],
        }

    def _strip(self, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """For each head what it looks at: its name over all classes, and its prototypes of some classes."""
        if self.model.prototypes.groups < 2:
            return []
        count = len(self.loaded.classes)
        chosen = {label * count // _STRIP_CLASSES for label in range(_STRIP_CLASSES)} if count > _STRIP_CLASSES else {}
        parts = self.run_data.dataset(self.split).parts
        shares, shared = self.sums.heads_on_parts(), self.sums.heads_shared()
        strip = []
        for head in range(self.model.prototypes.groups):
            every = [n for n, e in enumerate(entries) if e["head"] == head and e["kept"]]
            own = [n for n in every if entries[n]["source"] and (not chosen or entries[n]["class"] in chosen)]
            named = {name: float(shares[k, head]) for k, name in enumerate(parts) if shares[k, head] > 0}
            common = {name: float(shared[k, head]) for k, name in enumerate(parts) if shares[k, head] > 0}
            on_object = [entries[n]["on_object"] for n in every if entries[n]["on_object"] is not None]
            mean = sum(on_object) / len(on_object) if on_object else None
            called = part_text(clear_parts(named, common))
            instead = "no clear part" if len(parts) else "" if mean is None else f"{share_text(mean)} on the object"
            strip.append(
                {
                    "head": head,
                    "colour": head_colour(head),
                    "dashed": is_dashed(head),
                    "name": called,
                    "text": called or instead,
                    "background": mean is not None and is_background(mean),
                    "entries": own,
                }
            )
        return strip

    def _shown(self, split: Split, prototypes: Mapping[int, Sequence[int]]) -> dict[int, ShownImage]:
        side = min(tile_side(len(self.model.prototypes)), self.run_data.config.data.image_size // 16 * 16)
        return show_images(self.model, self.run_data, split, prototypes, self.protocol, side, self.reporter)

    def _classes(self) -> list[dict[str, Any]]:
        measured = class_numbers(self.loaded.run)
        right, images = self.sums.confusion.diagonal(), self.sums.confusion.sum(1)
        return [
            {
                "name": name,
                "images": int(images[label]),
                "accuracy": rounded(float(right[label] / images[label])),
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
        found = self.sums.confusion.long()
        totals = found.sum(1).tolist()
        cells = [[i, j, int(found[i, j])] for i, j in found.nonzero().tolist()]
        wrong = sorted((cell for cell in cells if cell[0] != cell[1]), key=lambda cell: (-cell[2], cell[0], cell[1]))
        return {"cells": cells, "totals": totals, "wrong": sum(cell[2] for cell in wrong), "worst": wrong[:_CONFUSIONS]}

    def _heads(self) -> dict[str, Any]:
        """Heads × parts and heads × heads; None where there is nothing to show."""
        parts = self.run_data.dataset(self.split).parts
        on_parts = self.sums.heads_on_parts() if len(parts) else torch.zeros(0, 0)
        overlap = self.sums.heads_overlap()
        known = overlap[~overlap.isnan()]
        return {
            "parts": list(parts) if on_parts.numel() else [],
            "on_parts": _table(on_parts) if on_parts.numel() else None,
            "overlap": _table(overlap) if len(known) else None,
            "mean_overlap": rounded(float(known.mean())) if len(known) else None,
            "real": self.model.prototypes.groups > 1,
        }

    def _protocol_line(self) -> str:
        used, protocol = self.evaluation["protocol"], self.protocol
        line = f"{used.get('data', '')}, {self.split}: {used['images']:,} images"
        if len(self.model.prototypes):
            line += f"; {region_text(protocol.to_json())}, τ {protocol.tau:g}"
            line += f", parts {used['part_mode']}" if used.get("part_mode") else ""
            line += f", scope {used.get('scope', 'image')}"
        return f"{line}. 95 % intervals from {protocol.resamples:,} resamples."


def _table(values: Tensor) -> list[list[float | None]]:
    return [[rounded(value, 3) for value in row] for row in values.tolist()]


def _protocol(evaluation: dict[str, Any]) -> EvaluationProtocol:
    """The one of the numbers, so that images and matrices agree with them; always over images."""
    used = evaluation["protocol"]
    known = {f.name: used[f.name] for f in fields(EvaluationProtocol) if used.get(f.name) is not None}
    return EvaluationProtocol(**known | {"scope": "image"})
