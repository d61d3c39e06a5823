"""The contact sheet of `dapl prepare check`: images with the outline of their mask, their parts and their class.

`check`: a data set looked over before an hour is spent on it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from dapl.common.errors import DaplError
from dapl.common.files import replacing, write_json
from dapl.common.progress import Reporter
from dapl.config import DataSection
from dapl.data.build import build_splits, hand_over, list_files, split_listing
from dapl.data.listing import SPLITS, Fault, FileDataset, Listing
from dapl.data.sample import Dataset, Sample, Splits, Subset
from dapl.data.transforms import fit
from dapl.explain.draw import outline, part_colour

_MARGIN, _CAPTION = 8, 30
_MASK, _BOX, _WRONG, _GREY = (255, 220, 0), (255, 255, 255), (215, 30, 30), (110, 110, 110)


@dataclass(frozen=True)
class Shown:
    """A sample on the sheet."""

    sample: Sample
    split: str
    class_name: str
    wrong: bool
    """Something is the matter with it: it is framed in red."""


def draw_sheet(shown: Sequence[Shown], parts: Sequence[str], columns: int = 6, tile: int = 160) -> Image.Image:
    """Tiles by class, below each its class, split and file; a legend of the parts at the bottom."""
    ordered = sorted(shown, key=lambda one: one.class_name)
    columns = max(1, min(columns, len(ordered)))
    rows = -(-len(ordered) // columns)
    width = max(columns * (tile + _MARGIN) + _MARGIN, 420)
    legend = _Legend(parts, any(one.sample.mask is not None for one in ordered), width)
    sheet = Image.new("RGB", (width, rows * (tile + _CAPTION + _MARGIN) + _MARGIN + legend.height), "white")
    draw = ImageDraw.Draw(sheet)
    bold, small = ImageFont.load_default(12), ImageFont.load_default(10)
    for number, one in enumerate(ordered):
        left = _MARGIN + number % columns * (tile + _MARGIN)
        top = _MARGIN + number // columns * (tile + _CAPTION + _MARGIN)
        sheet.paste(draw_sample(one.sample, tile), (left, top))
        if one.wrong:
            draw.rectangle((left - 2, top - 2, left + tile + 1, top + tile + 1), outline=_WRONG, width=2)
        draw.text((left, top + tile + 1), _cut(one.class_name, bold, tile), fill="black", font=bold)
        room = tile - round(small.getlength(f"{one.split}: "))
        place = f"{one.split}: {_cut(one.sample.name.rpartition('/')[2], small, room, keep_end=True)}"
        draw.text((left, top + tile + 16), place, fill=_WRONG if one.wrong else _GREY, font=small)
    legend.draw(draw, sheet.height - legend.height)
    return sheet


def draw_sample(sample: Sample, tile: int) -> Image.Image:
    """The image padded to a square, its mask outlined, its box drawn, visible parts dotted."""
    fitted = fit(sample, tile, "pad")
    pixels = torch.as_tensor(fitted.image).permute(1, 2, 0).clone()
    if fitted.mask is not None:
        pixels[outline(torch.as_tensor(fitted.mask).bool(), width=1)] = torch.tensor(_MASK, dtype=torch.uint8)
    image = Image.fromarray(pixels.contiguous().numpy())
    draw = ImageDraw.Draw(image)
    if fitted.box is not None:
        draw.rectangle(torch.as_tensor(fitted.box)[0].tolist(), outline=_BOX)
    if fitted.keypoints is not None and fitted.visible is not None:
        for part, (x, y) in enumerate(torch.as_tensor(fitted.keypoints).tolist()):
            if fitted.visible[part]:
                draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=part_colour(part), outline="white")
    return image


class _Legend:
    """The colour of each part, in as many lines as it takes."""

    def __init__(self, parts: Sequence[str], masks: bool, width: int) -> None:
        self.font = ImageFont.load_default(11)
        entries = ([("outline of the mask", _MASK)] if masks else []) + [
            (name, part_colour(index)) for index, name in enumerate(parts)
        ]
        self.placed: list[tuple[int, int, str, tuple[int, int, int]]] = []
        x, y = _MARGIN, 6
        for name, colour in entries:
            length = 16 + round(self.font.getlength(name)) + 14
            if x + length > width and x > _MARGIN:
                x, y = _MARGIN, y + 18
            self.placed.append((x, y, name, colour))
            x += length
        self.height = y + 22 if entries else 0

    def draw(self, draw: ImageDraw.ImageDraw, top: int) -> None:
        for x, y, name, colour in self.placed:
            draw.ellipse((x, top + y + 2, x + 10, top + y + 12), fill=colour, outline=_GREY)
            draw.text((x + 15, top + y), name, fill="black", font=self.font)


def _cut(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int, keep_end: bool = False) -> str:
    """As much of the text as there is room for; files mostly differ at the end of their names."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[1:] if keep_end else text[:-1]
    return f"…{text}" if keep_end else f"{text}…"


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


@dataclass
class Report:
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

    @property
    def clean(self) -> bool:
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"clean": self.clean, "faults_by_kind": dict(Counter(f.kind for f in self.faults))}


def check(config: DataSection, out: Path | None = None, quiet: bool = False, splits: Splits | None = None) -> Report:
    """Read every image of a data set once; with ``out``, write check.json and check.png there.

    ``splits``: the data, where ``config`` is `GivenData`.
    """
    hand_over(config, splits)
    listing = list_files(config)
    if splits is None:
        splits = _lenient_splits(listing, config) if listing is not None else build_splits(config)
    report = _start(config, listing, splits)
    digests: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    wanted, known = _to_show(splits), {fault.name for fault in report.faults}
    shown: list[Shown] = []
    with Reporter(quiet).track("images", sum(len(getattr(splits, split)) for split in SPLITS)) as advance:
        for split, index, dataset in _rows(splits):
            sample, faults = _examine(dataset, index)
            report.faults += faults
            if sample is not None:
                _count(report, sample)
                digests[_digest(sample)].append((split, sample.name, sample.label))
                if (split, index) in wanted or (faults and len(shown) < SHEET):
                    shown.append(
                        Shown(sample, split, report.classes[sample.label], bool(faults) or sample.name in known)
                    )
            advance(1)
    _find_duplicates(report, digests)
    _look_at_classes(report)
    if out is not None:
        write_json(out / "check.json", report.to_json())
        sheet = draw_sheet(shown[:SHEET], report.parts)
        with replacing(out / "check.png") as temporary:
            sheet.save(temporary, format="PNG")
    return report


# --- reading --------------------------------------------------------------------------------------------------------


def _lenient_splits(listing: Listing, config: Any) -> Splits:
    """As for training, but nothing is refused."""
    if not listing.records["train"]:
        reasons = "\n".join(fault.text for fault in listing.faults[:SHOWN_LINES])
        raise DaplError(reasons or f"{listing.source}: holds no image; {_WHAT_IS_EXPECTED}")
    return split_listing(listing, config)


_WHAT_IS_EXPECTED = "expected ROOT/<class>/<image>, or ROOT/train/<class>/<image>."


def _start(config: Any, listing: Listing | None, splits: Splits) -> Report:
    classes = list(splits.train.classes)
    counts = {}
    for split in SPLITS:
        labels = Counter(getattr(splits, split).labels)
        counts[split] = [labels[label] for label in range(len(classes))]
    source = listing.source if listing is not None else config.name
    report = Report(source, classes, list(splits.train.parts), counts)
    if listing is not None:
        report.faults += listing.faults
        report.notes += listing.notes
    return report


def _rows(splits: Splits) -> Iterator[tuple[str, int, Dataset]]:
    for split in SPLITS:
        dataset = getattr(splits, split)
        for index in range(len(dataset)):
            yield split, index, dataset


def _examine(dataset: Dataset, index: int) -> tuple[Sample | None, list[Fault]]:
    base, row = _base_row(dataset, index)
    if isinstance(base, FileDataset):
        sample, faults = base.examine(row)
    else:
        try:
            sample, faults = base[row], []
        except DaplError as error:
            return None, [Fault("image", base.names[row], str(error))]
    if sample is not None and sample.mask is not None and not sample.mask.any():
        faults.append(Fault("empty mask", sample.name, f"{sample.name}: its mask has no foreground; draw it again."))
    return sample, faults


def _base_row(dataset: Dataset, index: int) -> tuple[Dataset, int]:
    while isinstance(dataset, Subset):
        index, dataset = dataset.indices[index], dataset.dataset
    return dataset, index


def _count(report: Report, sample: Sample) -> None:
    report.images += 1
    report.masks += sample.mask is not None
    report.with_points += sample.visible is not None and bool(sample.visible.any())


def _digest(sample: Sample) -> str:
    """Of the decoded pixels, so that another name, format or header does not hide a copy."""
    hashed = hashlib.blake2b(str(tuple(sample.image.shape)).encode(), digest_size=16)
    hashed.update(np.ascontiguousarray(sample.image.numpy()).tobytes())
    return hashed.hexdigest()


def _to_show(splits: Splits) -> set[tuple[str, int]]:
    """Images for the contact sheet: the first of each class in turn, training ones before others."""
    by_class: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for split, index, dataset in _rows(splits):
        by_class[dataset.labels[index]].append((split, index))
    in_turn = [members[turn] for turn in range(6) for members in by_class.values() if turn < len(members)]
    return set(in_turn[:SHEET])


# --- judging --------------------------------------------------------------------------------------------------------


def _find_duplicates(report: Report, digests: Mapping[str, list[tuple[str, str, int]]]) -> None:
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


def _look_at_classes(report: Report) -> None:
    if len(report.classes) < 2:
        text = f"{report.data}: holds one class only ({report.classes[0]}); a classifier needs two or more."
        report.faults.append(Fault("class", report.classes[0], text))
    for label, name in enumerate(report.classes):
        total = sum(counts[label] for counts in report.counts.values())
        if total == 1:
            text = f"class {name} has one image; with fewer than three there is none for validation or for test."
            report.faults.append(Fault("class", name, text))


# --- telling --------------------------------------------------------------------------------------------------------


def summary(report: Report) -> str:
    """What the command prints."""
    lines = [f"{report.data}: {len(report.classes)} classes, {report.images} images that can be read"]
    lines.append(f"masks {report.masks}, images with keypoints {report.with_points}, parts {len(report.parts)}")
    lines += ["", *_table(report)]
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in report.faults:
        by_kind[fault.kind].append(fault)
    for kind, title in KINDS.items():
        if kind in by_kind:
            lines += ["", f"{title}: {len(by_kind[kind])}"]
            lines += [f"  {fault.text}" for fault in by_kind[kind][:SHOWN_LINES]]
            if len(by_kind[kind]) > SHOWN_LINES:
                lines.append(f"  and {len(by_kind[kind]) - SHOWN_LINES} more in check.json")
    if report.notes:
        lines += ["", *(f"note: {note}" for note in report.notes)]
    lines += ["", "clean" if report.clean else f"{len(report.faults)} things to look at"]
    return "\n".join(lines)


def _table(report: Report, most: int = 30) -> list[str]:
    """Images of each class and split; of more classes than ``most`` the smallest."""
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
