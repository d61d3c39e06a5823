"""`dapl prepare check`: a data set looked over, with a sheet of its images, before an hour is spent on it."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFont

from dapl.common.errors import DaplError
from dapl.common.files import remove, replacing, write_json
from dapl.common.progress import Reporter
from dapl.config import DataSection
from dapl.data.build import build_splits, hand_over, list_files, split_listing
from dapl.data.listing import Fault, FileDataset, Listing
from dapl.data.sample import SPLITS, Dataset, Sample, Splits, Subset
from dapl.data.transforms import fit
from dapl.explain.draw import TileSheet, draw_annotations, fitting_text, part_colour
from dapl.masks.doubts import MaskDoubt, doubt_counts, mask_doubt

KINDS = {
    "image": "unreadable",
    "size": "annotated at another size",
    "mask": "masks that do not fit",
    "empty mask": "masks without foreground",
    "no mask": "images without a mask",
    "keypoints": "keypoints outside the image",
    "box": "boxes outside the image",
    "left out": "left out",
    "class": "classes that lack images",
    "duplicate": "the same image again",
}
"""Everything that can be wrong, as the summary calls it."""
SHOWN_LINES = 5
SHEET = 60
"""Images on the contact sheet, at most."""
WORST = 24
"""Masks on the sheet of the worst, at most."""


@dataclass
class CheckReport:
    """What `check` found."""

    data: str
    classes: list[str]
    parts: list[str]
    counts: dict[str, list[int]]
    """By split, the images of each class."""
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    images: int = 0
    masks: int = 0
    with_points: int = 0
    duplicates: list[list[dict[str, str]]] = field(default_factory=list)
    """Groups of images with the same pixels: split, name and class of each."""
    doubts: dict[str, MaskDoubt] = field(default_factory=dict)
    """Masks to look at, by the name of their image: a speck, half of the image, several pieces. They may be right."""
    in_square: float | None = None
    """The share of the object that the centre square keeps, the mean over images; None without masks, or where all
    images are square."""

    def __repr__(self) -> str:
        return f"CheckReport({self.data}: {self.images} images, {len(self.faults)} faults)"

    @property
    def clean(self) -> bool:
        return not self.faults

    @property
    def doubtful_share(self) -> float:
        """The share of the masks that should be looked at."""
        return len(self.doubts) / self.masks if self.masks else 0.0


def check(
    config: DataSection, out: Path | None = None, quiet: bool = False, splits: Splits | None = None
) -> CheckReport:
    """Read every image of a data set once; with ``out``, write check.json and check.png there, and masks.png.

    masks.png shows the masks that look most as if they were wrong; it is there only where there are such.

    ``splits``: the data, where ``config`` is `GivenData`.

    >>> check(data_config(Path("birds")).data)  # doctest: +SKIP
    CheckReport(birds: 60 images, 0 faults)
    """
    hand_over(config, splits)
    listing = list_files(config)
    if splits is None:
        splits = build_splits(config) if listing is None else _lenient_splits(listing, config)
    classes, name = list(splits.train.classes), getattr(config, "name", "?")
    labels = {split: np.array(getattr(splits, split).labels, int) for split in SPLITS}
    counts = {split: np.bincount(found, minlength=len(classes)).tolist() for split, found in labels.items()}
    report = CheckReport(name if listing is None else listing.source, classes, list(splits.train.parts), counts)
    if listing is not None:
        report.faults, report.notes = list(listing.faults), list(listing.notes)
    digests: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    wanted, wrong = _to_show(splits), {fault.name for fault in report.faults}
    tiles: list[_Tile] = []
    worst: list[tuple[float, _Tile]] = []
    kept, square = 0.0, True
    with Reporter(quiet).track("images", sum(len(getattr(splits, split)) for split in SPLITS)) as advance:
        for split, index, dataset in _rows(splits):
            sample, faults = _examine(dataset, index)
            report.faults += faults
            if sample is not None:
                report.images += 1
                report.masks += sample.mask is not None
                report.with_points += sample.visible is not None and bool(sample.visible.any())
                digests[_digest(sample)].append((split, sample.name, sample.label))
                if (split, index) in wanted or (faults and len(tiles) < SHEET):
                    is_wrong = bool(faults) or sample.name in wrong
                    tiles.append(_Tile(report.classes[sample.label], split, sample, is_wrong))
                if sample.mask is not None:
                    kept += _in_square(sample)
                    square &= sample.image.shape[-1] == sample.image.shape[-2]
                if sample.mask is not None and (doubt := mask_doubt(sample.mask.numpy().astype(bool))) is not None:
                    report.doubts[sample.name] = doubt
                    worst.append((doubt.badness, _Tile(str(doubt), split, sample, True)))
                    worst = sorted(worst, key=lambda entry: -entry[0])[:WORST]
            advance(1)
    report.in_square = None if square else kept / report.masks
    _find_duplicates(report, digests)
    _look_at_classes(report)
    if out is not None:
        kinds = dict(Counter(fault.kind for fault in report.faults))
        write_json(out / "check.json", asdict(report) | {"clean": report.clean, "faults_by_kind": kinds})
        with replacing(out / "check.png") as temporary:
            _draw_sheet(tiles[:SHEET], report.parts).save(temporary, format="PNG")
        remove(out / "masks.png")
        if worst:
            with replacing(out / "masks.png") as temporary:
                _draw_sheet([tile for _, tile in worst], (), in_order=True).save(temporary, format="PNG")
    return report


# --- reading --------------------------------------------------------------------------------------------------------


def _lenient_splits(listing: Listing, config: DataSection) -> Splits:
    """As for training, but nothing is refused."""
    if not listing.records["train"]:
        reasons = "\n".join(fault.text for fault in listing.faults[:SHOWN_LINES])
        expected = "expected ROOT/<class>/<image>, or ROOT/train/<class>/<image>."
        raise DaplError(reasons or f"{listing.source}: holds no image; {expected}")
    return split_listing(listing, config)


def _rows(splits: Splits) -> Iterator[tuple[str, int, Dataset]]:
    for split in SPLITS:
        dataset = getattr(splits, split)
        for index in range(len(dataset)):
            yield split, index, dataset


def _examine(dataset: Dataset, index: int) -> tuple[Sample | None, list[Fault]]:
    while isinstance(dataset, Subset):
        index, dataset = dataset.indices[index], dataset.dataset
    if isinstance(dataset, FileDataset):
        sample, faults = dataset.examine(index)
    else:
        try:
            sample, faults = dataset[index], []
        except DaplError as error:
            return None, [Fault("image", dataset.names[index], str(error))]
    if sample is not None and sample.mask is not None and not sample.mask.any():
        faults.append(Fault("empty mask", sample.name, f"{sample.name}: its mask has no foreground; draw it again."))
    return sample, faults


def _digest(sample: Sample) -> str:
    """Taken from the decoded pixels, so that another name, format or header does not hide a copy."""
    shape = str(tuple(sample.image.shape)).encode()
    return hashlib.blake2b(shape + sample.image.numpy().tobytes(), digest_size=16).hexdigest()


def _in_square(sample: Sample) -> float:
    """The share of the object that stays when the image is cropped to its centre square; 1 without an object."""
    assert sample.mask is not None
    side = min(sample.image.shape[-2:])
    whole, rest = float(sample.mask.sum()), float(fit(sample, side, "crop").mask.sum())  # type: ignore[union-attr]
    return rest / whole if whole else 1.0


def _to_show(splits: Splits) -> set[tuple[str, int]]:
    """Images for the contact sheet: the first of each class in turn, training ones before others."""
    by_class: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for split, index, dataset in _rows(splits):
        by_class[dataset.labels[index]].append((split, index))
    in_turn = [members[turn] for turn in range(6) for members in by_class.values() if turn < len(members)]
    return set(in_turn[:SHEET])


# --- judging --------------------------------------------------------------------------------------------------------


def _find_duplicates(report: CheckReport, digests: Mapping[str, list[tuple[str, str, int]]]) -> None:
    """The same pixels in two splits or under two classes are a fault; twice in one class of a split are a note."""
    repeated = 0
    for group in digests.values():
        if len(group) < 2:
            continue
        names = [{"split": s, "name": name, "class": report.classes[label]} for s, name, label in group]
        report.duplicates.append(names)
        places = " and ".join(f"{one['split']} ({one['name']})" for one in names)
        if len({one["class"] for one in names}) > 1:
            text = f"the same image stands under several classes: {places}; leave the right one."
        elif len({one["split"] for one in names}) > 1:
            text = f"the same image is in several splits: {places}; leave one."
        else:
            repeated += len(group) - 1
            continue
        report.faults.append(Fault("duplicate", names[0]["name"], text))
    if repeated:
        report.notes.append(f"{repeated} images are copies of another of their class and split; check.json names them")


def _look_at_classes(report: CheckReport) -> None:
    if len(report.classes) < 2:
        text = f"{report.data}: holds one class only ({report.classes[0]}); a classifier needs two or more."
        report.faults.append(Fault("class", report.classes[0], text))
    for label, name in enumerate(report.classes):
        if sum(counts[label] for counts in report.counts.values()) == 1:
            text = f"class {name} has one image; with fewer than three there is none for validation or for test."
            report.faults.append(Fault("class", name, text))


# --- telling --------------------------------------------------------------------------------------------------------


def summary(report: CheckReport) -> str:
    """What the command prints."""
    lines = [f"{report.data}: {len(report.classes)} classes, {report.images} images that can be read"]
    lines.append(f"masks {report.masks}, images with keypoints {report.with_points}, parts {len(report.parts)}")
    lines += ["", *_table(report)]
    for kind, title in KINDS.items():
        texts = [fault.text for fault in report.faults if fault.kind == kind]
        if texts:
            lines += ["", f"{title}: {len(texts)}", *(f"  {text}" for text in texts[:SHOWN_LINES])]
        if len(texts) > SHOWN_LINES:
            lines.append(f"  and {len(texts) - SHOWN_LINES} more in check.json")
    if report.doubts:
        lines += ["", doubts_text(report)]
    if report.notes:
        lines += ["", *(f"note: {note}" for note in report.notes)]
    lines += ["", "clean" if report.clean else f"{len(report.faults)} things to look at"]
    return "\n".join(lines)


def doubts_text(report: CheckReport) -> str:
    """How good the masks look, in a sentence."""
    kinds = [doubt.kind for doubt in report.doubts.values()]
    if kinds.count("large") > 0.5 * report.masks:
        return (
            f"masks: {kinds.count('large')} of {report.masks} hold more than half of their image; where these are no "
            "close-ups, the masks may be inverted"
        )
    if not kinds:
        return f"masks: none of {report.masks} looks wrong"
    return f"masks to look at: {len(kinds)} of {report.masks} ({doubt_counts(kinds)})"


def _table(report: CheckReport, most: int = 30) -> list[str]:
    """Images of each class and split; where there are more classes than ``most``, the smallest ones."""
    order = list(range(len(report.classes)))
    if len(order) > most:
        order = sorted(order, key=lambda label: sum(report.counts[split][label] for split in SPLITS))[:most]
    width = max(len("class"), *(len(report.classes[label]) for label in order))
    lines = [f"{'class':{width}}" + "".join(f"{split:>12}" for split in SPLITS)]
    for label in order:
        lines.append(f"{report.classes[label]:{width}}" + "".join(f"{report.counts[s][label]:12d}" for s in SPLITS))
    if len(order) < len(report.classes):
        lines.append(f"(the {most} smallest of {len(report.classes)} classes; all in check.json)")
    lines.append(f"{'all':{width}}" + "".join(f"{sum(report.counts[split]):12d}" for split in SPLITS))
    return lines


class _Tile(NamedTuple):
    title: str
    """The class, or what is strange about the mask."""
    split: str
    sample: Sample
    wrong: bool
    """Something is the matter with it: it is framed in red."""


_MARGIN, _LINE = 8, 18
_MASK, _WRONG, _GREY = (255, 220, 0), (215, 30, 30), (110, 110, 110)


def _draw_sheet(
    tiles: Sequence[_Tile], parts: Sequence[str], columns: int = 6, side: int = 160, in_order: bool = False
) -> Image.Image:
    """Tiles by class (or as they come), below each its title, split and file; the colour of each part at the bottom."""
    entries = [("outline of the mask", _MASK)] if any(tile.sample.mask is not None for tile in tiles) else []
    entries += [(name, part_colour(index)) for index, name in enumerate(parts)]
    bold, small = ImageFont.load_default(12), ImageFont.load_default(10)
    width = max(420, min(columns, len(tiles)) * (side + _MARGIN) + _MARGIN)
    legend = _placed(entries, small, width)
    foot = legend[-1][1] + _LINE + 4 if legend else 0
    sheet = TileSheet(len(tiles), side, columns, _MARGIN, below=30, foot=foot, least_width=420)
    for number, tile in enumerate(tiles if in_order else sorted(tiles, key=lambda tile: tile.title)):
        drawn = draw_annotations(fit(tile.sample, side, "pad"), mask_outline=_MASK, dot=3)
        left, top = sheet.paste(number, drawn)
        if tile.wrong:
            sheet.draw.rectangle((left - 2, top - 2, left + side + 1, top + side + 1), outline=_WRONG, width=2)
        sheet.draw.text((left, top + side + 1), fitting_text(tile.title, bold, side), fill="black", font=bold)
        room = side - small.getlength(f"{tile.split}: ")
        place = f"{tile.split}: {fitting_text(tile.sample.name.rpartition('/')[2], small, room, end=True)}"
        sheet.draw.text((left, top + side + 16), place, fill=_WRONG if tile.wrong else _GREY, font=small)
    for x, y, name, colour in legend:
        y += sheet.image.height - foot
        sheet.draw.ellipse((x, y + 2, x + 10, y + 12), fill=colour, outline=_GREY)
        sheet.draw.text((x + 15, y), name, fill="black", font=small)
    return sheet.image


def _placed(entries: Sequence[tuple[str, Any]], font: Any, width: int) -> list[tuple[int, int, str, Any]]:
    """Left and top of each entry of a legend, in as many lines as it takes."""
    placed = []
    x, y = _MARGIN, 6
    for name, colour in entries:
        length = 30 + round(font.getlength(name))
        if x + length > width and x > _MARGIN:
            x, y = _MARGIN, y + _LINE
        placed.append((x, y, name, colour))
        x += length
    return placed
