"""From a folder of images to something that can be trained on: masks where there are none, a look over, a config.

System, stages, foreground loss, pruning and epochs of the config are chosen by what the data has (`choose`).
"""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dapl.common.errors import DaplError, WriteError, nearest
from dapl.common.progress import Reporter
from dapl.config import Config, DataSection, parse_config
from dapl.data.build import list_files
from dapl.masks.refine import rembg_is_at_hand
from dapl.prepare.check import CheckReport, check, doubts_text
from dapl.prepare.masks import MAKERS, make_masks, records_without_masks

MOST_DOUBTFUL = 1 / 3
"""Masks of which more look wrong are not learned from."""
LOCATE_STEPS, HEAD_STEPS, DAPL_STEPS = 500, 700, 700
"""About so many steps of gradient descent: few images are seen more often than many."""
EPOCHS = (8, 60)
"""Fewest and most epochs of a stage."""
LEAST_IN_SQUARE = 0.9
"""Images are cropped to their centre square where that keeps at least this share of the objects."""
FEW_PER_CLASS = 25
"""With fewer training images per class heads are judged by features under their maps, not by crops, which take more."""
FEW_IMAGES = 500
"""Below this number of training images a step takes 32 of them, from here on 64."""


@dataclass(frozen=True)
class Choice:
    """The chosen config by sections, and why each was chosen so."""

    values: dict[str, Any]
    reasons: dict[str, str]
    """By section: one line or more."""
    title: str
    """What the data has, in a line."""

    def config(self, overrides: dict[str, Any] | None = None) -> Config:
        """The config, with dotted fields laid over it."""
        from dapl.config.reading import with_overrides

        return parse_config(with_overrides(self.values, overrides or {}), source="the chosen config")

    def yaml(self, command: str) -> str:
        """The config as YAML with the reasons as comments. ``command``: what wrote it."""
        lines = [
            f"# Written by `{command}`: {self.title}.",
            "# What a field means: `dapl fields`, or `dapl fields SECTION`.",
        ]
        for section, values in self.values.items():
            lines += [f"# {line}" for line in self.reasons.get(section, "").splitlines()]
            lines.append(_section_text(section, values))
        return "\n".join(lines) + "\n"


def _section_text(section: str, values: Any) -> str:
    if isinstance(values, list):  # the schedule: a stage per line
        rows = [yaml.safe_dump(row, sort_keys=False, default_flow_style=True, width=200).strip() for row in values]
        return "\n".join([f"{section}:", *(f"  - {row}" for row in rows)])
    return yaml.safe_dump(
        {section: values}, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
    ).strip()


def choose(data: DataSection, report: CheckReport, made_by: str | None = None) -> Choice:
    """By what `dapl.prepare.check.check` found. ``made_by``: how masks were made, where they were.

    >>> from pathlib import Path
    >>> print(choose(FolderData(root="birds"), check(FolderData(root="birds"))).yaml("…"))  # doctest: +SKIP
    """
    images = sum(report.counts["train"])
    masks = report.masks == report.images and report.images > 0
    usable = masks and report.doubtful_share <= MOST_DOUBTFUL
    counts = ", ".join(f"{sum(report.counts[split])} {split}" for split in report.counts)
    has = "no masks" if not report.masks else f"masks {'made by ' + made_by if made_by else 'of its own'}"
    title = f"{len(report.classes)} classes, {report.images} images ({counts}), {has}"
    batch = 32 if images < FEW_IMAGES else 64
    model, why_model = _model(report, masks, usable)
    loss, why_loss = _loss(usable)
    given = data.model_dump(mode="json", exclude_defaults=True)
    fitted, why_data = _fit(report, usable and "fit" not in given)
    values: dict[str, Any] = {
        "data": {"name": getattr(data, "name", "?"), **given, **fitted},
        "model": model,
        "loss": loss,
    }
    values["schedule"] = _schedule(images, batch, usable)
    reasons = {**why_data, "model": why_model, "loss": why_loss, "schedule": _why_schedule(images, usable)}
    return Choice(values, reasons, title)


def _fit(report: CheckReport, free: bool) -> tuple[dict[str, str], dict[str, str]]:
    """How images become squares, and why; nothing where that is not free to choose or makes no difference."""
    if not free or report.in_square is None or report.in_square < LEAST_IN_SQUARE:
        return {}, {}
    why = f"The centre square keeps {report.in_square:.0%} of the objects and shows them larger than a stretched image."
    return {"fit": "crop"}, {"data": why}


def _model(report: CheckReport, masks: bool, usable: bool) -> tuple[dict[str, Any], str]:
    if usable:
        why = (
            "Heads that are parts (docs/parts.md): the masks tell the heads where the object is.\n"
            "The last stage but one tells places apart, what stands before pooling tells classes apart."
        )
        model: dict[str, Any] = {"system": "parts", "backbone": {"stages": [-2, "head"]}}
        each = sum(report.counts["train"]) / len(report.classes)
        if each >= FEW_PER_CLASS:
            return model, why
        return model | {"evidence": "map"}, (
            f"{why}\nWith {each:.0f} training images per class a head is judged by the features under its map;\n"
            "`evidence: crop` holds it to its own pixels, and takes more images."
        )
    if masks:
        why = f"{report.doubtful_share:.0%} of the masks look wrong, so that nothing is learned from them"
    elif report.masks:
        why = "not all images have a mask"
    else:
        why = "there are no masks"
    return {"system": "dapl"}, f"DAPL, which needs no masks: {why}."


def _loss(usable: bool) -> tuple[dict[str, Any], str]:
    if usable:
        loss = {"cluster": 0.4, "cluster_of": "all", "separation": 0, "contrast": {"weight": 0}}
        return loss | {"locate": {"foreground": 1.0, "cross_entropy": 1.0, "commitment": 0.8}}, (
            "The heads together are the object (locate.foreground). They compete for places, so that nothing else\n"
            "has to keep them apart, and look where classes differ; every prototype of a class is drawn to what\n"
            "its head sees."
        )
    return {"foreground": {"weight": 0.0}}, "Without masks there is no foreground loss."


def _schedule(images: int, batch: int, usable: bool) -> list[dict[str, Any]]:
    if not usable:
        return [
            {"stage": "warm_up", "epochs": epochs(images, batch, DAPL_STEPS), "batch_size": batch, "decay": "cosine"},
            {"stage": "project", "foreground_share": None},
            {"stage": "last_layer"},
        ]
    return [
        {"stage": "locate", "epochs": epochs(images, batch, LOCATE_STEPS), "batch_size": batch, "augment": "flip"},
        {"stage": "project", "nearest_to": "class_mean"},
        {
            "stage": "warm_up",
            "pointers": True,
            "epochs": epochs(images, batch, HEAD_STEPS),
            "batch_size": batch,
            "decay": "cosine",
            "learning_rates": {"layers": 3e-3, "prototypes": 3e-3},
        },
    ]


def _why_schedule(images: int, usable: bool) -> str:
    first = f"The backbone stays as it is: its features are computed once. Epochs by the {images} training images."
    if usable:
        return (
            f"{first}\nPrototypes are training images from the start. Nothing is pruned: heads are held to the object, "
            "and\na class that lost a head would have a lower sum than the others."
        )
    return f"{first}\nNothing is pruned, since that takes masks."


def epochs(images: int, batch: int, steps: int, bounds: Sequence[int] = EPOCHS) -> int:
    """Passes over the training images that come to about so many steps.

    >>> epochs(images=540, batch=64, steps=500), epochs(20, 32, 500), epochs(100_000, 64, 500)
    (56, 60, 8)
    """
    return min(max(round(steps / max(1, -(-images // batch))), bounds[0]), bounds[1])


MASKS = ("auto", *MAKERS)
"""How masks are made where there are none; ``none`` makes none."""


@dataclass(frozen=True)
class OwnData:
    """What was found and done."""

    report: CheckReport
    choice: Choice
    made_by: str | None
    """How the masks were made; None where they were there, or there are none."""


def prepare_own_data(
    data: DataSection,
    masks: str = "auto",
    model: str | None = None,
    sheets: Path | None = None,
    quiet: bool = False,
) -> OwnData:
    """Make masks where there are none, look everything over, choose a config by what is there.

    ``masks``: one of `MASKS`; ``auto`` takes rembg where it and its model are at hand, else what stands out in the
    features of the backbone, and no masks where OpenCV is not installed. ``model``: of rembg or SAM. ``sheets``: folder
    for what `dapl prepare check` writes.

    >>> prepare_own_data(FolderData(root="birds")).choice.title  # doctest: +SKIP
    '6 classes, 150 images (108 train, 12 validation, 30 test), masks made by features'
    """
    if masks not in MASKS:
        raise DaplError(f"--masks: '{masks}' is not known{nearest(masks, MASKS)}")
    reporter = Reporter(quiet)
    made_by = _make_masks(data, masks, model, reporter)
    report = check(data, sheets, quiet)
    for fault in report.faults[:5]:
        reporter.line(f"  {fault.text}")
    if len(report.faults) > 5:
        reporter.line(f"  and {len(report.faults) - 5} more things to look at; `dapl prepare check` lists them")
    if report.masks:
        reporter.line(doubts_text(report))
        if report.doubts and sheets is not None:
            reporter.line(f"  the worst are in {sheets / 'masks.png'}")
    choice = choose(data, report, made_by)
    reporter.line(textwrap.fill(choice.title, 80, subsequent_indent="  "))
    for name, why in choice.reasons.items():
        text = textwrap.wrap(" ".join(why.split()), 70, initial_indent=f"{name:<9} ", subsequent_indent=" " * 10)
        reporter.line("\n".join(text))
    return OwnData(report, choice, made_by)


def method_at_hand(model: str | None = None) -> str:
    """What ``auto`` stands for here.

    >>> method_at_hand() in ("rembg", "features", "none")
    True
    """
    if rembg_is_at_hand(model):
        return "rembg"
    return "features" if importlib.util.find_spec("cv2") is not None else "none"


def _make_masks(data: DataSection, masks: str, model: str | None, reporter: Reporter) -> str | None:
    listing = list_files(data)
    if listing is None or listing.masks is None:  # drawn data has its own, other data has no place for them
        return None
    bare, folder, have = records_without_masks(data)
    method = method_at_hand(model) if masks == "auto" else masks
    if not bare:
        return None
    if method == "none":
        if masks == "auto":
            reporter.line("no masks: neither rembg nor OpenCV is installed; pip install 'dapl[masks]' for masks")
        return None
    reporter.line(f"{len(bare)} of {len(bare) + have} images have no mask: made by {method} into {folder}")
    if masks == "auto" and method == "features":
        reporter.line("  rembg makes better ones: pip install 'dapl[rembg]' (docs/own-data.md)")
    try:
        done = make_masks(data, method, model, quiet=reporter.quiet)
    except WriteError:
        raise
    except DaplError as error:
        if masks != "auto" or method != "features":
            raise
        reporter.line(f"  the features are not at hand ({error}): made by grabcut")
        method = "grabcut"
        done = make_masks(data, method, quiet=reporter.quiet)
    for _, text in done.failed[:3]:
        reporter.line(f"  {text}")
    if done.failed:
        raise DaplError(
            f"{len(done.failed)} of {len(bare)} masks could not be made by {method}; draw them, take these images out, "
            "make all by another method (--masks), or train without (--masks none, and no folder of masks)."
        )
    return method
