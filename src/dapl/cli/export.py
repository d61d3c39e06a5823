"""``dapl export``: a trained model for ONNX Runtime and in the layout of the Hugging Face Hub."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command, only


def add(commands: Any) -> None:
    export = command(
        commands, "export", _export, "Write a run's model as ONNX and in Hugging Face Hub format.", takes_fields=True,
        when_interrupted="; nothing was written",
    )  # fmt: skip
    export.add_argument("run", type=Path, help="run directory")
    export.add_argument("--format", default="onnx,hub", help="onnx, hub, or both (default: onnx,hub)")
    export.add_argument("--out", type=Path, help="folder to make (default: RUN/export); an earlier export is replaced")
    export.add_argument("--push", metavar="NAME", help="also upload the folder to the hub, as user/model")
    export.add_argument("--private", action="store_true", help="with --push: only you can see it")


def _export(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.run import Run

    only(overrides, ("runtime", "cache", "data"), "an export")
    config = Run.open(arguments.run).config(overrides)

    from dapl.export.whole_run import export_run, parse_formats

    formats = parse_formats(arguments.format)
    if arguments.push is not None:
        from dapl.export.push import check_push

        check_push(arguments.push, formats)
    done = export_run(arguments.run, arguments.out, formats, config)
    for path in sorted(done.folder.iterdir()):
        print(f"{path.name:<19}{_size(path):>10}")
    if done.differences:
        worst = ", ".join(f"{name} {value:.1e}" for name, value in done.differences.items())
        print(f"ONNX Runtime against PyTorch, largest difference: {worst}")
    if done.without_pictures:
        print(f"{done.without_pictures} prototypes go without a picture: their training pictures are not at hand")
    print(f"\nexported to  {done.folder}")
    if arguments.push is not None:
        from dapl.export.push import push_folder

        print(f"uploaded to  {push_folder(done.folder, arguments.push, arguments.private)}")
    return 0


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
