"""A sweep: take a point, train and measure it for every seed, write down what came out, until none is left."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError, WriteError
from dapl.common.files import is_leftover, write_text
from dapl.common.locks import locked
from dapl.common.progress import Reporter
from dapl.common.tables import mean_and_deviation
from dapl.config import Config, dump_config, load_config
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.experiments.many_runs import code_digest, flat_fields, measured, refuse_other_config, run_or_resume
from dapl.experiments.sweep_space import (
    Base,
    Panel,
    SweepObjective,
    Values,
    metrics_for,
    parse_objectives,
    run_name,
    shown,
)
from dapl.experiments.sweep_study import LOCK, PanelStudy, database_refusals, open_storage
from dapl.metrics.registry import data_gives, given_by, missing_needs
from dapl.runs.run import Run

_TOO_MANY_FAILURES = 3
"""When so many points fail before one succeeds, something else than the points is wrong."""


@dataclass(frozen=True)
class SweepSettings:
    """How a sweep goes about its points."""

    objectives: tuple[SweepObjective, ...] = parse_objectives(["accuracy"])
    seeds: tuple[int, ...] = (0,)
    trials: int | None = None
    """How many points TPE draws; None runs the whole grid."""
    sampler_seed: int = 0
    storage: str | None = None
    """URL of a database that several machines share; None: a file in the sweep's folder."""
    protocol: EvaluationProtocol = field(default_factory=EvaluationProtocol)
    verbose: bool = False
    """Print what each run prints."""

    def metrics(self) -> tuple[str, ...]:
        return metrics_for(self.objectives)

    def over_seeds(self) -> str:
        """What the numbers are of, for people."""
        seeds = ", ".join(map(str, self.seeds))
        return f"mean ± standard deviation over seeds {seeds}" if len(self.seeds) > 1 else f"seed {seeds}"


class Sweep:
    """A folder with runs, and the studies that say which of them there should be.

    >>> base = Base.read(Path("configs/cub20.yaml"), {})  # doctest: +SKIP
    >>> panel = make_panel("width", "Width of a head", base, [("model.head_dim", [8, 16])])  # doctest: +SKIP
    >>> Sweep(base, [panel], Path("sweeps/width"), SweepSettings(seeds=(0, 1))).work()  # doctest: +SKIP
    """

    def __init__(self, base: Base, panels: Sequence[Panel], out: Path, settings: SweepSettings) -> None:
        """Everything that can be wrong with the input is found here, before anything is trained."""
        self.base, self.panels, self.out, self.settings = base, list(panels), out, settings
        self.config = base.config()
        self.reporter = Reporter()
        check_objectives(self.config, settings)
        if out.exists() and not out.is_dir():
            raise DaplError(f"{out}: is a file; name a folder with --out.")
        made = not out.exists()
        with locked(out / LOCK, "starting a sweep", wait=math.inf):
            try:
                claim_folder(out, self.config)
                with database_refusals(out):
                    self.studies = self._open_studies()
            except DaplError:
                if made:  # by us, and nobody came in since: we hold the lock
                    shutil.rmtree(out, ignore_errors=True)
                raise

    def __repr__(self) -> str:
        return f"Sweep({self.base.source}, {', '.join(panel.name for panel in self.panels)}, in {self.out})"

    def _open_studies(self) -> list[PanelStudy]:
        s = self.settings
        storage, lock = open_storage(s.storage, self.out)
        return [
            PanelStudy(study_name(panel, self.config, s), panel, s.objectives, storage, lock, s.trials, s.sampler_seed)
            for panel in self.panels
        ]

    def announce(self) -> None:
        """Where the sweep stands, and how to go on with it."""
        seeds = self.settings.seeds
        each = f", each with seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else ""
        for study in self.studies:
            total, done = study.total(), study.counts()[0]
            points = f"{total} point{'s' if total > 1 else ''}" + (f", {done} of them done" if done else "")
            self.reporter.line(f"{study.panel.name}: {', '.join(study.panel.fields())}: {points}{each}")
        self.reporter.line(f"in {self.out}; interrupted or killed, the same command goes on where it stood")

    def work(self, after_each: Callable[[], object] = lambda: None) -> None:
        """Run points until there is none that nobody has; ``after_each`` is called when one was finished."""
        failures = 0
        while (claimed := self._claim()) is not None:
            study, trial, values = claimed
            try:
                with study.heartbeat(trial):
                    found = self._run(study, values)
            except KeyboardInterrupt:
                study.give_back(trial)
                raise
            except WriteError:  # not the point's fault, and the next one would meet the same
                with suppress(WriteError), database_refusals(self.out):
                    study.give_back(trial)
                raise
            except DaplError as error:
                study.fail(trial, str(error))
                failures += 1
                if failures >= _TOO_MANY_FAILURES and not any(s.finished() for s in self.studies):
                    raise DaplError(
                        f"{shown(values)}: {error}\n{failures} points failed and none succeeded."
                    ) from error
                self.reporter.line(f"  failed, the next one is tried: {error}")
                continue
            seeds = found["validation"].values()
            means = [mean_and_deviation([n[o.name] for n in seeds]).mean for o in self.settings.objectives]
            study.finish(trial, means, found)
            after_each()

    def _claim(self) -> tuple[PanelStudy, Any, Values] | None:
        """A point that nobody has. If others have all that are left, waits to see whether one of those is dead."""
        patience = max(study.grace_period for study in self.studies) + 2
        started = None
        while True:
            for study in self.studies:
                if (claimed := study.claim()) is not None:
                    return study, *claimed
            running = sum(study.counts()[1] for study in self.studies)
            if started is None and running:
                self.reporter.line(f"other processes have the last {running}; {patience} s tell whether one was killed")
            started = started or time.monotonic()
            if not running or time.monotonic() - started > patience:
                return None
            time.sleep(1)

    def _run(self, study: PanelStudy, values: Values) -> dict[str, Any]:
        """Train and measure one point for every seed; plain values that go into the study."""
        runs, numbers = {}, {}
        for seed in self.settings.seeds:
            fields = {**study.panel.fixed, **values}
            config = self.base.config({**fields, "seed": seed})
            name = run_name(fields, self.config, seed)
            done, _ = study.counts()
            self.reporter.line(f"[{study.panel.name} {done + 1}/{study.total()}] {shown(values)}, seed {seed}")
            started = time.monotonic()
            run = run_or_resume(config, self.out / "runs" / name, quiet=not self.settings.verbose)
            found = measured(run, "validation", self.settings.metrics(), self.settings.protocol, config)
            for objective in self.settings.objectives:
                if objective.name not in found:
                    raise DaplError(f"--objective {objective.name}: the run gave no such number on validation.")
            self.reporter.line(f"  {self._said(found)}  ({time.monotonic() - started:.0f} s)")
            runs[str(seed)], numbers[str(seed)] = f"runs/{name}", found
        return {"runs": runs, "validation": numbers}

    def _said(self, found: dict[str, float]) -> str:
        names = dict.fromkeys(("accuracy", "coverage", "diversity", *(o.name for o in self.settings.objectives)))
        return "  ".join(f"{name.replace('_', ' ')} {found[name]:.3f}" for name in names if name in found)

    def test_numbers(self, entry: dict[str, Any]) -> dict[str, dict[str, float]]:
        """The same numbers on test, of the runs that are in this folder."""
        found = {}
        for seed, path in entry["runs"].items():
            run = Run(self.out / path)
            if run.best.exists():
                found[seed] = measured(run, "test", self.settings.metrics(), self.settings.protocol)
        return found


def claim_folder(out: Path, config: Config) -> None:
    """Begin a sweep in the folder, or see that the one that is there belongs to the same config. Under the lock."""
    base = out / "base.yaml"
    if not base.is_file():
        if any(path.name != LOCK and not is_leftover(path.name) for path in out.iterdir()):
            raise DaplError(f"{out}: exists and is not a sweep; name a new folder with --out.")
        write_text(base, dump_config(config))
        return
    advice = "Name another folder with --out, or start it with the config that it has (base.yaml)."
    refuse_other_config(out, "sweep", load_config(base), config, advice)


def check_objectives(config: Config, settings: SweepSettings) -> None:
    """Whether the data lets the objectives be measured; reads the data's index, so bad data is found here as well."""
    from dapl.data.build import build_splits

    validation = build_splits(config.data).validation
    wanted = [given_by(objective.name).name for objective in settings.objectives]
    missing = missing_needs(wanted, data_gives(validation.parts, validation.has_masks) | {"logits", "maps", "model"})
    for objective in settings.objectives:
        if reason := missing.get(given_by(objective.name).name):
            raise DaplError(f"--objective {objective.name}: {reason}; choose another objective.")


def study_name(panel: Panel, config: Config, settings: SweepSettings) -> str:
    """Names a study by all that decides what its trials are: the same command, the same study, on every machine."""
    content = {
        "config": flat_fields(config),
        "panel": asdict(panel),
        "objectives": [asdict(objective) for objective in settings.objectives],
        "seeds": settings.seeds,
        "sampler": None if settings.trials is None else settings.sampler_seed,
        "protocol": settings.protocol.to_json(),
        "code": code_digest(),  # other metrics measure the runs that are there again
    }
    text = json.dumps(content, sort_keys=True)
    return f"{panel.name}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
