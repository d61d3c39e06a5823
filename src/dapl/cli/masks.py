"""``dapl masks``: foreground masks for data that has none."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command


def add(commands: Any) -> None:
    masks = command(
        commands, "masks", _masks, "Make foreground masks for pictures that have none.", takes_fields=True,
        when_interrupted="; the same command goes on where it was",
    )  # fmt: skip
    masks.add_argument("data", type=Path, help="config (.yaml), folder of class folders, CUB's folder, or COCO "
                       ".json; fields of data may follow, e.g. --data.images DIR")  # fmt: skip
    masks.add_argument("--refine", choices=("sam", "grabcut", "none"), default="grabcut",
                       help="how a box, keypoints or else the centre of the picture become a mask; none: the box "
                       "itself (grabcut)")  # fmt: skip
    masks.add_argument("--sam-model", metavar="MODEL", help="folder or hub name of SAM's weights, for --refine sam")
    masks.add_argument("--limit", type=int, metavar="N", help="make N at most, to look at them first")
    masks.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _masks(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Exit code 1 where a mask could not be made."""
    from dapl.errors import DaplError
    from dapl.prepare.source import data_config

    if arguments.limit is not None and arguments.limit < 1:
        raise DaplError(f"--limit: {arguments.limit} makes no mask; give 1 or more.")
    config = data_config(arguments.data, overrides)

    from dapl.prepare.masks import make_masks

    done = make_masks(config.data, arguments.refine, arguments.sam_model, arguments.limit, arguments.quiet)
    left = f", {done.left} left for later" if done.left else ""
    print(f"{done.made} masks made, {done.skipped} pictures had one, {len(done.failed)} failed{left}")
    if done.failed:
        print("\n".join(f"  {text}" for _, text in done.failed[:20]))
        if len(done.failed) > 20:
            print(f"  and {len(done.failed) - 20} more")
    print(f"\nmasks        {done.folder}\nlook at them  dapl prepare check {arguments.data}")
    return 1 if done.failed else 0
