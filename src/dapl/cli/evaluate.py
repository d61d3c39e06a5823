"""``dapl evaluate``: the numbers of a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command, only


def add(commands: Any) -> None:
    evaluate = command(
        commands, "evaluate", _evaluate, "Measure a finished run: does it predict, and does it look at parts?",
        takes_fields=True,
    )  # fmt: skip
    evaluate.add_argument("run", type=Path, help="run directory")
    evaluate.add_argument("--split", default="test", help="test (default), validation or train")
    evaluate.add_argument("--metrics", help="only these, e.g. coverage,diversity; all: also stability (one more pass), "
                          "purity (one over train), faithfulness (two) (default: all without such passes)")  # fmt: skip
    evaluate.add_argument("--tau", type=float, help="share of a part that a region must cover (0.2)")
    evaluate.add_argument("--percentile", type=float, help="percentile of its map that bounds a region (95)")
    evaluate.add_argument("--part-mode", help="exact: the data's own part masks; disc, clipped, voronoi, point: from "
                          "keypoints (exact where the data has part masks, else disc)")  # fmt: skip
    evaluate.add_argument(
        "--radius", type=float, help="of the discs, a share of --radius-of (0.12 of box, 0.08 of image)"
    )
    evaluate.add_argument("--radius-of", help="box: √(area of the object's box) (default); image: its side")
    evaluate.add_argument("--scope", help="image: mean over pictures (default); dataset: pooled over them; projection: "
                          "each prototype on its source picture")  # fmt: skip


def _evaluate(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.evaluation.protocol import SPLITS, Protocol, one_of
    from dapl.evaluation.selection import chosen
    from dapl.run import Run

    only(overrides, ("runtime", "cache", "data"), "evaluation")
    options = ("tau", "percentile", "part_mode", "radius", "radius_of", "scope")
    given = {name: getattr(arguments, name) for name in options if getattr(arguments, name) is not None}
    protocol = Protocol(**given)
    one_of("split", arguments.split, SPLITS)
    chosen(arguments.metrics)
    run = Run.open(arguments.run)
    config = run.config(overrides)

    from dapl.evaluation import evaluate, table
    from dapl.training.launch import is_first_process

    result = evaluate(arguments.run, protocol, arguments.split, arguments.metrics, config)
    if not is_first_process():
        return 0
    print(table(result))
    print(f"\nnumbers      {run.evaluation_file}\ntables       {run.evaluation_folder}/*.csv")
    print(f"plots        {run.evaluation_folder}/*.png")
    return 0
