"""``dapl compare``: several systems under one protocol, mean ± deviation over seeds.

``dapl sweep``: many runs that differ in some fields of a config, as a grid or a search, with the paper's figure.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command
from dapl.common.errors import DaplError


def add_compare(commands: Any) -> None:
    compare = command(
        commands,
        "compare",
        _compare,
        "Train what is missing, measure all under one protocol, make the table.",
        takes_fields=True,
        when_interrupted="; the same command goes on where it stood",
    )
    compare.add_argument("sources", type=Path, nargs="+", metavar="RUN|CONFIG", help="runs, or configs to train")
    compare.add_argument(
        "--out",
        type=Path,
        default=Path("runs/compare"),
        help="folder of the runs and the table (default: runs/compare)",
    )
    compare.add_argument("--seeds", default="0", help="seeds of the configs, e.g. 0,1,2 (default: 0)")
    compare.add_argument("--split", default="test", help="test (default), validation or train")
    compare.add_argument("--metrics", help="as `dapl evaluate --metrics`; all: also faithfulness, stability, purity")
    compare.add_argument("--tau", type=float, help="share of a part that a region must cover (0.2)")
    compare.add_argument("--class", dest="class_name", metavar="NAME", help="class of the image (the first)")
    compare.add_argument("--image", type=int, default=0, help="which of its test images (0)")


def _compare(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.common.tables import print_table
    from dapl.evaluation.protocol import SPLITS, EvaluationProtocol, one_of
    from dapl.experiments.comparison import against_black_box, plan, rows_of, shown_columns, train_all, write
    from dapl.metrics.registry import chosen

    one_of("split", arguments.split, SPLITS)
    chosen(arguments.metrics)
    protocol = EvaluationProtocol() if arguments.tau is None else EvaluationProtocol(tau=arguments.tau)
    entries = plan(arguments.sources, arguments.out, seeds_of(arguments.seeds), overrides)

    from dapl.experiments.comparison_figures import choose, draw_frontier, draw_side_by_side

    shown = choose(entries, arguments.class_name, arguments.image)
    train_all(entries)
    rows = rows_of(entries, arguments.split, arguments.metrics, protocol)
    files = write(arguments.out, rows, entries, arguments.split, protocol)
    drawn = [
        draw_frontier(rows, arguments.out / "frontier.png"),
        draw_side_by_side(entries, arguments.out / "prototypes.png", *shown),
    ]
    print_table(rows, shown_columns(rows))
    for line in against_black_box(rows):
        print(line)
    print(f"\ntable        {', '.join(map(str, files))}")
    print(f"images     {', '.join(str(file) for file in drawn if file is not None)}")
    return 0


def seeds_of(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise DaplError(f"--seeds {text}: give whole numbers, e.g. 0,1,2.") from error
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise DaplError(f"--seeds {text}: give different numbers from 0 on.")
    return seeds


_GO_ON = "; the same command goes on: finished points are kept, the one that ran resumes from its checkpoint"


def add_sweep(commands: Any) -> None:
    sweep = command(
        commands,
        "sweep",
        _sweep,
        "Vary fields of a config: the paper's ablations, any grid, or a search (Optuna).",
        takes_fields=True,
        when_interrupted=_GO_ON,
    )
    sweep.add_argument("config", type=Path, help="YAML config, e.g. configs/cub20.yaml")
    sweep.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FIELD=V,V,…",
        help="values of a field, e.g. loss.contrast.weight=0,0.1; more: all combinations",
    )
    sweep.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="FIELD=log:LOW:HIGH",
        help="an interval to search in, log:0.1:20 or uniform:0:1",
    )
    sweep.add_argument(
        "--ablation",
        metavar="NAME",
        help="of the paper: contrast, fg_weight, fg_threshold, head_dim; "
        "paper: all four; or a YAML file such as those in configs/sweeps",
    )
    sweep.add_argument(
        "--sampler",
        choices=("grid", "tpe"),
        help="grid: every combination; tpe: --trials points drawn "
        "where good ones are likely (default: tpe with --search, else grid)",
    )
    sweep.add_argument("--trials", type=int, help="points that tpe draws (default 20)")
    sweep.add_argument("--sampler-seed", type=int, default=0, help="seed of tpe (0)")
    sweep.add_argument("--seeds", help="runs of each point, e.g. 0,1,2 for mean ± std (default: the config's seed)")
    sweep.add_argument(
        "--objective",
        action="append",
        metavar="NAME[:min|max]",
        help="what is best, on validation (accuracy); several, e.g. accuracy,coverage, give the Pareto front",
    )
    sweep.add_argument("--test", action="store_true", help="at the end also measure test; nothing is chosen by it")
    sweep.add_argument("--out", type=Path, help="folder of the sweep (default: sweeps/<config>[-<ablation>])")
    sweep.add_argument(
        "--storage",
        metavar="URL",
        help="database that several machines share, e.g. postgresql://user@host/name (default: a file in the folder)",
    )
    sweep.add_argument("--verbose", action="store_true", help="print what each run prints")


def _sweep(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.experiments.sweep_space import Base, Dimension, Panel, checked, panels_of, parse_grid, parse_search

    base = Base.read(arguments.config, overrides)
    config = base.config()
    if arguments.ablation:
        if arguments.grid or arguments.search:
            raise DaplError("--ablation says what is varied; leave --grid and --search away.")
        panels = panels_of(arguments.ablation, base)
    else:
        dimensions: list[Dimension] = [parse_grid(text, base, {}) for text in arguments.grid]
        dimensions += [parse_search(text, base, {}) for text in arguments.search]
        title = ", ".join(dimension.field for dimension in dimensions)
        panels = [checked(Panel("sweep", title, tuple(dimensions), {}), base)]

    from dapl.experiments.sweep import Sweep, SweepSettings
    from dapl.experiments.sweep_space import parse_objectives

    settings = SweepSettings(
        objectives=parse_objectives(arguments.objective or ["accuracy"]),
        seeds=_seeds(arguments.seeds) if arguments.seeds else (config.seed,),
        trials=_trials(arguments, all(panel.is_grid() for panel in panels)),
        sampler_seed=arguments.sampler_seed,
        storage=arguments.storage,
        verbose=arguments.verbose,
    )
    name = Path(arguments.ablation).stem if arguments.ablation else ""
    out = arguments.out or Path("sweeps") / "-".join(filter(None, (arguments.config.stem, name)))
    return _work(Sweep(base, panels, out, settings), arguments.test)


def _work(sweep: Any, test: bool) -> int:
    """Run what is left, write what there is, say what is best and what is still missing."""
    from dapl.experiments.sweep_figure import draw_results
    from dapl.experiments.sweep_results import caption_of, gather, print_results, write_results

    sweep.announce()
    sweep.work(lambda: write_results(gather(sweep), sweep))
    results = gather(sweep)
    complete = all(result.is_complete() for result in results)
    if test and complete:
        results = gather(sweep, test=True)
    files = write_results(results, sweep)
    for split in ("validation", "test") if test and complete else ("validation",):
        files += draw_results(sweep.out, results, caption_of(sweep, split), split)
    print_results(results, sweep)
    for file in files:
        print(f"{file.suffix.removeprefix('.'):<5} {file}")
    if running := sum(result.running for result in results):
        print(f"{running} points are being run by other processes; the same command shows all once they are done")
    if test:
        print(
            "test was measured at the end; nothing was chosen by it"
            if complete
            else "test is measured when all points are done"
        )
    return 2 if any(result.failures for result in results) else 0


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError as error:
        raise DaplError(f"--seeds {text}: has to be whole numbers, e.g. 0,1,2.") from error
    if min(seeds) < 0:
        raise DaplError(f"--seeds {text}: a seed is 0 or more.")
    return seeds


def _trials(arguments: argparse.Namespace, is_grid: bool) -> int | None:
    """How many points TPE draws; None for a grid."""
    sampler = arguments.sampler or ("grid" if is_grid else "tpe")
    if sampler == "grid":
        if not is_grid:
            raise DaplError("--sampler grid: an interval has no grid; list the values with --grid FIELD=V,V,…")
        if arguments.trials is not None:
            raise DaplError("--trials: a grid runs all its points; --sampler tpe draws some of them.")
        return None
    trials = 20 if arguments.trials is None else arguments.trials
    if trials < 1:
        raise DaplError(f"--trials {trials}: has to be 1 or more.")
    return trials
