"""``dapl prepare …``: what is done to data once, before anything is trained on it.

``dapl masks``: foreground masks for data that has none.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command


def add_prepare(commands: Any) -> None:
    text = "Make a data set out of raw files, or look one over."
    group = commands.add_parser("prepare", help=text, description=text, allow_abbrev=False)
    kinds = group.add_subparsers(title="what to prepare", metavar="WHAT", required=True)
    _add_faceforensics(kinds)
    _add_check(kinds)


def _add_faceforensics(kinds: Any) -> None:
    faces = command(
        kinds,
        "faceforensics",
        _faceforensics,
        "Faces, masks and landmarks from the videos of FaceForensics++.",
        when_interrupted="; the same command goes on where it was",
    )
    faces.set_defaults(command="prepare faceforensics")
    faces.epilog = "Exit code 1: all was done that could be, and something was left out; OUT/manifest.jsonl says what."
    faces.add_argument("root", type=Path, help="folder with original_sequences, manipulated_sequences and splits")
    faces.add_argument("out", type=Path, help="folder to make, or to go on with")
    faces.add_argument("--compression", choices=("raw", "c23", "c40"), default="c23", help="of the videos (c23)")
    faces.add_argument("--methods", nargs="+", metavar="METHOD", help="manipulations to take (all four)")
    faces.add_argument("--frames", type=int, default=10, help="frames of a video, evenly spaced (10)")
    faces.add_argument("--size", type=int, default=224, help="side of the square crop in pixels (224)")
    faces.add_argument(
        "--margin", type=float, default=0.15, help="added on each side of the face, as a share of it (0.15)"
    )
    faces.add_argument(
        "--refine",
        choices=("sam", "grabcut", "none"),
        default="grabcut",
        help="how the hull of the landmarks becomes the mask (grabcut)",
    )
    faces.add_argument("--sam-model", metavar="MODEL", help="folder or hub name of SAM's weights, for --refine sam")
    faces.add_argument("--face-model", metavar="FILE", help="face_landmarker.task (default: $DAPL_FACE_MODEL)")
    faces.add_argument("--workers", type=int, default=1, help="processes (1)")
    faces.add_argument("--quiet", action="store_true", help="no progress, only what was left out")


def _faceforensics(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.prepare.faceforensics.command import prepare_and_report

    return prepare_and_report(arguments)


def _add_check(kinds: Any) -> None:
    check = command(kinds, "check", _check, "Look a data set over before an hour is spent on it.", takes_fields=True)
    check.set_defaults(command="prepare check")
    check.add_argument(
        "data",
        type=Path,
        help="config (.yaml), folder of class folders, CUB's folder, or COCO "
        ".json; fields of data may follow, e.g. --data.images DIR",
    )
    check.add_argument("--out", type=Path, help="folder for check.json and check.png (checks/<name of the data>)")
    check.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _check(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Exit code 1 where something is wrong or was left out."""
    from dapl.config.reading import data_config

    config = data_config(arguments.data, overrides)

    from dapl.prepare.check import check, summary

    out = arguments.out or Path("checks") / (arguments.data.resolve().stem or "data")
    report = check(config.data, out, arguments.quiet)
    print(summary(report))
    print(f"\nall of it    {out / 'check.json'}\nimages     {out / 'check.png'}")
    return 0 if report.clean else 1


def add_masks(commands: Any) -> None:
    masks = command(
        commands,
        "masks",
        _masks,
        "Make foreground masks for images that have none.",
        takes_fields=True,
        when_interrupted="; the same command goes on where it was",
    )
    masks.add_argument(
        "data",
        type=Path,
        help="config (.yaml), folder of class folders, CUB's folder, or COCO "
        ".json; fields of data may follow, e.g. --data.images DIR",
    )
    masks.add_argument(
        "--refine",
        choices=("sam", "grabcut", "none"),
        default="grabcut",
        help="how a box, keypoints or else the centre of the image become a mask; none: the box itself (grabcut)",
    )
    masks.add_argument("--sam-model", metavar="MODEL", help="folder or hub name of SAM's weights, for --refine sam")
    masks.add_argument("--limit", type=int, metavar="N", help="make N at most, to look at them first")
    masks.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _masks(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Exit code 1 where a mask could not be made."""
    from dapl.common.errors import DaplError
    from dapl.config.reading import data_config

    if arguments.limit is not None and arguments.limit < 1:
        raise DaplError(f"--limit: {arguments.limit} makes no mask; give 1 or more.")
    config = data_config(arguments.data, overrides)

    from dapl.prepare.masks import make_masks

    done = make_masks(config.data, arguments.refine, arguments.sam_model, arguments.limit, arguments.quiet)
    left = f", {done.left} left for later" if done.left else ""
    print(f"{done.made} masks made, {done.skipped} images had one, {len(done.failed)} failed{left}")
    if done.failed:
        print("\n".join(f"  {text}" for _, text in done.failed[:20]))
        if len(done.failed) > 20:
            print(f"  and {len(done.failed) - 20} more")
    print(f"\nmasks        {done.folder}\nlook at them  dapl prepare check {arguments.data}")
    return 1 if done.failed else 0
