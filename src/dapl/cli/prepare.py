"""``dapl prepare …``: what is done to data once, before anything is trained on it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command


def add(commands: Any) -> None:
    text = "Make a data set out of raw files, or look one over."
    group = commands.add_parser("prepare", help=text, description=text, allow_abbrev=False)
    kinds = group.add_subparsers(title="what to prepare", metavar="WHAT", required=True)
    _add_faceforensics(kinds)
    _add_check(kinds)


def _add_faceforensics(kinds: Any) -> None:
    faces = command(
        kinds, "faceforensics", _faceforensics, "Faces, masks and landmarks from the videos of FaceForensics++.",
        when_interrupted="; the same command goes on where it was",
    )  # fmt: skip
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
    faces.add_argument("--refine", choices=("sam", "grabcut", "none"), default="grabcut",
                       help="how the hull of the landmarks becomes the mask (grabcut)")  # fmt: skip
    faces.add_argument("--sam-model", metavar="MODEL", help="folder or hub name of SAM's weights, for --refine sam")
    faces.add_argument("--face-model", metavar="FILE", help="face_landmarker.task (default: $DAPL_FACE_MODEL)")
    faces.add_argument("--workers", type=int, default=1, help="processes (1)")
    faces.add_argument("--quiet", action="store_true", help="no progress, only what was left out")


def _faceforensics(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.prepare.faceforensics.command import prepare_and_report

    return prepare_and_report(arguments)


def _add_check(kinds: Any) -> None:
    check = command(
        kinds, "check", _check, "Look a data set over before an hour is spent on it.", takes_fields=True
    )  # fmt: skip
    check.set_defaults(command="prepare check")
    check.add_argument("data", type=Path, help="config (.yaml), folder of class folders, CUB's folder, or COCO "
                       ".json; fields of data may follow, e.g. --data.images DIR")  # fmt: skip
    check.add_argument("--out", type=Path, help="folder for check.json and check.png (checks/<name of the data>)")
    check.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _check(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Exit code 1 where something is wrong or was left out."""
    from dapl.prepare.source import data_config

    config = data_config(arguments.data, overrides)

    from dapl.prepare.check import check, summary

    out = arguments.out or Path("checks") / (arguments.data.resolve().stem or "data")
    report = check(config.data, out, arguments.quiet)
    print(summary(report))
    print(f"\nall of it    {out / 'check.json'}\npictures     {out / 'check.png'}")
    return 0 if report.clean else 1
