"""``dapl demo``, ``dapl train`` and ``dapl init``: from nothing, data or a config to a trained, measured model."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapl.cli.data import REMBG_MODEL, SAM_MODEL, mask_model
from dapl.cli.loading import loading
from dapl.cli.options import command, only
from dapl.common.errors import DaplError

if TYPE_CHECKING:
    from dapl.config import Config
    from dapl.prepare.own_data import Choice

_GO_ON = "; `dapl train --resume RUN` goes on from the last checkpoint"


_MASKS = (
    ("--masks", ("auto", "rembg", "sam", "features", "grabcut", "none"), "how masks are made for data without"),
    SAM_MODEL,
    REMBG_MODEL,
)


@command(
    "Train on data or by a config, or go on with a run.",
    ("source? DATA|CONFIG", Path, "folder of class folders or COCO .json; or a YAML config, e.g. configs/cub20.yaml"),
    ("--out RUN", Path, "run directory to make (default: runs/<name of the source>)"),
    ("--resume RUN", Path, "go on with this run from its last checkpoint"),
    ("--from RUN", Path, "with --drop-marked: the run to improve"),
    ("--submit CLUSTER", str, "hand it to a cluster by submitit: slurm, local or auto (docs/scale.md)"),
    ("--job FIELD=VALUE", [], "option of the job, e.g. --job timeout_min=600 --job slurm_partition=gpu"),
    ("--drop-marked", False, "a new run without the prototypes marked as bad, last layer tuned again"),
    *_MASKS,
    fields=(),
    when_interrupted=_GO_ON,
    epilog="Every field of a config is a flag too: --model.heads 5, --schedule.0.epochs 20. `dapl fields` lists them, "
    "`dapl fields model` those of one section. For DATA, the config is chosen by what the data has; `dapl init DATA` "
    "writes that choice down.",
)
def train(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.config import load_config

    if vars(arguments)["from"] is not None or arguments.drop_marked:
        return _drop_marked(arguments, overrides)
    source: Path | None = arguments.source
    if arguments.resume is not None:
        from dapl.runs.run import open_run

        if source is not None or arguments.out is not None:
            raise DaplError("--resume takes config and folder from the run; leave CONFIG and --out out.")
        only(overrides, ("runtime", "cache"), "a resumed run")
        out, (_, config) = arguments.resume, open_run(arguments.resume, overrides)
        return _submit(arguments, config, out) if arguments.submit is not None else _run(config, out, True)
    if source is None:
        raise DaplError("dapl train needs data or a config, e.g. `dapl train FOLDER`, or --resume RUN.")
    if not _is_data(source):
        config, out = load_config(source, overrides), arguments.out or Path("runs") / source.stem
        return _submit(arguments, config, out) if arguments.submit is not None else _run(config, out, _restarted(out))
    if arguments.submit is not None:
        raise DaplError(f"--submit takes a config; `dapl init {source}` writes one for this data.")
    out = arguments.out or _free(Path("runs") / (source.resolve().stem or "data"))
    _refuse_taken(out)
    config = _own_data(arguments, overrides).config({k: v for k, v in overrides.items() if not k.startswith("data.")})
    code = _run(config, out, False)
    print(f"\ngo on with   dapl report {out}\n             dapl explain {out} {_an_image(config)}")
    print(f"             dapl serve {out}")
    return code


@command(
    "Write the config that `dapl train DATA` would use, with its reasons.",
    ("data", Path, "folder of class folders, CUB's folder, or COCO .json"),
    ("--out FILE", Path, "file to write (default: <name of the data>.yaml)"),
    *_MASKS,
    fields=("data",),
)
def init(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.common.files import write_text

    file = arguments.out or Path(f"{arguments.data.resolve().stem or 'data'}.yaml")
    if file.exists():
        raise DaplError(f"{file}: exists; name another by --out, or delete it.")
    arguments.source = arguments.data
    choice = _own_data(arguments, overrides)
    write_text(file, choice.yaml(f"dapl init {arguments.data}"))
    print(f"\nconfig       {file}\ngo on with   dapl train {file}")
    return 0


def _is_data(source: Path) -> bool:
    if (source / "config.yaml").is_file():
        raise DaplError(f"{source}: is a run; `dapl train --resume {source}` goes on with it.")
    return source.is_dir() or source.suffix.lower() == ".json"


def _refuse_taken(out: Path) -> None:
    """Before masks are made, which takes a while."""
    from dapl.runs.run import Run

    if not Run(out).is_free():
        raise DaplError(f"{out}: exists and is not empty; name another folder by --out.")


def _own_data(arguments: argparse.Namespace, overrides: dict[str, Any]) -> Choice:
    """Masks where there are none, a look over, and the config that was chosen."""
    from dapl.config.reading import data_config

    of_data = {name: value for name, value in overrides.items() if name.startswith("data.")}
    data = data_config(arguments.source, of_data).data
    model = mask_model(arguments.masks, arguments)
    print(f"looking at {arguments.source}", file=sys.stderr, flush=True)

    with loading():
        from dapl.prepare.own_data import prepare_own_data

    sheets = Path("checks") / (arguments.source.resolve().stem or "data")
    return prepare_own_data(data, arguments.masks, model, sheets).choice


def _an_image(config: Config) -> str:
    """An image of the test split, as `dapl explain` takes it."""
    from dapl.data.build import build_splits

    names = build_splits(config.data).test.names
    return shlex.quote(names[0]) if len(names) else "IMAGE"


def _restarted(out: Path) -> bool:
    """Whether torchrun starts the same command again, because a process of it had died with the run begun."""
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if "TORCHELASTIC_RUN_ID" in os.environ:  # else there is nobody to ask, and no torch to load
        from dapl.processes.fabric import was_restarted

        restarted = was_restarted()
    return restarted and (out / "config.yaml").is_file()


def _submit(arguments: argparse.Namespace, config: Config, out: Path) -> int:
    import yaml

    from dapl.processes.submit import SubmittedTraining, submit

    options = {}
    for text in arguments.job:
        name, equals, value = text.partition("=")
        if not equals:
            raise DaplError(f"--job: '{text}' is not of the form field=value.")
        options[name] = yaml.safe_load(value)
    words, skip = [], False
    for word in arguments.words:
        if not skip and not word.startswith(("--submit=", "--job=")) and word not in ("--submit", "--job"):
            words.append(word)
        skip = not skip and word in ("--submit", "--job")
    if arguments.out is None and arguments.resume is None:
        words += ["--out", str(out)]
    job, folder = submit(SubmittedTraining(words, out), config, arguments.submit, options)
    print(f"job          {job}\nwhat it says {folder}\nrun          {out}")
    return 0


def _drop_marked(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.training.pruning import without_marked

    source = vars(arguments)["from"]
    if source is None or not arguments.drop_marked:
        raise DaplError("--from RUN and --drop-marked go together: `dapl train --from RUN --drop-marked`.")
    if arguments.source is not None or arguments.resume is not None:
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
    with loading():
        from dapl.evaluation import evaluate, table
        from dapl.explain.sheet import write_sheet
        from dapl.processes.launch import is_first_process
        from dapl.training.loggers import log_finished, open_logger
        from dapl.training.state import epochs_of
        from dapl.training.trainer import train

    run = train(config, out, resume)
    has_prototypes = config.model.system != "blackbox"
    result = evaluate(run.folder, config=config, chance=False)  # `dapl evaluate` says what chance gets
    if not is_first_process():
        return 0
    if has_prototypes:
        write_sheet(run.folder, config)  # after the evaluation, which says where the prototypes look
    epochs = sum(map(epochs_of, config.schedule))
    logger = open_logger(config.runtime.logger, run.folder, config.model_dump(mode="json"), epochs)
    log_finished(logger, run.evaluation_file, run.sheet_file, epochs)
    print(table(result))
    if has_prototypes:
        print(f"\nprototypes   {run.sheet_file}\nrecords      {run.prototypes_file}", end="")
    print(f"\nnumbers      {run.evaluation_file}")
    print(f"plots        {run.evaluation_folder}\ncurves       {run.metrics_file}")
    if has_prototypes:
        print(f"\nWhat maps without any model get on the same images: dapl evaluate {run.folder}")
    return 0


def _free(folder: Path) -> Path:
    """``folder``, or the first of folder-2, folder-3, … that does not exist."""
    number = 1
    while (candidate := folder if number == 1 else folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return candidate
