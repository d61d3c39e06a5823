"""The trials of a sweep in an Optuna study that several processes share: who runs which point, and what is left.

Optuna's queue, heartbeats and `fail_stale_trials` do the work. No point may run twice, and none may be lost; where they
do not keep that, this module does:

- A grid is put into the queue: `GridSampler` gives two processes the same point, as its documentation says.
- Points are taken under a file lock: on SQLite, `Study.ask` does not lock the row that it takes from the queue. Four
  processes that emptied a queue of 180 trials without the lock took 38 of them twice.
- The queue is filled from the states of the trials, whenever a point is taken. Optuna's own retry closes a stale trial
  first and queues its copy afterwards: a process that is killed between the two would lose the point.
- A process that is killed before its first heartbeat is found by its start; Optuna passes over a trial without one.
- Machines that share a database but no lock may fill the queue in the same moment. Of two trials of one point, the
  lower number has it (the storage deals the numbers out in order), and the other one is dropped.

A process that was silent but alive finds its trial closed and lets it be. Where processes share a folder, the lock of
`many_runs.run_or_resume` keeps two of them from training the same run all the same.
"""

from __future__ import annotations

import datetime
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError, WriteError, reason_of
from dapl.common.liveness import meanwhile
from dapl.common.locks import locked
from dapl.experiments.sweep_space import Choices, Dimension, Panel, SweepObjective, Values

try:
    import optuna
except ImportError as error:
    raise DaplError("dapl sweep needs Optuna; `pip install 'dapl[sweep]'` brings it.") from error

from optuna.trial import FrozenTrial, TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)

FOLDER_HEARTBEAT = {"heartbeat_interval": 5, "grace_period": 20}
"""Seconds between signs of life, and the silence after which a point is given to another process of the folder."""
DATABASE_HEARTBEAT = {"heartbeat_interval": 30, "grace_period": 120}
"""The same for machines that share a database. They may have folders of their own, where no lock of a run helps."""
LOCK = ".study.lock"
Lock = Callable[[], AbstractContextManager[None]]
"""Taken with ``with lock():``."""
_TRIES = 5
"""How often a database is opened whose tables another machine is making."""


class PanelStudy:
    """The trials of one panel, shared by all processes that work on it."""

    def __init__(
        self,
        name: str,
        panel: Panel,
        objectives: Sequence[SweepObjective],
        storage: optuna.storages.RDBStorage,
        lock: Lock,
        trials: int | None,
        seed: int,
    ) -> None:
        """``trials``: how many points to draw with TPE; None for a grid."""
        self.panel, self.storage, self.trials, self.seed, self._lock = panel, storage, trials, seed, lock
        self.failed_here: set[str] = set()
        """Points that this process could not run; a new start tries them again."""
        with self._lock():
            self.study = optuna.create_study(
                storage=storage,
                study_name=name,
                directions=["maximize" if objective.maximise else "minimize" for objective in objectives],
                sampler=optuna.samplers.RandomSampler(seed),  # never asked: points come from the queue or from TPE
                load_if_exists=True,
            )

    # --- taking a point -----------------------------------------------------------------------------------------

    def claim(self) -> tuple[optuna.Trial, Values] | None:
        """The next point, now this process's own; None when nobody has to run one."""
        with self._lock():
            self._free_dead()
            self._fill_queue()
            while self._all(TrialState.WAITING) or self._may_draw():
                with _without_warnings():
                    trial = self.study.ask()
                # Another machine closes the trial where this one was silent since it asked, asleep say.
                with suppress(optuna.exceptions.UpdateFinishedTrialError):
                    self.storage.record_heartbeat(trial._trial_id)
                    trial.set_user_attr("heard", True)
                    values = self._values(trial)
                    if values is not None:
                        return trial, values
                self.give_back(trial)
        return None

    def _values(self, trial: optuna.Trial) -> Values | None:
        """What the trial is to run, None where another trial already has it."""
        queued = trial.user_attrs.get("point")
        if queued is None:
            if self.trials is None:
                return None  # another machine took the last point between our look and our grasp
            from dapl.common.seeds import derive_seed  # which imports torch

            # The k-th draw depends on the seed, k and the results so far: a killed search goes on as it would have.
            seed = derive_seed(self.seed, "draw", self._draws()) % 2**32
            self.study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        values = {dimension.field: _suggest(trial, dimension) for dimension in self.panel.dimensions}
        if queued is None:
            trial.set_user_attr("draw", self._draws())
            trial.set_user_attr("point", point_text(values))
            return values
        others = [other for other in self._living() if _point(other) == queued and other.number != trial.number]
        taken = any(other.number < trial.number or other.state == TrialState.COMPLETE for other in others)
        return None if taken else values

    def _draws(self) -> int:
        return len({trial.user_attrs["draw"] for trial in self._all() if "draw" in trial.user_attrs})

    def _may_draw(self) -> bool:
        return self.trials is not None and self._draws() < self.trials

    def _fill_queue(self) -> None:
        """Queues every point of a grid that nobody has, and the points of a search whose process was killed."""
        points: list[tuple[Values, dict[str, Any]]] = []
        if self.trials is None:
            points = [(values, {}) for values in self.panel.points()]
        else:
            for trial in self._all(TrialState.FAIL):
                if "draw" in trial.user_attrs and "error" not in trial.user_attrs:
                    points.append((json.loads(_point(trial)), {"draw": trial.user_attrs["draw"]}))
        living = {_point(trial) for trial in self._living()}
        for values, attributes in points:
            point = point_text(values)
            if point not in living | self.failed_here:
                living.add(point)
                parameters = {field: _parameter(value) for field, value in values.items()}
                self.study.enqueue_trial(parameters, user_attrs={"point": point, **attributes})

    def _free_dead(self) -> None:
        with _without_warnings():
            optuna.storages.fail_stale_trials(self.study)
        now = datetime.datetime.now()
        for trial in self._all(TrialState.RUNNING):
            silent = (now - (trial.datetime_start or now)).total_seconds()
            if "heard" not in trial.user_attrs and silent > self.grace_period:
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    @property
    def grace_period(self) -> int:
        """Seconds of silence after which a process counts as dead."""
        return self.storage.grace_period or 0

    def heartbeat(self, trial: optuna.Trial) -> AbstractContextManager[None]:
        """Signs of life while a trial runs. `Study.optimize` would give them, but it takes points without the lock."""
        return meanwhile(partial(self.storage.record_heartbeat, trial._trial_id), self.storage.heartbeat_interval or 1)

    # --- results ------------------------------------------------------------------------------------------------

    def finish(self, trial: optuna.Trial, values: Sequence[float], measured: Mapping[str, Any]) -> None:
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # closed: another process has the point now
            trial.set_user_attr("measured", measured)
            self.study.tell(trial, list(values), skip_if_finished=True)

    def fail(self, trial: optuna.Trial, reason: str) -> None:
        self.failed_here.add(trial.user_attrs["point"])
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr("error", reason)
            self.give_back(trial)

    def give_back(self, trial: optuna.Trial) -> None:
        """The point was interrupted; whoever asks next has it."""
        self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def finished(self) -> list[tuple[int, Values, dict[str, Any]]]:
        """Number, values and measurements of every finished trial, each point once, in order of its values."""
        found: dict[str, tuple[int, Values, dict[str, Any]]] = {}
        for trial in self._all(TrialState.COMPLETE):
            point = _point(trial)
            found.setdefault(point, (trial.number, json.loads(point), trial.user_attrs["measured"]))
        return sorted(found.values(), key=lambda entry: self._place(entry[1]))

    def failures(self) -> list[tuple[Values, str]]:
        """Points that could not be run, with the reason, where no later trial could."""
        living = {_point(trial) for trial in self._living()}
        found = {
            _point(trial): trial.user_attrs["error"]
            for trial in self._all(TrialState.FAIL)
            if "error" in trial.user_attrs and _point(trial) not in living
        }
        return [(json.loads(point), reason) for point, reason in found.items()]

    def best(self) -> list[int]:
        """Numbers of the best trials: one, or the Pareto front of several objectives."""
        return [trial.number for trial in self.study.best_trials]

    def counts(self) -> tuple[int, int]:
        """How many points are done, and how many some living process has. A search may draw a point twice."""
        states = [trial.state for trial in self._living()]
        done = len(self.finished()) if self.trials is None else states.count(TrialState.COMPLETE)
        return done, states.count(TrialState.RUNNING)

    def total(self) -> int:
        return self.trials if self.trials is not None else sum(1 for _ in self.panel.points())

    def _place(self, values: Values) -> list[Any]:
        pairs = [(dimension, values[dimension.field]) for dimension in self.panel.dimensions]
        return [choice.values.index(value) if isinstance(choice, Choices) else value for choice, value in pairs]

    def _all(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def _living(self) -> list[FrozenTrial]:
        return self._all(TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE)


def point_text(values: Values) -> str:
    return json.dumps(values, sort_keys=True)


def _point(trial: FrozenTrial) -> str:
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


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Optuna warns that heartbeats are experimental, and of using them without `Study.optimize`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def database_refusals(out: Path) -> Iterator[None]:
    """What the database refuses, because its disk is full say, is a sentence."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        raise WriteError(
            f"{out}: the database of the sweep refused ({reason_of(error)}); free some space, or look at "
            "--storage. The same command goes on where it stood."
        ) from error


def open_storage(url: str | None, folder: Path) -> tuple[optuna.storages.RDBStorage, Lock]:
    """The database, and what a process holds while it looks into the study and takes a point.

    ``url`` names a database that many machines share; None is study.db in the folder. It is SQLite and not Optuna's
    journal file, because a process killed while it writes leaves neither half a line nor a lock there.
    """
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    is_file = url is None or url.startswith("sqlite:///")
    file = Path(f"{url.removeprefix('sqlite:///')}.lock") if url is not None and is_file else folder / LOCK
    lock = partial(locked, file, "taking a point", wait=math.inf)
    waiting: dict[str, Any] = {"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True}
    beats: dict[str, Any] = FOLDER_HEARTBEAT if url is None else DATABASE_HEARTBEAT

    def opened() -> optuna.storages.RDBStorage:
        address = url or f"sqlite:///{folder.resolve() / 'study.db'}"
        return optuna.storages.RDBStorage(address, engine_kwargs=waiting, **beats)

    try:
        if not file.parent.is_dir():
            raise FileNotFoundError(f"no folder {file.parent}")
        with _without_warnings(), lock():
            for _ in range(_TRIES - 1):
                try:
                    return opened(), lock
                except DBAPIError as error:
                    if not _being_made(error):
                        raise
                time.sleep(1)
            return opened(), lock
    except (SQLAlchemyError, ImportError, RuntimeError, ValueError, OSError) as error:
        what = "--storage" if url else str(folder / "study.db")
        raise DaplError(
            f"{what}: cannot be opened as a database of Optuna ({reason_of(error)}); give a URL such as "
            "postgresql+psycopg://user@host/name, with its driver installed (`pip install 'dapl[postgresql]'` or "
            "'dapl[mysql]')."
        ) from error


def _being_made(error: Exception) -> bool:
    """Whether another machine makes the tables in this moment: they were there or not when they were looked for."""
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    if isinstance(error, OperationalError):  # MySQL's word for it, and for a server that cannot be reached
        return "already exists" in str(error.orig)
    return isinstance(error, (IntegrityError, ProgrammingError))
