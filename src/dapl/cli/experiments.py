"""``dapl compare``, several systems under one protocol, and ``dapl sweep``, one config with some fields varied."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import PROTOCOL, SPLIT, command, protocol_options
from dapl.common.errors import DaplError, nearest

_GO_ON = "; the same command goes on: finished points are kept, the one that ran resumes from its checkpoint"


@command(
    "Train what is missing, measure all under one protocol, make the table.",
    ("sources+ RUN|CONFIG", Path, "runs, or configs to train"),
    ("--out FOLDER", Path("runs/compare"), "folder of the runs and the table"),
    ("--seeds LIST", "0", "seeds of the configs, e.g. 0,1,2"),
    SPLIT,
    ("--metrics LIST", str, "as `dapl evaluate --metrics`; all: also faithfulness, stability and purity"),
    *PROTOCOL,
    ("--class NAME", str, "class of the image that the systems are shown on (default: the first)"),
    ("--image/--picture N", 0, "which of the test images of that class"),
    ("--wide", False, "print every column of the table, not only those that fit a terminal"),
    ("--no-chance", False, "leave out the rows of trivial maps: noise, random discs, a grid, an oracle"),
    fields=(),
    when_interrupted="; the same command goes on where it stood",
)
def compare(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.common.tables import print_table
    from dapl.evaluation.protocol import SPLITS, EvaluationProtocol, one_of
    from dapl.experiments.comparison import (
        against_black_box,
        chance_on,
        chance_rows,
        narrow_columns,
        notices,
        plan,
        rows_of,
        shown_columns,
        train_all,
        write,
    )
    from dapl.metrics.registry import chosen

    one_of("split", arguments.split, SPLITS)
    chosen(arguments.metrics)
    given = protocol_options(arguments)
    EvaluationProtocol(**given)  # a bad option is refused before any config is read
    systems = plan(arguments.sources, arguments.out, _seeds(arguments.seeds), overrides)
    protocol = EvaluationProtocol(**{"tau": systems[0].config.data.tau, **given})

    from dapl.experiments.comparison_figures import choose, draw_frontier, draw_side_by_side

    shown = choose(systems, vars(arguments)["class"], arguments.image)
    train_all(systems)
    rows = rows_of(systems, arguments.split, arguments.metrics, protocol)
    columns = shown_columns(rows, arguments.metrics)
    chance = None if arguments.no_chance else chance_on(systems, arguments.split, protocol)
    files = write(arguments.out, rows, columns, systems, arguments.split, protocol, arguments.words, chance)
    drawn = [
        draw_frontier([*rows, *chance_rows(chance)], arguments.out / "frontier.png"),
        draw_side_by_side(systems, arguments.out / "prototypes.png", *shown),
    ]
    printed = columns if arguments.wide else narrow_columns(columns, arguments.metrics)
    print_table([*rows, *chance_rows(chance)], printed)
    if len(printed) < len(columns):
        print(f"{len(columns) - len(printed)} more columns with --wide, and in the files below")
    for line in (*against_black_box(rows), *notices(systems)):
        print(line)
    print(f"\ntable        {', '.join(map(str, files))}")
    print(f"images       {', '.join(str(file) for file in drawn if file is not None)}")
    return 0


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise DaplError(f"--seeds {text}: give whole numbers, e.g. 0,1,2.") from error
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise DaplError(f"--seeds {text}: give different numbers from 0 on.")
    return seeds


@command(
    "Vary fields of a config: the paper's ablations, any grid, or a search (Optuna).",
    ("config", Path, "YAML config, e.g. configs/cub20.yaml"),
    ("--grid FIELD=V,V,…", [], "values of a field, e.g. loss.contrast.weight=0,0.1; several: all combinations"),
    ("--search FIELD=log:LOW:HIGH", [], "an interval to search in, log:0.1:20 or uniform:0:1"),
    ("--ablation NAME", str, "contrast, fg_weight, fg_threshold, head_dim, paper (all four), parts, or a YAML file"),
    ("--sampler grid|tpe", str, "grid: every combination; tpe: where good points are likely (default with --search)"),
    ("--trials N", int, "points that tpe draws (default: 20)"),
    ("--sampler-seed N", 0, "seed of tpe"),
    ("--seeds LIST", str, "seeds of each point, e.g. 0,1,2 for mean ± std (default: the config's seed)"),
    ("--objective NAME[:min|max]", [], "what is best (default: accuracy); several give the Pareto front"),
    ("--test", False, "at the end also measure test; nothing is chosen by it"),
    ("--out FOLDER", Path, "folder of the sweep (default: sweeps/<config>[-<ablation>])"),
    ("--storage URL", str, "database that several machines share (default: a file in the folder)"),
    ("--verbose", False, "print what each run prints"),
    fields=(),
    when_interrupted=_GO_ON,
)
def sweep(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.experiments.sweep_space import Base, make_panel, panels_of, parse_grid, parse_objectives, parse_search

    base = Base.read(arguments.config, overrides)
    config = base.config()
    if arguments.ablation:
        if arguments.grid or arguments.search:
            raise DaplError("--ablation says what is varied; leave --grid and --search out.")
        panels = panels_of(arguments.ablation, base)
    else:
        grid, search = [parse_grid(text) for text in arguments.grid], [parse_search(text) for text in arguments.search]
        panels = [make_panel("sweep", ", ".join(field for field, _ in (*grid, *search)), base, grid, search)]

    from dapl.experiments.sweep import Sweep, SweepSettings

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
    from dapl.experiments.sweep_study import database_refusals

    made = Sweep(base, panels, out, settings)
    with database_refusals(out):
        return _work(made, arguments.test, arguments.words)


def _work(sweep: Any, test: bool, words: list[str]) -> int:
    """Run what is left, write what there is, say what is best and what is still missing."""
    from dapl.experiments.sweep_figure import draw_results
    from dapl.experiments.sweep_results import caption_of, gather, print_results, write_results

    sweep.announce()
    sweep.work(lambda: write_results(gather(sweep), sweep, words))
    results = gather(sweep)
    complete = all(result.is_complete() for result in results)
    if test and complete:
        results = gather(sweep, test=True)
    files = write_results(results, sweep, words)
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


def _trials(arguments: argparse.Namespace, is_grid: bool) -> int | None:
    """How many points TPE draws; None for a grid."""
    sampler = arguments.sampler or ("grid" if is_grid else "tpe")
    if sampler not in ("grid", "tpe"):
        raise DaplError(f"--sampler: '{sampler}' is not known{nearest(sampler, ('grid', 'tpe'))}")
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
