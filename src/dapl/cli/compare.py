"""``dapl compare``: several systems under one protocol, mean ± deviation over seeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command
from dapl.errors import DaplError


def add(commands: Any) -> None:
    compare = command(
        commands, "compare", _compare, "Train what is missing, measure all under one protocol, make the table.",
        takes_fields=True, when_interrupted="; the same command goes on where it stood",
    )  # fmt: skip
    compare.add_argument("sources", type=Path, nargs="+", metavar="RUN|CONFIG", help="runs, or configs to train")
    compare.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder of the runs and the table "
                         "(default: runs/compare)")  # fmt: skip
    compare.add_argument("--seeds", default="0", help="seeds of the configs, e.g. 0,1,2 (default: 0)")
    compare.add_argument("--split", default="test", help="test (default), validation or train")
    compare.add_argument("--metrics", help="as `dapl evaluate --metrics`; all: also faithfulness, stability, purity")
    compare.add_argument("--tau", type=float, help="share of a part that a region must cover (0.2)")
    compare.add_argument("--class", dest="class_name", metavar="NAME", help="class of the picture (the first)")
    compare.add_argument("--picture", type=int, default=0, help="which of its test pictures (0)")


def _compare(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.compare.plan import plan
    from dapl.compare.table import against_black_box, rows_of, shown_columns, train_all, write
    from dapl.evaluation.protocol import SPLITS, Protocol, one_of
    from dapl.evaluation.selection import chosen
    from dapl.tables import print_table

    one_of("split", arguments.split, SPLITS)
    chosen(arguments.metrics)
    protocol = Protocol() if arguments.tau is None else Protocol(tau=arguments.tau)
    entries = plan(arguments.sources, arguments.out, seeds_of(arguments.seeds), overrides)

    from dapl.compare import frontier, picture

    shown = picture.choose(entries, arguments.class_name, arguments.picture)
    train_all(entries)
    rows = rows_of(entries, arguments.split, arguments.metrics, protocol)
    files = write(arguments.out, rows, entries, arguments.split, protocol)
    drawn = [
        frontier.draw(rows, arguments.out / "frontier.png"),
        picture.draw(entries, arguments.out / "prototypes.png", *shown),
    ]
    print_table(rows, shown_columns(rows))
    for line in against_black_box(rows):
        print(line)
    print(f"\ntable        {', '.join(map(str, files))}")
    print(f"pictures     {', '.join(str(file) for file in drawn if file is not None)}")
    return 0


def seeds_of(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise DaplError(f"--seeds {text}: give whole numbers, e.g. 0,1,2.") from error
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise DaplError(f"--seeds {text}: give different numbers from 0 on.")
    return seeds
