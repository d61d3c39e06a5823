"""Prototype-based image classifiers that show their reasons.

>>> import dapl
>>> run = dapl.train("configs/cub20.yaml")                # doctest: +SKIP
>>> dapl.evaluate(run)["coverage"]                        # doctest: +SKIP
0.666
>>> model = dapl.load(run)                                # doctest: +SKIP
>>> model.explain("bird.jpg").save("bird.html")           # doctest: +SKIP

The systems are in `dapl.models`, the metrics in `dapl.metrics`. Importing dapl imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dapl.config import Config
    from dapl.data.sample import Splits
    from dapl.evaluation import Evaluation, EvaluationProtocol
    from dapl.explain.classifier import Classifier
    from dapl.runs.run import Run

__all__ = ["__version__", "evaluate", "load", "load_config", "train"]


def load_config(path: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a config from a YAML file, or take the defaults, and lay fields by dotted name over it.

    >>> import dapl
    >>> dapl.load_config(None, {"data.name": "toybirds", "model.head_dim": 8}).model.head_dim
    8
    """
    from dapl.config import load_config as read

    return read(path, overrides)


def train(
    config: Config | str | Path,
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    splits: Splits | None = None,
) -> Run:
    """Train a model by the schedule of its config and return the run, a directory on disk.

    >>> config = dapl.load_config("configs/cub20.yaml", {"model.head_dim": 32})    # doctest: +SKIP
    >>> run = dapl.train(config, "runs/wide")                                      # doctest: +SKIP

    Args:
        config: a config, or the path of its YAML file.
        out: the run directory to make; by default ``runs/<name of the file>``, or ``runs/<system>`` for a config.
        resume: go on with the run in ``out`` from its last checkpoint.
        quiet: print no progress.
        splits: the data itself, where ``data.name`` is ``given`` (docs/own-data.md).
    """
    from dapl.training.trainer import train as train_run

    name = Path(config).stem if isinstance(config, (str, Path)) else config.model.system
    config = load_config(config) if isinstance(config, (str, Path)) else config
    return train_run(config, Path("runs") / name if out is None else Path(out), resume, quiet, splits)


def evaluate(
    run: Run | str | Path,
    metrics: Sequence[str] | str | None = None,
    split: str = "test",
    protocol: EvaluationProtocol | None = None,
    quiet: bool = False,
    splits: Splits | None = None,
) -> Evaluation:
    """Measure a finished run and write the numbers, tables and plots into its directory, as ``dapl evaluate`` does.

    >>> found = dapl.evaluate("runs/cub20", metrics="accuracy,coverage,diversity")   # doctest: +SKIP
    >>> found.numbers["coverage"]                                                    # doctest: +SKIP
    Number(value=0.666, low=0.651, high=0.681)

    Args:
        run: the run, or its directory.
        metrics: names of `dapl.metrics.registry`; None takes all that need no further pass over the data.
        split: ``test``, ``validation`` or ``train``.
        protocol: every choice that changes a number.
        quiet: print no progress.
        splits: the data itself, where the run was trained on data handed over in Python.
    """
    from dapl.evaluation import evaluate as evaluate_run

    return evaluate_run(_folder(run), protocol, split, metrics, quiet=quiet, splits=splits)  # type: ignore[arg-type]


def load(folder: Run | str | Path, splits: Splits | None = None) -> Classifier:
    """Open the model of a run, or of a folder that ``dapl export`` wrote, ready to predict and to explain.

    >>> model = dapl.load("runs/cub20")                   # doctest: +SKIP
    >>> model.predict("bird.jpg").class_name              # doctest: +SKIP
    '001.Black_footed_Albatross'

    Args:
        folder: the run, its directory, or an exported folder.
        splits: the data itself, where the run was trained on data handed over in Python.
    """
    from dapl.export.hub import load_classifier

    return load_classifier(_folder(folder), splits)


def _folder(run: Run | str | Path) -> Path:
    return Path(run).expanduser() if isinstance(run, (str, Path)) else run.folder


def __getattr__(name: str) -> Any:
    if name == "__version__":  # read from the installed package: the number stands in pyproject.toml alone
        from importlib.metadata import version

        return version("dapl")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
