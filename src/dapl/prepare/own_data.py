"""From a folder of images to something that can be trained on: masks where there are none, a look over, a config."""

from __future__ import annotations

import importlib.util
import textwrap
from dataclasses import dataclass
from pathlib import Path

from dapl.common.errors import DaplError, WriteError, nearest
from dapl.common.progress import Reporter
from dapl.config import DataSection
from dapl.data.build import list_files
from dapl.masks.refine import rembg_is_at_hand
from dapl.prepare.check import CheckReport, check, doubts_text
from dapl.prepare.choice import Choice, choose
from dapl.prepare.masks import MAKERS, make_masks, records_without_masks

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
