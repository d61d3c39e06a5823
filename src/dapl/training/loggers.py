"""Where curves, numbers and images of a run go besides its folder: TensorBoard, Weights & Biases, MLflow or CSV.

``runtime.logger`` names one of them. All say the same: the terms of the loss and the validation after every epoch, and
at the end the numbers of the evaluation as a table and the sheet of prototypes as an image. metrics.jsonl, metrics.json
and prototypes.png are always in the run itself.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from dapl.common.errors import BrokenError, DaplError, MissingError
from dapl.common.files import make_folder, replacing, write_text
from dapl.common.reading import read_as, read_bytes, read_text
from dapl.runs.schemas import EvaluationFile

Table = Sequence[tuple[str, float]]
"""Names and values."""


class RunLogger(Protocol):
    """What a logger does; steps are epochs, counted over all stages."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """``train/cross_entropy`` and the like, after an epoch."""
        ...

    def table(self, name: str, rows: Table, step: int) -> None:
        """Numbers of a finished run."""
        ...

    def image(self, name: str, file: Path, step: int) -> None:
        """A PNG."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, folder: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=first)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def table(self, name: str, rows: Table, step: int) -> None:
        self._writer.add_text(name, "\n".join(["| number | value |", "|---|---|", *_markdown(rows)]), step)
        for number, value in rows:
            self._writer.add_scalar(f"{name}/{number}", value, step)

    def image(self, name: str, file: Path, step: int) -> None:
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        content = read_bytes(file, "`dapl train --resume RUN` draws it anew")
        with Image.open(io.BytesIO(content)) as opened:
            width, height = opened.size
        # The file as it is: `add_image` takes pixels and encodes them anew, which takes longer than to draw the sheet.
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def close(self) -> None:
        self._writer.close()


def _markdown(rows: Table) -> list[str]:
    return [f"| {name} | {value:.4f} |" for name, value in rows]


class Csv:
    """RUN/csv: epochs.csv, a row per epoch, and a file for each table; images are in the run already."""

    def __init__(self, folder: Path, first: int) -> None:
        self._folder, self._file = folder, folder / "epochs.csv"
        make_folder(folder)
        self._rows: list[dict[str, Any]] = []
        with suppress(MissingError):
            self._rows = list(self._before(first))

    def _before(self, first: int) -> Iterator[dict[str, Any]]:
        """What was written before epoch ``first``, which is written now."""
        advice = "move it away; nothing is computed from it"
        try:
            for row in csv.DictReader(io.StringIO(read_text(self._file, advice), newline="")):
                if int(row["epoch"]) < first:
                    yield row
        except (csv.Error, KeyError, ValueError, TypeError) as error:
            raise BrokenError(f"{self._file}: not a table with an epoch per row ({error!r}); {advice}.") from error

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._rows.append({"epoch": step, **values})
        self._write(self._file, list(dict.fromkeys(name for row in self._rows for name in row)), self._rows)

    def table(self, name: str, rows: Table, step: int) -> None:
        named = [{"number": number, "value": value} for number, value in rows]
        self._write(self._folder / f"{name}.csv", ["number", "value"], named)

    def image(self, name: str, file: Path, step: int) -> None:
        pass

    def close(self) -> None:
        pass

    @staticmethod
    def _write(file: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        with replacing(file) as temporary, temporary.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


_ID = "run-id.txt"
"""Which run of another program this is: a run that is resumed goes on under its name there."""


def _known_id(folder: Path) -> str | None:
    try:
        return read_text(folder / _ID, "move it away; the curves then begin anew", 1000).strip()
    except MissingError:
        return None


class WeightsAndBiases:
    """A run of W&B with the name of the run's folder; project, entity and offline mode as its environment says."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self._wandb: Any = wandb
        make_folder(folder)
        name = _known_id(folder)
        self._run: Any = wandb.init(
            project=None, id=name, name=folder.parent.name, dir=str(folder), config=dict(config), resume="allow"
        )
        write_text(folder / _ID, self._run.id)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values) | {"epoch": step})

    def table(self, name: str, rows: Table, step: int) -> None:
        self._run.log({name: self._wandb.Table(columns=["number", "value"], data=[list(row) for row in rows])})
        self._run.summary.update({f"{name}/{number}": value for number, value in rows})

    def image(self, name: str, file: Path, step: int) -> None:
        self._run.log({name: self._wandb.Image(str(file))})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow where its environment says (MLFLOW_TRACKING_URI), else in RUN/mlflow/mlflow.db."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import os

        from mlflow import MlflowClient

        given = os.environ.get("MLFLOW_TRACKING_URI")
        make_folder(folder)
        self._client: Any = MlflowClient(given or _database(folder))
        known = _known_id(folder)
        if known is not None:
            self._id = known
            self._client.update_run(self._id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "dapl")
        experiment = self._client.get_experiment_by_name(name)
        where = None if given else (folder / "artifacts").resolve().as_uri()
        number = (
            experiment.experiment_id if experiment else self._client.create_experiment(name, artifact_location=where)
        )
        self._id = self._client.create_run(number, run_name=folder.parent.name).info.run_id
        for field, value in _flat(config).items():
            self._client.log_param(self._id, field, str(value)[:500])
        write_text(folder / _ID, self._id)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=step)

    def table(self, name: str, rows: Table, step: int) -> None:
        for number, value in rows:
            self._client.log_metric(self._id, f"{name}/{number}", value, step=step)
        self._client.log_dict(self._id, dict(rows), f"{name}.json")

    def image(self, name: str, file: Path, step: int) -> None:
        self._client.log_artifact(self._id, str(file), name)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _database(folder: Path) -> str:
    """A file of SQLite: newer versions of MLflow write to no folder any more."""
    return f"sqlite:///{(folder / 'mlflow.db').resolve()}"


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """
    >>> _flat({"seed": 0, "model": {"heads": 4}, "schedule": [{"stage": "project"}]})
    {'seed': 0, 'model.heads': 4, 'schedule.0.stage': 'project'}
    """
    flat: dict[str, Any] = {}
    for name, value in config.items():
        items = dict(enumerate(value)) if isinstance(value, list) and value and isinstance(value[0], dict) else value
        if isinstance(items, dict):
            flat |= _flat({str(key): item for key, item in items.items()}, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def open_logger(name: str, run: Path, config: Mapping[str, Any], first: int) -> RunLogger | None:
    """The logger that ``runtime.logger`` names; ``first`` is the first epoch that this process will write.

    TensorBoard, the default, is left out where it is not installed; any other is then an error. None for ``none``.

    >>> open_logger("none", Path("runs/cub"), {}, first=0) is None
    True
    """
    try:
        if name == "tensorboard":
            return TensorBoard(run / name, first)
        if name == "csv":
            return Csv(run / name, first)
        if name == "wandb":
            return WeightsAndBiases(run / name, config)
        if name == "mlflow":
            return MLflow(run / name, config)
    except ImportError as error:
        if name == "tensorboard":
            return None
        raise DaplError(f"runtime.logger: {name} is not installed ({error}); pip install 'dapl[{name}]'.") from error
    return None


def log_finished(logger: RunLogger | None, metrics: Path, sheet: Path, step: int) -> None:
    """What a finished run has to show: the numbers of metrics.json as a table, the sheet of prototypes as an image.

    >>> log_finished(None, Path("metrics.json"), Path("prototypes.png"), step=0)
    """
    if logger is None:
        return
    if metrics.is_file():
        numbers = read_as(metrics, EvaluationFile, "measure again with `dapl evaluate RUN`").numbers
        rows = [(name, number.value) for name, number in numbers.items() if number.value is not None]
        logger.table("test", rows, step)
    if sheet.is_file():
        logger.image("prototypes", sheet, step)
    logger.close()
