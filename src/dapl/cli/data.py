"""``dapl prepare``, ``dapl masks``, ``dapl chance`` and ``dapl cache``: what is done with data without any model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import PROTOCOL, SPLIT, Row, command, protocol_options
from dapl.common.errors import DaplError

_GO_ON = "; the same command goes on where it was"
_DATA: Row = (
    "data",
    Path,
    "config (.yaml), folder of class folders, CUB's folder, or COCO .json; fields of data may follow, e.g. "
    "--data.images DIR",
)
SAM_MODEL: Row = ("--sam-model MODEL", str, "SAM's weights: a folder, a hub name, or MobileSAM's mobile_sam.pt")
REMBG_MODEL: Row = ("--rembg-model MODEL", str, "rembg's ONNX file or model name (default: $DAPL_REMBG_MODEL, u2net)")


@command(
    "Cut faces, masks and landmarks out of the videos of FaceForensics++.",
    ("root", Path, "folder with original_sequences, manipulated_sequences and splits"),
    ("out", Path, "folder to make, or to go on with"),
    ("--compression", ("c23", "raw", "c40"), "compression of the videos"),
    ("--methods+ METHOD", str, "manipulations to take (default: all four)"),
    ("--frames N", 10, "frames per video, evenly spaced"),
    ("--size PIXELS", 224, "side of the square crop"),
    ("--margin SHARE", 0.15, "what is added on each side of the face, as a share of it"),
    ("--refine", ("grabcut", "sam", "none"), "how the hull of the landmarks becomes the mask"),
    SAM_MODEL,
    ("--face-model FILE", str, "face_landmarker.task (default: $DAPL_FACE_MODEL)"),
    ("--workers N", 1, "number of processes"),
    ("--quiet", False, "show no progress, only what was left out"),
    when_interrupted=_GO_ON,
    epilog="Exit code 1: all was done that could be, and something was left out; OUT/manifest.jsonl says what.",
)
def faceforensics(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.prepare.faceforensics import prepare_and_report

    return prepare_and_report(arguments)


@command(
    "Look a data set over before an hour is spent on it.",
    _DATA,
    ("--out FOLDER", Path, "folder for check.json and check.png (default: checks/<name of the data>)"),
    ("--quiet", False, "show no progress, only the result"),
    fields=(),
)
def check(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Exit code 1 where something is wrong or was left out."""
    from dapl.config.reading import data_config

    config = data_config(arguments.data, overrides)

    from dapl.prepare.check import check, summary

    out = arguments.out or Path("checks") / (arguments.data.resolve().stem or "data")
    report = check(config.data, out, arguments.quiet)
    print(summary(report))
    print(f"\nall of it    {out / 'check.json'}\nimages       {out / 'check.png'}")
    if report.doubts:
        print(f"masks        {out / 'masks.png'}")
    return 0 if report.clean else 1


@command(
    "Measure what trivial maps get on a data set: random discs, noise, a grid, one place N times, an oracle.",
    ("data DATA", Path, "run, config (.yaml), folder, COCO .json, or the name of a data set such as toybirds"),
    SPLIT,
    ("--prototypes N", 10, "prototypes per class"),
    ("--metrics LIST", str, "only these, e.g. coverage,consistency"),
    *PROTOCOL,
    ("--json FILE", Path, "also write the numbers, and Coverage at each τ, to this file"),
    ("--quiet", False, "show no progress, only the result"),
    fields=("data", "cache"),
)
def chance(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.config.reading import data_config
    from dapl.evaluation.protocol import EvaluationProtocol
    from dapl.metrics.registry import chosen
    from dapl.runs.run import Run

    options = protocol_options(arguments)
    EvaluationProtocol(**options)  # a bad option is refused before anything is read
    metrics = None if arguments.metrics is None else chosen(arguments.metrics)
    if (arguments.data / "config.yaml").is_file():
        config = Run.open(arguments.data).config(overrides)
    else:
        config = data_config(arguments.data, overrides, ("data", "cache"))

    protocol = EvaluationProtocol(**{"tau": config.data.tau, **options})

    from dapl.common.files import write_json
    from dapl.evaluation.chance import chance
    from dapl.evaluation.result import chance_table
    from dapl.runs.provenance import provenance

    found = chance(config, protocol, arguments.split, arguments.prototypes, arguments.quiet)
    print(chance_table(found, metrics=metrics))
    if arguments.json is not None:
        facts = {"split": arguments.split, "protocol": protocol.to_json()}
        data = config.data.model_dump(mode="json", exclude={"root"})
        write_json(arguments.json, {**provenance(arguments.words), "data": data, **facts, **found.to_json()})
        print(f"\nnumbers      {arguments.json}")
    return 0


@command(
    "Make foreground masks for images that have none.",
    _DATA,
    (
        "--refine",
        ("grabcut", "features", "rembg", "sam", "none"),
        "how a box, keypoints or the centre of the image becomes a mask; none: the box",
    ),
    SAM_MODEL,
    REMBG_MODEL,
    ("--limit N", int, "make N masks at most, to look at them first"),
    ("--quiet", False, "show no progress, only the result"),
    fields=(),
    when_interrupted=_GO_ON,
)
def masks(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Exit code 1 where a mask could not be made."""
    from dapl.config.reading import data_config

    if arguments.limit is not None and arguments.limit < 1:
        raise DaplError(f"--limit: {arguments.limit} makes no mask; give 1 or more.")
    config = data_config(arguments.data, overrides)

    from dapl.prepare.masks import make_masks

    model = mask_model(arguments.refine, arguments)
    done = make_masks(config.data, arguments.refine, model, arguments.limit, arguments.quiet)
    left = f", {done.left} left for later" if done.left else ""
    print(f"{done.made} masks made, {done.skipped} images had one, {len(done.failed)} failed{left}")
    if done.failed:
        print("\n".join(f"  {text}" for _, text in done.failed[:20]))
        if len(done.failed) > 20:
            print(f"  and {len(done.failed) - 20} more")
    print(f"\nmasks        {done.folder}\nlook at them  dapl prepare check {arguments.data}")
    return 1 if done.failed else 0


def mask_model(method: str, arguments: argparse.Namespace) -> str | None:
    """The model that --sam-model or --rembg-model names; one that is not for this method is an error."""
    models = {"sam": arguments.sam_model, "rembg": arguments.rembg_model}
    for name, model in models.items():
        if model is not None and method != name and (method, name) != ("auto", "rembg"):
            raise DaplError(f"--{name}-model: only for masks by {name}, and they are made by {method}.")
    return models["rembg" if method == "auto" else method] if method in ("auto", *models) else None


@command(
    "Show the caches of images and features, or clear them; whatever is missing is made anew.",
    ("--folder FOLDER", "~/.cache/dapl", "folder of the caches, cache.folder of a config"),
    ("--clear", False, "remove all of them"),
    ("--keep GB", float, "remove the least recently used until no more than this is left"),
)
def cache(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from datetime import datetime

    from dapl.batches.cache import GB, entries, make_room
    from dapl.common.files import expand_path

    folder = expand_path(arguments.folder, "folder")
    keep = 0.0 if arguments.clear else arguments.keep
    if keep is not None:
        if keep < 0:
            raise DaplError(f"--keep: {keep:g} GB cannot be kept; give 0 or more.")
        _, removed = make_room(folder, 0, keep * GB)
        print(f"removed      {len(removed)} caches, {sum(entry.size for entry in removed) / GB:.2f} GB")
    held = entries(folder)
    for entry in reversed(held):
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        print(f"{entry.kind:13s}{entry.size / GB:9.3f} GB   last used {used}   {entry.key}")
    print(f"in all       {len(held)} caches, {sum(entry.size for entry in held) / GB:.2f} GB in {folder}")
    return 0
