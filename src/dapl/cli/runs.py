"""What is done with a finished run: ``evaluate``, ``interventions``, ``explain``, ``report``, ``serve``, ``export``."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapl.cli.loading import loading
from dapl.cli.options import PROTOCOL, SPLIT, Row, command, names_of, protocol_options
from dapl.common.errors import DaplError

if TYPE_CHECKING:
    from dapl.explain.classifier import Classifier
    from dapl.explain.local import LocalExplanation


_FIELDS = ("runtime", "cache", "data")
"""Sections of a run's config that may be replaced when it is looked at."""
_RUN: Row = ("run RUN", Path, "run directory")


@command(
    "Measure a finished run: does it predict, and does it look at parts?",
    _RUN,
    SPLIT,
    ("--metrics LIST", str, "only these, e.g. coverage,diversity; all: also those with passes of their own"),
    *PROTOCOL,
    ("--attack-epsilon X", 0.4, "of spatial misalignment: largest change of a pixel, in standard deviations"),
    ("--attack-steps N", 10, "of spatial misalignment: steps of gradient descent"),
    ("--attack-images N", 200, "of spatial misalignment: how many images are attacked"),
    ("--control NAME", "auto", "of faithfulness: object (matched), blob (inside the object) or anywhere"),
    ("--no-chance", False, "do not measure what trivial maps get on the same images"),
    fields=_FIELDS,
)
def evaluate(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.evaluation.protocol import SPLITS, EvaluationProtocol, one_of
    from dapl.metrics.registry import chosen
    from dapl.runs.run import open_run

    own = ("control", "attack_epsilon", "attack_steps", "attack_images")
    options = protocol_options(arguments) | {name: getattr(arguments, name) for name in own}
    EvaluationProtocol(**options)  # a bad option is refused before the run is opened
    one_of("split", arguments.split, SPLITS)
    chosen(arguments.metrics)
    run, config = open_run(arguments.run, overrides)
    protocol = EvaluationProtocol(**{"tau": config.data.tau, **options})

    with loading():
        from dapl.evaluation import evaluate, table
        from dapl.evaluation.result import chance_of_model
        from dapl.processes.launch import is_first_process

    result = evaluate(run.folder, protocol, arguments.split, arguments.metrics, config, chance=not arguments.no_chance)
    if not is_first_process():
        return 0
    print(table(result))
    if result.chance is not None:
        print(f"\n{chance_of_model(result)}")
    print(f"\nnumbers      {run.evaluation_file}\ntables       {run.evaluation_folder}/*.csv")
    print(f"plots        {run.evaluation_folder}/*.png")
    return 0


@command(
    "Take parts of drawn birds away: does the explanation name what the model relies on?",
    _RUN,
    ("--attribution LIST", str, "own, own_map, gradcam, integrated_gradients, or several with commas (default: own)"),
    ("--images N", 60, "images of the split, drawn at random"),
    ("--split NAME", "test", "test, validation or train"),
    fields=_FIELDS,
)
def interventions(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.evaluation.protocol import SPLITS, one_of
    from dapl.runs.run import Run

    one_of("split", arguments.split, SPLITS)
    if arguments.images < 2:
        raise DaplError(
            f"--images: is {arguments.images}; give at least 2, or there is nothing to take an interval of."
        )
    run = Run.open(arguments.run)
    config = run.config(overrides)

    with loading():
        from dapl.common.tables import print_table
        from dapl.evaluation.interventions import ATTRIBUTIONS, run_interventions
        from dapl.evaluation.interventions.result import COLUMNS, notes

    named = arguments.attribution
    names = None if named is None else names_of("--attribution", named, ATTRIBUTIONS)
    found = run_interventions(run, names, images=arguments.images, split=arguments.split, config=config)
    print_table(found.rows(), COLUMNS)
    print("\n".join(notes(found)))
    print(f"\nnumbers      {run.interventions_file}\ndrawings     {run.interventions_folder}/*.png")
    return 0


@command(
    "Show why an image got its label: this looks like that.",
    ("run RUN", Path, "run directory, or a folder that `dapl export` wrote"),
    ("images+ IMAGE", str, "image file, or name of an image of the run's data"),
    ("--class NAME|INDEX", str, "class to explain beside the predicted one (default: the runner-up)"),
    ("--top N", 10, "prototypes listed per class"),
    ("--out FOLDER", Path, "folder for the files (default: RUN/explanations)"),
    ("--format LIST", "html", "html, png, json, or several with commas"),
)
def explain(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    formats, against = names_of("--format", arguments.format, ("html", "png", "json")), vars(arguments)["class"]
    if arguments.top < 1:
        raise DaplError(f"--top is {arguments.top}; at least one prototype must be listed.")

    with loading():
        from dapl.export.hub import load_classifier

    model = load_classifier(arguments.run)
    if against is not None:
        model.class_index(against)  # a wrong name is said before anything is computed
    out = arguments.out or arguments.run / "explanations"
    taken: set[str] = set()
    for image in arguments.images:
        found = _explained(model, image, against, arguments.top)
        stem = _free_stem(Path(found.name), taken)
        print(found.text())
        for kind in formats:
            print(f"  {found.save(out / f'{stem}.{kind}')}")
    if model.patches.problem:
        print(f"dapl: {model.patches.problem}", file=sys.stderr)
    return 0


def _explained(model: Classifier, image: str, against: str | None, top: int) -> LocalExplanation:
    known = None
    if not Path(image).exists():
        with suppress(DaplError):  # without the data it can only be a file, and reading that says what is wrong
            known = model.sample(image)
    if known is None:
        return model.explain(Path(image), against, top)
    return model.explain(known[0], against, top, parts=known[1])


def _free_stem(name: Path, taken: set[str]) -> str:
    """The name of an image without its ending, and where two images have the same, a number more."""
    stem = str(name.with_suffix("")).replace("/", "-").replace("\\", "-") or "image"
    free, number = stem, 1
    while free in taken:
        number += 1
        free = f"{stem}-{number}"
    taken.add(free)
    return free


@command(
    "Make a page of a finished run: numbers, curves and every prototype.",
    _RUN,
    ("--out FOLDER|FILE", Path, "what to make or replace (default: RUN/report, RUN/report.html)"),
    ("--single-file", False, "put everything into one HTML file"),
    ("--images/--pictures N", 3, "images of its class that each prototype is shown on"),
    fields=_FIELDS,
)
def report(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.runs.run import open_run

    if arguments.images < 1:
        raise DaplError(f"--images: is {arguments.images}; each prototype must be shown on one image or more.")
    _, config = open_run(arguments.run, overrides)

    with loading():
        from dapl.common.files import check_writable
        from dapl.report.collect import collect
        from dapl.report.page import check_folder, write_folder, write_single_file

    out = arguments.out or arguments.run / ("report.html" if arguments.single_file else "report")
    if not arguments.single_file:
        check_folder(out)
    check_writable(out.parent)
    report = collect(arguments.run, config, arguments.images)
    page = write_single_file(report, out) if arguments.single_file else write_folder(report, out)
    print(f"report       {page}  ({_bytes(out) / 1e6:.1f} MB)")
    return 0


@command(
    "Look at a run in the browser: drop an image, see the reasons, switch them off, mark bad ones; or at several.",
    ("runs+ RUN", Path, "run directory; of several, the same image and the reasons of each"),
    ("--host ADDRESS", "127.0.0.1", "address to listen at; the default is for this machine only"),
    ("--port N", 8000, "port; 0 takes any that is free"),
    ("--allow-host NAME", [], "a further name under which browsers may call it, e.g. that of a proxy"),
    ("--token TEXT", str, "what everyone has to show (default: none; a new one where other machines can reach it)"),
    ("--access-log FILE", Path, "append one line of JSON per request to this file; - is standard error"),
)
def serve(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    with loading():
        from dapl.serve.app import serve

    options = {"token": arguments.token, "access_log": arguments.access_log}
    serve(*arguments.runs, host=arguments.host, port=arguments.port, names=arguments.allow_host, **options)
    return 0


@command(
    "Write a run's model as ONNX and in Hugging Face Hub format.",
    _RUN,
    ("--format LIST", "onnx,hub", "onnx, hub, or both"),
    ("--out FOLDER", Path, "folder to make; an earlier export is replaced (default: RUN/export)"),
    ("--push NAME", str, "also upload the folder to the hub, as user/model"),
    ("--private", False, "with --push: only you can see it"),
    fields=_FIELDS,
    when_interrupted="; nothing was written",
)
def export(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.runs.run import open_run

    _, config = open_run(arguments.run, overrides)

    with loading():
        from dapl.export.export import FORMATS, export_run

    formats = names_of("--format", arguments.format, FORMATS)
    if arguments.push is not None:
        from dapl.export.hub import check_push

        check_push(arguments.push, formats)
    done = export_run(arguments.run, arguments.out, formats, config)
    for path in sorted(done.folder.iterdir()):
        size = _bytes(path)
        shown = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
        print(f"{path.name:<19}{shown:>10}")
    if done.differences:
        worst = ", ".join(f"{name} {value:.1e}" for name, value in done.differences.items())
        print(f"ONNX Runtime against PyTorch, largest difference: {worst}")
    if done.without_images:
        print(f"{done.without_images} prototypes go without an image: their training images are not at hand")
    print(f"\nexported to  {done.folder}")
    if arguments.push is not None:
        from dapl.export.hub import push_folder

        print(f"uploaded to  {push_folder(done.folder, arguments.push, arguments.private)}")
    return 0


def _bytes(path: Path) -> int:
    """Size of a file, or of all files below a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
