"""``dapl evaluate``: the numbers of a finished run.

``dapl explain``: why an image got its label.

``dapl report``: a page to look at every prototype of a run.

``dapl serve``: look at a run in the browser.

``dapl export``: a trained model for ONNX Runtime and in the layout of the Hugging Face Hub.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapl.cli.options import command, only
from dapl.common.errors import DaplError, nearest

if TYPE_CHECKING:
    from dapl.explain.classifier import Classifier
    from dapl.explain.local import LocalExplanation


def add_evaluate(commands: Any) -> None:
    evaluate = command(
        commands,
        "evaluate",
        _evaluate,
        "Measure a finished run: does it predict, and does it look at parts?",
        takes_fields=True,
    )
    evaluate.add_argument("run", type=Path, help="run directory")
    evaluate.add_argument("--split", default="test", help="test (default), validation or train")
    evaluate.add_argument(
        "--metrics",
        help="only these, e.g. coverage,diversity; all: also stability (one more pass), "
        "purity (one over train), faithfulness (two) (default: all without such passes)",
    )
    evaluate.add_argument("--tau", type=float, help="share of a part that a region must cover (0.2)")
    evaluate.add_argument("--percentile", type=float, help="percentile of its map that bounds a region (95)")
    evaluate.add_argument(
        "--part-mode",
        help="exact: the data's own part masks; disc, clipped, voronoi, point: from "
        "keypoints (exact where the data has part masks, else disc)",
    )
    evaluate.add_argument(
        "--radius", type=float, help="of the discs, a share of --radius-of (0.12 of box, 0.08 of image)"
    )
    evaluate.add_argument("--radius-of", help="box: √(area of the object's box) (default); image: its side")
    evaluate.add_argument(
        "--scope",
        help="image: mean over images (default); dataset: pooled over them; projection: "
        "each prototype on its source image",
    )


def _evaluate(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.evaluation.protocol import SPLITS, EvaluationProtocol, one_of
    from dapl.metrics.registry import chosen
    from dapl.runs.run import Run

    only(overrides, ("runtime", "cache", "data"), "evaluation")
    options = ("tau", "percentile", "part_mode", "radius", "radius_of", "scope")
    given = {name: getattr(arguments, name) for name in options if getattr(arguments, name) is not None}
    protocol = EvaluationProtocol(**given)
    one_of("split", arguments.split, SPLITS)
    chosen(arguments.metrics)
    run = Run.open(arguments.run)
    config = run.config(overrides)

    from dapl.evaluation import evaluate, table
    from dapl.processes.launch import is_first_process

    result = evaluate(arguments.run, protocol, arguments.split, arguments.metrics, config)
    if not is_first_process():
        return 0
    print(table(result))
    print(f"\nnumbers      {run.evaluation_file}\ntables       {run.evaluation_folder}/*.csv")
    print(f"plots        {run.evaluation_folder}/*.png")
    return 0


_FORMATS = ("html", "png", "json")


def add_explain(commands: Any) -> None:
    explain = command(commands, "explain", _explain, "Show why an image got its label: this looks like that.")
    explain.add_argument("run", type=Path, help="run directory, or a folder that `dapl export` wrote")
    explain.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image file, or name of an image of the run's data",
    )
    explain.add_argument(
        "--class",
        dest="against",
        metavar="NAME|INDEX",
        help="class to explain beside the predicted one (default: the runner-up)",
    )
    explain.add_argument("--top", type=int, default=10, metavar="N", help="prototypes listed a class (10)")
    explain.add_argument("--out", type=Path, metavar="DIR", help="folder for the files (default: RUN/explanations)")
    explain.add_argument(
        "--format", default="html", metavar="FORMATS", help="html, png, json, or several with commas (html)"
    )


def _explain(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    formats = _formats(arguments.format)
    if arguments.top < 1:
        raise DaplError(f"--top is {arguments.top}; at least one prototype must be listed.")

    from dapl.export.hub import load_classifier

    model = load_classifier(arguments.run)
    if arguments.against is not None:
        model.class_index(arguments.against)  # a wrong name is said before anything is computed
    out = arguments.out or arguments.run / "explanations"
    taken: set[str] = set()
    for image in arguments.images:
        found = _explained(model, image, arguments.against, arguments.top)
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


def _formats(text: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in _FORMATS:
            raise DaplError(f"--format: '{word}' is not known{nearest(word, _FORMATS)}")
    if not words:
        raise DaplError("--format names no format; give html, png or json.")
    return list(dict.fromkeys(words))


def _free_stem(name: Path, taken: set[str]) -> str:
    """The name of an image without its ending, and where two images have the same, a number more."""
    stem = str(name.with_suffix("")).replace("/", "-").replace("\\", "-") or "image"
    free, number = stem, 1
    while free in taken:
        number += 1
        free = f"{stem}-{number}"
    taken.add(free)
    return free


def add_report(commands: Any) -> None:
    report = command(
        commands,
        "report",
        _report,
        "Make a page of a finished run: numbers, curves and every prototype.",
        takes_fields=True,
    )
    report.add_argument("run", type=Path, help="run directory")
    report.add_argument(
        "--out",
        type=Path,
        help="folder to make (RUN/report), or the file with --single-file "
        "(RUN/report.html); an older report is replaced",
    )
    report.add_argument("--single-file", action="store_true", help="put everything into one HTML file")
    report.add_argument(
        "--images", type=int, default=3, metavar="N", help="images of its class that each prototype is shown on (3)"
    )
    report.add_argument("--pictures", dest="images", type=int, help=argparse.SUPPRESS)  # its former name


def _report(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.runs.run import Run

    only(overrides, ("runtime", "cache", "data"), "a report")
    if arguments.images < 1:
        raise DaplError(f"--images: is {arguments.images}; each prototype must be shown on one image or more.")
    config = Run.open(arguments.run).config(overrides)

    from dapl.report.collect import collect
    from dapl.report.page import check_folder, write_folder, write_single_file

    out = arguments.out or arguments.run / ("report.html" if arguments.single_file else "report")
    if not arguments.single_file:
        check_folder(out)
    report = collect(arguments.run, config, arguments.images)
    page = write_single_file(report, out) if arguments.single_file else write_folder(report, out)
    size = out.stat().st_size if out.is_file() else sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(f"report       {page}  ({size / 1e6:.1f} MB)")
    return 0


def add_serve(commands: Any) -> None:
    parser = command(
        commands,
        "serve",
        _serve,
        "Look at a run in the browser: drop an image, see the reasons, switch them off, mark bad ones.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="port (default: 8000; 0: any that is free)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name under which browsers may call it, e.g. that of a proxy",
    )


def _serve(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.serve.app import serve

    serve(arguments.run, arguments.host, arguments.port, arguments.allow_host)
    return 0


def add_export(commands: Any) -> None:
    export = command(
        commands,
        "export",
        _export,
        "Write a run's model as ONNX and in Hugging Face Hub format.",
        takes_fields=True,
        when_interrupted="; nothing was written",
    )
    export.add_argument("run", type=Path, help="run directory")
    export.add_argument("--format", default="onnx,hub", help="onnx, hub, or both (default: onnx,hub)")
    export.add_argument("--out", type=Path, help="folder to make (default: RUN/export); an earlier export is replaced")
    export.add_argument("--push", metavar="NAME", help="also upload the folder to the hub, as user/model")
    export.add_argument("--private", action="store_true", help="with --push: only you can see it")


def _export(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.runs.run import Run

    only(overrides, ("runtime", "cache", "data"), "an export")
    config = Run.open(arguments.run).config(overrides)

    from dapl.export.export import export_run, parse_formats

    formats = parse_formats(arguments.format)
    if arguments.push is not None:
        from dapl.export.hub import check_push

        check_push(arguments.push, formats)
    done = export_run(arguments.run, arguments.out, formats, config)
    for path in sorted(done.folder.iterdir()):
        print(f"{path.name:<19}{_size(path):>10}")
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


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
