"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapl.errors import DaplError

_SHORT = {"devices": "runtime.devices", "nodes": "runtime.nodes", "accelerator": "runtime.accelerator",
          "precision": "runtime.precision"}  # fmt: skip
"""Flags that may be written without their section."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``dapl``; returns the exit code: 0, or 2 where the user has something to put right."""
    parser = _parser()
    known, rest = parser.parse_known_args(_joined(sys.argv[1:] if arguments is None else arguments))
    try:
        return known.call(known, _overrides(rest, known))
    except DaplError as error:
        print(f"dapl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dapl: interrupted; `dapl train --resume RUN` goes on from the last checkpoint", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dapl",
        description="Image classifiers that show their reasons: train, measure and look at prototype models.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, call, text: str, fields: bool = False) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False, add_help=not fields)
        command.set_defaults(call=call, fields=fields)
        return command

    demo = add("demo", _demo, "Train on drawn birds, measure, and show where to look. Needs no data.")
    demo.add_argument("--out", type=Path, help="run directory to make (default: runs/demo, or the next free name)")

    train = add("train", _train, "Train a model by its config, or go on with a run.", fields=True)
    train.add_argument("config", type=Path, nargs="?", help="YAML config, e.g. configs/cub20.yaml")
    train.add_argument("--out", type=Path, help="run directory to make (default: runs/<name of the config>)")
    train.add_argument("--resume", type=Path, metavar="RUN", help="go on with this run from its last checkpoint")
    train.add_argument("-h", "--help", action="store_true", help="show this help, with every field of a config")

    _add_evaluate(add)
    return parser


def _add_evaluate(add) -> None:
    evaluate = add("evaluate", _evaluate, "Measure a finished run: does it predict, and does it look at parts?")
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


def _joined(words: Sequence[str]) -> list[str]:
    """``--model.head_dim 8`` as one word, or argparse would take the 8 for a config."""
    joined: list[str] = []
    for word in words:
        name = joined[-1].removeprefix("--") if joined and joined[-1].startswith("--") else ""
        is_field = "." in name or name in (*_SHORT, "seed", "schedule")
        if is_field and "=" not in name and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _overrides(rest: Sequence[str], known: argparse.Namespace) -> dict[str, Any]:
    """``--model.head_dim 8 --seed=1`` → {"model.head_dim": 8, "seed": 1}; values are YAML."""
    import yaml

    overrides: dict[str, Any] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise DaplError(f"unexpected argument '{word}'; fields of the config are given as --section.field value.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise DaplError(f"--{name} needs a value.")
            value = words.pop(0)
        try:
            overrides[_SHORT.get(name, name)] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise DaplError(f"--{name}: '{value}' is not a YAML value.") from error
    if overrides and known.call is _demo:
        raise DaplError(f"the demo takes no --{next(iter(overrides))}; use `dapl train` with a config of your own.")
    return overrides


def _train(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if arguments.help:
        return _train_help()
    from dapl.config import load_config

    if arguments.resume is not None:
        from dapl.run import Run

        if arguments.config is not None or arguments.out is not None:
            raise DaplError("--resume takes config and folder from the run; leave CONFIG and --out away.")
        _only(overrides, ("runtime", "cache"), "a resumed run")
        out, config = arguments.resume, Run.open(arguments.resume).config(overrides)
    else:
        if arguments.config is None:
            raise DaplError("dapl train needs a config, e.g. `dapl train configs/cub20.yaml`, or --resume RUN.")
        config = load_config(arguments.config, overrides)
        out = arguments.out or Path("runs") / arguments.config.stem
    return _run(config, out, arguments.resume is not None)


def _demo(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.config import load_config

    out = arguments.out or _free(Path("runs") / "demo")
    return _run(load_config(Path(__file__).with_name("demo.yaml")), out, False)


def _evaluate(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.evaluation.protocol import SPLITS, Protocol, one_of
    from dapl.evaluation.selection import chosen
    from dapl.run import Run

    _only(overrides, ("runtime", "cache", "data"), "evaluation")
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


def _run(config, out: Path, resume: bool) -> int:
    """Train, draw the prototypes, measure on the test split (once, at the end), and say where everything is."""
    from dapl.evaluation import evaluate, table
    from dapl.explain.sheet import write_sheet
    from dapl.training.launch import is_first_process
    from dapl.training.trainer import train

    run = train(config, out, resume)
    if is_first_process():
        write_sheet(run.folder, config)
    result = evaluate(run.folder, config=config)
    if not is_first_process():
        return 0
    print(table(result))
    print(f"\nprototypes   {run.sheet_file}\nrecords      {run.prototypes_file}\nnumbers      {run.evaluation_file}")
    print(f"plots        {run.evaluation_folder}\ncurves       {run.metrics_file}")
    print(f"again        dapl evaluate {run.folder}")
    return 0


def _train_help() -> int:
    from dapl.config import describe_fields

    print("usage: dapl train CONFIG [--out RUN] [--section.field VALUE …]\n       dapl train --resume RUN\n")
    print("  --out RUN      run directory to make (default: runs/<name of the config>)")
    print("  --resume RUN   go on with this run from its last checkpoint\n\nfields of a config (default): what it is\n")
    for name, default, text in describe_fields():
        print(f"  {name}{f' ({default})' if default else ''}: {text}")
    return 0


def _only(overrides: dict[str, Any], sections: Sequence[str], what: str) -> None:
    for name in overrides:
        if name.split(".")[0] not in sections:
            raise DaplError(f"--{name}: {what} takes only fields of {' and '.join(sections)}.")


def _free(folder: Path) -> Path:
    """``folder``, or the first of folder-2, folder-3, … that does not exist."""
    number = 1
    while (candidate := folder if number == 1 else folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return candidate


if __name__ == "__main__":
    sys.exit(main())
