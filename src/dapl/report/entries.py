"""The prototypes as rows of the page, what is wrong with them, and the worst of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dapl.explain.evidence import BACKGROUND_BELOW
from dapl.models.contract import PrototypeModel
from dapl.models.prototypes import class_table
from dapl.report.facts import name_of, rounded
from dapl.report.images import ShownImage
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
class ClassWall:
    """The rows of one class, and the tiles of its two sheets in the order of their numbers."""

    entries: list[dict[str, Any]]
    photos: list[Tensor]
    heats: list[Tensor]

    def tile(self, shown: ShownImage, j: int, photo: int) -> dict[str, Any]:
        """Add the heat map of prototype j and say where it and its photograph are."""
        self.heats.append(shown.heats[j])
        return {"tile": photo, "heat": len(self.heats) - 1} | shown.values[j]


def members(model: PrototypeModel) -> list[list[int]]:
    """For each class its prototypes, those that were removed as well."""
    return [column.nonzero().flatten().tolist() for column in model.prototypes.membership.T]


class Walls:
    """Makes the rows of every class."""

    def __init__(
        self,
        model: PrototypeModel,
        records: Sequence[PrototypeRecord],
        sums: SplitSums,
        parts: Sequence[str],
        tests: Sequence[Sequence[ShownImage]],
        sources: Mapping[int, ShownImage],
    ) -> None:
        """``tests``: for each class the images of the split shown; ``sources``: by prototype where it came from."""
        self.model, self.records, self.parts, self.tests, self.sources = model, records, parts, tests, sources
        self.members, self.weights = members(model), model.class_weights().double().cpu()
        prototypes = model.prototypes
        self.table = class_table(prototypes.membership, prototypes.kept)[0].tolist()  # the order in which sums count
        self.shares = sums.foreground_shares(), sums.part_shares(), sums.overlaps()

    def wall(self, label: int) -> ClassWall:
        """Every prototype of a class."""
        tests = self.tests[label]
        made = ClassWall([], [shown.image for shown in tests], [])
        photos: dict[str, int] = {}  # source images that are on the sheet already
        for j in self.members[label]:
            entry = self._facts(j, label)
            entry["tests"] = [made.tile(shown, j, photo) for photo, shown in enumerate(tests)]
            entry["source"] = self._source(j, made, photos)
            entry["part"] = entry["source"] and entry["source"]["part"]
            entry["flags"] = _flags(entry, self.records[j])
            made.entries.append(entry)
        return made

    def _facts(self, j: int, label: int) -> dict[str, Any]:
        record, table = self.records[j], self.table[label]
        foreground, parts, overlaps = (values[label, table.index(j)] for values in self.shares)
        prototypes = self.model.prototypes
        return {
            "prototype": j,
            "class": label,
            "classes": prototypes.membership[j].nonzero().flatten().tolist(),
            "head": record.head if prototypes.groups > 1 else None,
            "kept": record.kept,
            "reason": None if record.kept else record.reason or "removed",
            "foreground": {
                "patch": rounded(record.foreground_share),
                "validation": rounded(record.region_foreground),
                "test": rounded(float(foreground)),
            },
            "parts": _usual_parts(parts, self.parts),
            "overlap": _nearest(overlaps, table),
            "distance": rounded(record.distance),
            "weight": rounded(float(self.weights[j, label])) if record.kept else None,
        }

    def _source(self, j: int, made: ClassWall, photos: dict[str, int]) -> dict[str, Any] | None:
        """The image that a prototype came from; None before projection, without a tile where it is not at hand."""
        image, shown = self.records[j].image, self.sources.get(j)
        if image is None:
            return None
        if shown is None:
            return {"image": name_of(image)} | dict.fromkeys(("tile", "heat", "box", "part", "score", "foreground"))
        if shown.name not in photos:
            photos[shown.name] = len(made.photos)
            made.photos.append(shown.image)
        return {"image": name_of(image)} | made.tile(shown, j, photos[shown.name])


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


def _flags(entry: dict[str, Any], record: PrototypeRecord) -> list[str]:
    if not entry["kept"]:
        return ["removed"]
    overlap = entry["overlap"]
    found = {
        "background": any(_or_one(share) < BACKGROUND_BELOW for share in entry["foreground"].values()),
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
        "background": _least(counted, "background", ("test", "patch")),
        "duplicate": _duplicates(counted),
        "ungrounded": _least(counted, "ungrounded", ("patch",)),
    }


def _least(counted: Sequence[tuple[int, dict[str, Any]]], flag: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The prototypes with a flag that lie least on the object, by the first of the shares that is known."""
    found = []
    for number, entry in counted:
        if flag in entry["flags"]:
            shares = (entry["foreground"][key] for key in keys)
            found.append({"entry": number, "value": next((share for share in shares if share is not None), None)})
    return sorted(found, key=lambda one: _or_one(one["value"]))[:WORST]


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
    return 1.0 if value is None else value


def flag_counts(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each flag means and how many prototypes have it; one of several classes counts once."""
    found = {flag: {entry["prototype"] for entry in entries if flag in entry["flags"]} for flag in FLAGS}
    return [{"name": flag, "text": text, "count": len(found[flag])} for flag, text in FLAGS.items()]
