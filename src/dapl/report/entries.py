"""The prototypes as rows of the page, what is wrong with them, and the worst of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dapl.evaluation.split_sums import SplitSums
from dapl.explain.draw import head_colour, is_dashed
from dapl.explain.parts import ModelRecords, slots_of
from dapl.metrics.naming import SAME_FROM, groups_of
from dapl.models.contract import PrototypeModel
from dapl.report.facts import name_of, rounded
from dapl.report.images import ShownImage
from dapl.runs.schemas import PrototypeRecord

SAME_SPOT = "same spot"
_OF_A_TILE = ("tile", "heat", "outline", "view", "here", "score", "foreground")
WORST = 10
"""Shown of each kind."""
FLAGS = {
    "background": "more than half of it lies off the object, mean over the images measured",
    SAME_SPOT: f"its region is nearly that of another one of the class: mean IoU {SAME_FROM:g} or more",
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
    return [row[there].tolist() for row, there in zip(*model.prototypes.counted(), strict=True)]


class Walls:
    """Makes the rows of every class."""

    def __init__(
        self,
        model: PrototypeModel,
        known: ModelRecords,
        sums: SplitSums,
        parts: Sequence[str],
        tests: Sequence[Sequence[ShownImage]],
        sources: Mapping[int, ShownImage],
    ) -> None:
        """``tests``: for each class the images of the split shown; ``sources``: by prototype where it came from."""
        self.model, self.known, self.parts, self.tests, self.sources = model, known, parts, tests, sources
        self.records, self.slots = known.records, slots_of(model)
        self.members, self.weights = members(model), model.class_weights().double().cpu()
        prototypes = model.prototypes
        self.classes = prototypes.classes_of()
        self.table = prototypes.by_class()[0].tolist()  # the order in which sums count
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
            entry["flags"] = _flags(entry, self.records[j])
            made.entries.append(entry)
        return made

    def _facts(self, j: int, label: int) -> dict[str, Any]:
        record, table = self.records[j], self.table[label]
        _, parts, overlaps = (values[label, table.index(j)] for values in self.shares)
        prototypes, said, slot = self.model.prototypes, self.known.described(j), self.slots[j]
        return {
            "prototype": j,
            "class": label,
            "classes": self.classes[j],
            "head": record.head if prototypes.groups > 1 else None,
            "colour": head_colour(slot),
            "dashed": is_dashed(slot),
            "kept": record.kept,
            "reason": None if record.kept else record.reason or "removed",
            "foreground": {
                "patch": rounded(record.foreground_share),
                "validation": rounded(record.region_foreground),
                "test": self.known.looks[j].on_object,
            },
            "on_object": rounded(said.on_object),
            "background": said.background,
            "part": said.name,
            "names": [name for name, _ in said.parts],
            "parts": _usual_parts(parts, self.parts),
            "same_spot": list(said.same_spot),
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
            return {"image": name_of(image)} | dict.fromkeys(
                ("tile", "heat", "outline", "view", "here", "score", "foreground")
            )
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
    found = {
        "background": entry["background"],
        SAME_SPOT: bool(entry["same_spot"]),
        "ungrounded": record.grounded is False,
        "shared": len(entry["classes"]) > 1,
        "not projected": record.image is None,
    }
    return [flag for flag in FLAGS if found.get(flag)]


def offenders(entries: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The worst of those that count: ``entry`` is the number of a row, ``value`` what makes it bad."""
    counted = [(number, entry) for number, entry in enumerate(entries) if entry["kept"]]
    return {
        "background": _least(counted, "background", lambda entry: entry["on_object"]),
        "ungrounded": _least(counted, "ungrounded", lambda entry: entry["foreground"]["patch"]),
    }


def _least(
    counted: Sequence[tuple[int, dict[str, Any]]], flag: str, share: Callable[[dict[str, Any]], float | None]
) -> list[dict[str, Any]]:
    """The prototypes with a flag that lie least on the object; one of several classes is shown once."""
    found = {entry["prototype"]: {"entry": n, "value": share(entry)} for n, entry in counted if flag in entry["flags"]}
    return sorted(found.values(), key=lambda one: 1.0 if one["value"] is None else one["value"])[:WORST]


def same_spot_groups(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prototypes of a class that look at the same spot, each group once: with heads, over all classes where they do.

    ``heads`` (None for a system without them), ``classes`` and ``prototypes`` are numbers, ``names`` the parts that
    most of them are on.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    by_class: dict[int, dict[int, dict[str, Any]]] = {}
    for entry in entries:
        if entry["kept"]:
            by_class.setdefault(entry["class"], {})[entry["prototype"]] = entry
    for label, own in by_class.items():
        for group in groups_of({j: entry["same_spot"] for j, entry in own.items()}):
            heads = sorted({own[j]["head"] for j in group} - {None})
            key = ("heads", *heads) if heads else ("class", label, *group)
            one = found.setdefault(key, {"heads": heads or None, "classes": [], "prototypes": [], "named": Counter()})
            one["classes"].append(label)
            one["prototypes"] += group
            one["named"].update(name for j in group for name in own[j]["names"])
    groups = sorted(found.values(), key=lambda one: -len(one["prototypes"]))
    return [one | {"names": [name for name, _ in one.pop("named").most_common(2)]} for one in groups]


def flag_counts(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each flag means and how many prototypes have it; one of several classes counts once."""
    found = {flag: {entry["prototype"] for entry in entries if flag in entry["flags"]} for flag in FLAGS}
    return [{"name": flag, "text": text, "count": len(found[flag])} for flag, text in FLAGS.items()]
