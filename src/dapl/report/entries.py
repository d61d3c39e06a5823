"""The prototypes as rows of the page, what is wrong with them, and the worst of each kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from dapl.explain.evidence import BACKGROUND_BELOW
from dapl.models.contract import PrototypeModel
from dapl.models.prototypes import class_table
from dapl.report.facts import name_of, rounded
from dapl.report.glances import Glance, Seen
from dapl.report.split_sums import SplitSums
from dapl.runs.records import PrototypeRecord

DUPLICATE_FROM = 0.5
"""Two prototypes of a class are duplicates when the mean IoU of their regions is at least this."""
WORST = 10
"""Shown of each kind."""
FLAGS = {
    "background": f"less than {100 * BACKGROUND_BELOW:.0f} % of it lies on the object",
    "duplicate": f"its region overlaps that of another one of the class: mean IoU {DUPLICATE_FROM:g} or more",
    "ungrounded": "no training patch of the class had enough foreground, so the best one was taken",
    "shared": "stands for several classes",
    "not projected": "is no training patch",
    "removed": "pruned or merged: it does not count any more",
}
"""In the order in which the page shows them, with what each means."""


@dataclass(frozen=True)
class Material:
    """All that rows are made of."""

    model: PrototypeModel
    records: Sequence[PrototypeRecord]
    sums: SplitSums
    parts: Sequence[str]
    chosen: Sequence[Sequence[int]]
    """For each class the images of the split that are shown."""
    images: Mapping[int, Seen]
    """Those, by index."""
    sources: Mapping[int, Seen]
    """Training images by index."""
    source_of: Mapping[int, int]
    """Prototype → training image."""

    @cached_property
    def members(self) -> list[list[int]]:
        return members(self.model)

    @cached_property
    def table(self) -> list[list[int]]:
        """C×M: the order in which ``sums`` counts the prototypes of a class."""
        prototypes = self.model.prototypes
        return class_table(prototypes.membership, prototypes.kept)[0].tolist()

    @cached_property
    def weights(self) -> Tensor:
        return self.model.class_weights().double().cpu()

    @cached_property
    def shares(self) -> tuple[Tensor, Tensor, Tensor]:
        """Foreground C×M, parts C×M×K, overlap C×M×M."""
        return self.sums.foreground_shares(), self.sums.part_shares(), self.sums.overlaps()


@dataclass(frozen=True)
class ClassWall:
    """The rows of one class, and the images of its two sheets in the order of their numbers."""

    entries: list[dict[str, Any]]
    photos: list[Tensor]
    heats: list[Tensor]


def members(model: PrototypeModel) -> list[list[int]]:
    """For each class its prototypes, those that were removed as well."""
    return [column.nonzero().flatten().tolist() for column in model.prototypes.membership.T]


def wall(label: int, material: Material) -> ClassWall:
    """Every prototype of a class."""
    tests = [material.images[index] for index in material.chosen[label]]
    made = ClassWall([], [seen.image for seen in tests], [])
    tiles: dict[int, int] = {}
    for j in material.members[label]:
        entry = _facts(j, label, material)
        entry["weight"] = rounded(float(material.weights[j, label])) if entry["kept"] else None
        entry["tests"] = [_on_image(seen.glances[j], tile, made.heats) for tile, seen in enumerate(tests)]
        entry["source"] = _source(j, material, made, tiles)
        entry["part"] = entry["source"] and entry["source"]["part"]
        entry["flags"] = _flags(entry, material.records[j])
        made.entries.append(entry)
    return made


def _facts(j: int, label: int, material: Material) -> dict[str, Any]:
    record, table = material.records[j], material.table[label]
    foreground, parts, overlaps = (values[label, table.index(j)] for values in material.shares)
    membership = material.model.prototypes.membership
    return {
        "prototype": j,
        "class": label,
        "classes": membership[j].nonzero().flatten().tolist(),
        "head": record.head if material.model.prototypes.groups > 1 else None,
        "kept": record.kept,
        "reason": None if record.kept else record.reason or "removed",
        "foreground": {
            "patch": rounded(record.foreground_share),
            "validation": rounded(record.region_foreground),
            "test": rounded(float(foreground)),
        },
        "parts": _usual_parts(parts, material.parts),
        "overlap": _nearest(overlaps, table),
        "distance": rounded(record.distance),
    }


def _usual_parts(shares: Tensor, names: Sequence[str], most: int = 3) -> list[list[Any]]:
    """The parts that it is on most often, where they can be seen: [name, share]."""
    if not len(names):
        return []
    order = shares.nan_to_num(-1.0).argsort(descending=True, stable=True)[:most].tolist()
    return [[names[k], rounded(float(shares[k]))] for k in order if shares[k] > 0]


def _nearest(overlaps: Tensor, table: list[int]) -> dict[str, Any] | None:
    """The prototype of the class whose region overlaps its own most; overlaps: M."""
    if not len(overlaps) or bool(overlaps.isnan().all()):
        return None
    best = int(overlaps.nan_to_num(-1.0).argmax())
    return {"with": table[best], "iou": rounded(float(overlaps[best]))}


def _on_image(glance: Glance, tile: int, heats: list[Tensor]) -> dict[str, Any]:
    heats.append(glance.heat)
    return {
        "tile": tile,
        "heat": len(heats) - 1,
        "box": [rounded(value) for value in glance.box],
        "score": rounded(glance.score),
        "part": glance.part,
        "foreground": rounded(glance.foreground),
    }


def _source(j: int, material: Material, made: ClassWall, tiles: dict[int, int]) -> dict[str, Any] | None:
    """The image that it came from, with the box that projection wrote down; ``tiles``: images that are there."""
    record, index = material.records[j], material.source_of.get(j)
    if record.image is None:
        return None
    if index is None:
        return {
            "image": name_of(record.image),
            "tile": None,
            "heat": None,
            "box": None,
            "part": None,
            "score": None,
            "foreground": None,
        }
    seen = material.sources[index]
    if index not in tiles:
        tiles[index] = len(made.photos)
        made.photos.append(seen.image)
    return {"image": name_of(record.image)} | _on_image(seen.glances[j], tiles[index], made.heats)


def _flags(entry: dict[str, Any], record: PrototypeRecord) -> list[str]:
    if not entry["kept"]:
        return ["removed"]
    shares = [share for share in entry["foreground"].values() if share is not None]
    overlap = entry["overlap"]
    found = {
        "background": any(share < BACKGROUND_BELOW for share in shares),
        "duplicate": overlap is not None and overlap["iou"] >= DUPLICATE_FROM,
        "ungrounded": record.grounded is False,
        "shared": len(entry["classes"]) > 1,
        "not projected": record.image is None,
    }
    return [flag for flag in FLAGS if found.get(flag)]


def offenders(entries: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The worst of those that count: ``entry`` is the number of a row, ``value`` what makes it bad."""
    counted = [(number, entry) for number, entry in enumerate(entries) if entry["kept"]]
    return {
        "background": _background(counted),
        "duplicate": _duplicates(counted),
        "ungrounded": [
            {"entry": number, "value": entry["foreground"]["patch"]}
            for number, entry in sorted(counted, key=lambda pair: _or_one(pair[1]["foreground"]["patch"]))
            if "ungrounded" in entry["flags"]
        ][:WORST],
    }


def _background(counted: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Least on the object over the images of the split; by its own patch where that is not known."""

    def share(entry: dict[str, Any]) -> float:
        shares = entry["foreground"]
        return _or_one(shares["test"] if shares["test"] is not None else shares["patch"])

    worst = sorted(((share(entry), number) for number, entry in counted if "background" in entry["flags"]))
    return [{"entry": number, "value": value} for value, number in worst[:WORST]]


def _duplicates(counted: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Pairs, each once."""
    number_of = {(entry["class"], entry["prototype"]): number for number, entry in counted}
    pairs = {}
    for number, entry in counted:
        if "duplicate" in entry["flags"]:
            other = number_of[entry["class"], entry["overlap"]["with"]]
            pairs[min(number, other), max(number, other)] = entry["overlap"]["iou"]
    worst = sorted(pairs.items(), key=lambda pair: -pair[1])[:WORST]
    return [{"entry": first, "other": second, "value": value} for (first, second), value in worst]


def _or_one(value: float | None) -> float:
    return 1.0 if value is None or math.isnan(value) else value


def counts(entries: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Number of prototypes with each flag; one of several classes counts once."""
    found = {flag: {entry["prototype"] for entry in entries if flag in entry["flags"]} for flag in FLAGS}
    return {flag: len(prototypes) for flag, prototypes in found.items()}
