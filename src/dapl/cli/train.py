"""``dapl demo`` and ``dapl train``: from nothing, or a config, to a trained, measured, drawn model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command, only
from dapl.common.errors import DaplError

_GO_ON = "; `dapl train --resume RUN` goes on from the last checkpoint"


@command(
    "Train a model by its config, or go on with a run.",
    ("config?", Path, "YAML config, e.g. configs/cub20.yaml; its field `base` names configs that it is laid over"),
    ("--out RUN", Path, "run directory to make (default: runs/<name of the config>, or RUN-without-marked)"),
    ("--resume RUN", Path, "go on with this run from its last checkpoint"),
    ("--from RUN", Path, "with --drop-marked: the run to improve"),
    ("--drop-marked", False, "a new run without the prototypes marked as bad, last layer tuned again"),
    ("--help/-h", False, "show this help, with every field of a config"),
    fields=(),
    own_help=True,
    when_interrupted=_GO_ON,
)
def train(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if arguments.help:
        return _train_help(arguments.format_help())
    from dapl.config import load_config

    if vars(arguments)["from"] is not None or arguments.drop_marked:
        return _drop_marked(arguments, overrides)
    if arguments.resume is not None:
        from dapl.runs.run import open_run

        if arguments.config is not None or arguments.out is not None:
            raise DaplError("--resume takes config and folder from the run; leave CONFIG and --out out.")
        only(overrides, ("runtime", "cache"), "a resumed run")
        out, (_, config) = arguments.resume, open_run(arguments.resume, overrides)
    else:
        if arguments.config is None:
            raise DaplError("dapl train needs a config, e.g. `dapl train configs/cub20.yaml`, or --resume RUN.")
        config = load_config(arguments.config, overrides)
        out = arguments.out or Path("runs") / arguments.config.stem
    return _run(config, out, arguments.resume is not None)


def _drop_marked(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.training.marked import without_marked

    source = vars(arguments)["from"]
    if source is None or not arguments.drop_marked:
        raise DaplError("--from RUN and --drop-marked go together: `dapl train --from RUN --drop-marked`.")
    if arguments.config is not None or arguments.resume is not None:
        raise DaplError("--from takes the config from its run; leave CONFIG and --resume out.")
    only(overrides, ("data", "runtime", "cache"), "a run made with --drop-marked")
    out = arguments.out or _free(source.resolve().with_name(f"{source.resolve().name}-without-marked"))
    return _run(without_marked(source, out, overrides), out, True)


@command(
    "Train on drawn birds, measure, and show where to look. Needs no data.",
    ("--out RUN", Path, "run directory to make (default: runs/demo, or the next free name)"),
    when_interrupted=_GO_ON,
)
def demo(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.config import load_config

    out = arguments.out or _free(Path("runs") / "demo")
    return _run(load_config(Path(__file__).parents[1] / "demo.yaml"), out, False)


def _run(config, out: Path, resume: bool) -> int:
    """Train, draw the prototypes, measure on the test split (once, at the end), and say where everything is."""
    from dapl.evaluation import evaluate, table
    from dapl.explain.sheet import write_sheet
    from dapl.processes.launch import is_first_process
    from dapl.training.trainer import train

    run = train(config, out, resume)
    has_prototypes = config.model.system != "blackbox"
    result = evaluate(run.folder, config=config, chance=False)  # `dapl evaluate` says what chance gets
    if not is_first_process():
        return 0
    if has_prototypes:
        write_sheet(run.folder, config)  # after the evaluation, which says where the prototypes look
    print(table(result))
    if has_prototypes:
        print(f"\nprototypes   {run.sheet_file}\nrecords      {run.prototypes_file}", end="")
    print(f"\nnumbers      {run.evaluation_file}")
    print(f"plots        {run.evaluation_folder}\ncurves       {run.metrics_file}")
    print(f"chance       dapl evaluate {run.folder}")
    return 0


def _train_help(text: str) -> int:
    from dapl.config import describe_fields

    print(f"{text}\nfields of a config, each of them also a flag --section.field VALUE (default): what it is\n")
    for name, default, meaning in describe_fields():
        print(f"  {name}{f' ({default})' if default else ''}: {meaning}")
    return 0


def _free(folder: Path) -> Path:
    """``folder``, or the first of folder-2, folder-3, … that does not exist."""
    number = 1
    while (candidate := folder if number == 1 else folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return candidate
