"""Which processes work on a sweep: each holds a file lock, which the system takes back however the process dies.

The trials of a sweep in Optuna's storage: who runs which point, what was killed, what is left.

A grid is put into Optuna's queue, from which a trial can be taken only once; Optuna's own `GridSampler` may give two
processes the same point. Should two machines fill the queue in the same moment, a point is there twice: then the
trial with the lower number has it (numbers are dealt out by the storage, in order), the other one is dropped.
"""

from __future__ import annotations

import datetime
import json
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from dapl.common.errors import DaplError
from dapl.experiments.sweep_space import Choices, Dimension, Panel, SweepObjective, Values

if TYPE_CHECKING:
    import optuna


class Worker:
    """This process, as others see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ".workers"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = uuid.uuid4().hex[:12]
        self.place = f"{socket.gethostname()}:{folder.resolve()}"
        """Where a process must run to be able to tell whether this one lives."""
        self._lock = FileLock(self._file(self.name))
        self._lock.acquire()

    def is_alive(self, name: str) -> bool:
        """Whether the process of that name still runs; what a dead one left is cleared away."""
        file = self._file(name)
        if not file.exists():
            return False
        try:
            with FileLock(file, timeout=0):
                file.unlink(missing_ok=True)
        except Timeout:
            return True
        return False

    def leave(self) -> None:
        self._file(self.name).unlink(missing_ok=True)
        self._lock.release()

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.lock"


HEARTBEAT_SECONDS = 30
SILENT_SECONDS = 120
"""A trial on another machine that has not been heard of for so long is given to someone else."""
_TRIES = 5
"""To open a database whose tables another machine is making."""


class PanelStudy:
    """The trials of one panel, shared by all processes that work on it."""

    def __init__(
        self,
        name: str,
        panel: Panel,
        objectives: Sequence[SweepObjective],
        storage: optuna.storages.RDBStorage,
        local: bool,
        worker: Worker,
        trials: int | None,
        seed: int,
    ) -> None:
        """``trials``: how many points to draw with TPE; None for a grid."""
        import optuna

        self.panel, self.worker, self.trials, self.seed, self.local = panel, worker, trials, seed, local
        self.failed_here: set[str] = set()
        """Points that this process could not run; a new start tries them again."""
        self._lock = FileLock(lock_file(None if local else str(storage.url), worker.folder.parent))
        with self._lock:
            self.study = optuna.create_study(
                storage=storage,
                study_name=name,
                directions=["maximize" if objective.maximise else "minimize" for objective in objectives],
                sampler=optuna.samplers.RandomSampler(seed),  # never asked: points come from the queue or from `_draw`
                load_if_exists=True,
            )
        self.storage = storage

    # --- taking a point -----------------------------------------------------------------------------------------

    def claim(self) -> tuple[optuna.Trial, Values] | None:
        """The next point, now this process's own; None when nothing is left to take."""
        with self._lock:
            self._free_dead()
            self._fill_queue()
            while self._waiting() or self._may_draw():
                with _without_warnings():
                    trial = self.study.ask()
                trial.set_user_attr("worker", self.worker.name)
                trial.set_user_attr("place", self.worker.place)
                values = self._values(trial)
                if values is not None:
                    return trial, values
                self.study.tell(trial, state=_states().FAIL)
        return None

    def _values(self, trial: optuna.Trial) -> Values | None:
        """What the trial is to run, None where another trial already has it."""
        if "point" not in trial.user_attrs:
            if self.trials is None:
                return None  # another machine took the last point between our look and our grasp
            self._seed_draw()
        values = {dimension.field: _suggest(trial, dimension) for dimension in self.panel.dimensions}
        if "point" not in trial.user_attrs:
            trial.set_user_attr("draw", self._draws())
            trial.set_user_attr("point", point_text(values))
            return values
        point = trial.user_attrs["point"]
        others = [other for other in self._living() if _point(other) == point and other.number != trial.number]
        taken = any(other.number < trial.number or other.state == _states().COMPLETE for other in others)
        return None if taken else values

    def _seed_draw(self) -> None:
        """The k-th draw depends on the seed, k and the results so far: a killed search goes on as it would have."""
        import optuna

        from dapl.common.seeds import derive_seed

        seed = derive_seed(self.seed, "draw", self._draws()) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _draws(self) -> int:
        return len({trial.user_attrs["draw"] for trial in self._all() if "draw" in trial.user_attrs})

    def _may_draw(self) -> bool:
        return self.trials is not None and self._draws() < self.trials

    def _fill_queue(self) -> None:
        """Of a grid, every point that nobody has; of a search, the points whose process was killed."""
        points: list[tuple[Values, dict[str, Any]]] = []
        if self.trials is None:
            points = [(values, {}) for values in self.panel.points()]
        else:
            for trial in self._all():
                if trial.state == _states().FAIL and "draw" in trial.user_attrs and "error" not in trial.user_attrs:
                    values = json.loads(trial.user_attrs["point"])
                    points.append((values, {"draw": trial.user_attrs["draw"]}))
        living = {_point(trial) for trial in self._living()}
        for values, attributes in points:
            point = point_text(values)
            if point not in living | self.failed_here:
                living.add(point)
                parameters = {field: _parameter(value) for field, value in values.items()}
                self.study.enqueue_trial(parameters, user_attrs={"point": point, **attributes})

    # --- those that were killed ---------------------------------------------------------------------------------

    def _free_dead(self) -> None:
        for trial in self._all(_states().RUNNING):
            if self._is_dead(trial):
                self.study.tell(trial.number, state=_states().FAIL, skip_if_finished=True)
        if not self.local:
            import optuna

            with _without_warnings():
                optuna.storages.fail_stale_trials(self.study)

    def _is_dead(self, trial: optuna.trial.FrozenTrial) -> bool:
        name, place = trial.user_attrs.get("worker"), trial.user_attrs.get("place")
        if self.local or place == self.worker.place:
            # Trials are taken and signed under the lock that we hold: one without a name is of a dead process.
            return name is None or not self.worker.is_alive(name)
        started = trial.datetime_start or datetime.datetime.now()
        silent = (datetime.datetime.now() - started).total_seconds()
        return name is None and silent > SILENT_SECONDS  # died before its first sign of life

    @contextmanager
    def sign_of_life(self, trial: optuna.Trial) -> Iterator[None]:
        """While a trial runs, other machines hear of it; on this one they see the worker's lock."""
        if self.local:
            yield
            return
        done = threading.Event()

        def beat() -> None:
            while True:
                self.storage.record_heartbeat(trial._trial_id)
                if done.wait(HEARTBEAT_SECONDS):
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # --- results ------------------------------------------------------------------------------------------------

    def finish(self, trial: optuna.Trial, values: Sequence[float], measured: Mapping[str, Any]) -> None:
        with _unless_taken_away():
            trial.set_user_attr("measured", measured)
            self.study.tell(trial, list(values))

    def fail(self, trial: optuna.Trial, reason: str) -> None:
        self.failed_here.add(trial.user_attrs["point"])
        with _unless_taken_away():
            trial.set_user_attr("error", reason)
            self.study.tell(trial, state=_states().FAIL)

    def finished(self) -> list[tuple[int, Values, dict[str, Any]]]:
        """Number, values and measurements of every finished trial, each point once, in order of its values."""
        found: dict[str, tuple[int, Values, dict[str, Any]]] = {}
        for trial in self._all(_states().COMPLETE):
            values = json.loads(trial.user_attrs["point"])
            found.setdefault(_point(trial), (trial.number, values, trial.user_attrs["measured"]))
        return sorted(found.values(), key=lambda entry: self._place(entry[1]))

    def failures(self) -> list[tuple[Values, str]]:
        """Points that could not be run, with the reason, where no later trial could."""
        living = {_point(trial) for trial in self._living()}
        found = {
            _point(trial): trial.user_attrs["error"]
            for trial in self._all(_states().FAIL)
            if "error" in trial.user_attrs and _point(trial) not in living
        }
        return [(json.loads(point), reason) for point, reason in found.items()]

    def best(self) -> list[int]:
        """Numbers of the best trials: one, or the Pareto front of several objectives."""
        return [trial.number for trial in self.study.best_trials]

    def counts(self) -> tuple[int, int]:
        """How many points are done, and how many some living process has. A search may draw a point twice."""
        states = [trial.state for trial in self._living()]
        done = len(self.finished()) if self.trials is None else states.count(_states().COMPLETE)
        return done, states.count(_states().RUNNING)

    def total(self) -> int:
        return self.trials if self.trials is not None else sum(1 for _ in self.panel.points())

    def _place(self, values: Values) -> list[Any]:
        places = []
        for dimension in self.panel.dimensions:
            value = values[dimension.field]
            places.append(dimension.values.index(value) if isinstance(dimension, Choices) else value)
        return places

    def _all(self, *states: Any) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def _living(self) -> list[optuna.trial.FrozenTrial]:
        return self._all(_states().WAITING, _states().RUNNING, _states().COMPLETE)

    def _waiting(self) -> bool:
        return bool(self._all(_states().WAITING))


def point_text(values: Values) -> str:
    return json.dumps(values, sort_keys=True)


def _point(trial: optuna.trial.FrozenTrial) -> str:
    return str(trial.user_attrs.get("point", ""))


def _parameter(value: Any) -> Any:
    """A value as Optuna's storage takes it: lists and mappings as text."""
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    if isinstance(dimension, Choices):
        by_parameter = {_parameter(value): value for value in dimension.values}
        return by_parameter[trial.suggest_categorical(dimension.field, list(by_parameter))]
    if isinstance(dimension.low, int):
        return trial.suggest_int(dimension.field, dimension.low, int(dimension.high), log=dimension.log)
    return trial.suggest_float(dimension.field, dimension.low, dimension.high, log=dimension.log)


def _states() -> Any:
    from optuna.trial import TrialState

    return TrialState


@contextmanager
def _unless_taken_away() -> Iterator[None]:
    """A machine that was silent for too long finds its trial closed: another one has the point now."""
    import optuna

    with suppress(optuna.exceptions.UpdateFinishedTrialError):
        yield


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Optuna warns that heartbeats are experimental, and of using them without `Study.optimize`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def lock_file(url: str | None, folder: Path) -> Path:
    """What a process holds while it looks into the study and takes a trial.

    SQLite does not lock the row that is being taken, as other databases do, so its lock lies beside its file.
    """
    path = url.removeprefix("sqlite:///") if url is not None and url.startswith("sqlite:///") else None
    return Path(f"{path}.lock") if path else folder / ".workers" / "study.lock"


def need_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise DaplError("dapl sweep needs Optuna; `pip install 'dapl[sweep]'` brings it.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_storage(url: str | None, folder: Path) -> optuna.storages.RDBStorage:
    """``url`` names a database that many machines share; else study.db in the folder.

    SQLite and not Optuna's journal file: a process killed while it writes leaves neither half a line nor a lock.
    """
    from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

    lock, address = lock_file(url, folder), url or f"sqlite:///{folder.resolve() / 'study.db'}"
    try:
        if not lock.parent.is_dir():
            raise FileNotFoundError(f"no folder {lock.parent}")
        with _without_warnings(), FileLock(lock):
            for _ in range(_TRIES - 1):
                with suppress(IntegrityError, ProgrammingError):
                    return _storage(address, local=url is None)
                time.sleep(1)  # another machine makes the tables in this moment
            return _storage(address, local=url is None)
    except (SQLAlchemyError, ImportError, RuntimeError, ValueError, OSError) as error:
        what = "--storage" if url else str(folder / "study.db")
        raise DaplError(
            f"{what}: cannot be opened as a database of Optuna ({str(error).splitlines()[0]}); give a URL such as "
            "postgresql://user@host/name, with its driver installed."
        ) from error


def _storage(address: str, local: bool) -> optuna.storages.RDBStorage:
    import optuna

    beats: dict[str, Any] = {"heartbeat_interval": HEARTBEAT_SECONDS, "grace_period": SILENT_SECONDS}
    is_file = address.startswith("sqlite")
    waiting: dict[str, Any] = {"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True}
    return optuna.storages.RDBStorage(address, engine_kwargs=waiting, **({} if local else beats))
