"""What a sweep varies and what it looks for: fields of a config, the paper's ablations, objectives.

Imports neither torch nor Optuna.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dapl.common.errors import DaplError, nearest
from dapl.config import Config, load_config, read_config_file, read_yaml
from dapl.metrics.registry import HEADLINES, NUMBERS, given_by, metric

KNOWN = tuple(NUMBERS)
"""The numbers that a sweep can look for."""
ALWAYS = tuple(dict.fromkeys(given_by(name).name for name in HEADLINES))
"""Metrics that every sweep measures."""
SHOWN = tuple(number.name for name in ALWAYS for number in metric(name).numbers)
"""Their numbers, in the order of the table."""


@dataclass(frozen=True)
class SweepObjective:
    name: str
    maximise: bool

    def text(self) -> str:
        return f"{'highest' if self.maximise else 'lowest'} {self.name.replace('_', ' ')}"


def parse_objectives(words: Sequence[str]) -> tuple[SweepObjective, ...]:
    """``accuracy,coverage``; ``name:min`` or ``name:max`` where the usual direction is not wanted."""
    found: dict[str, SweepObjective] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        name, colon, way = word.partition(":")
        name = name.lower().replace("-", "_")
        if name not in KNOWN:
            raise DaplError(f"--objective: '{name}' is not known{nearest(name, KNOWN)}")
        if colon and way not in ("min", "max"):
            raise DaplError(f"--objective {word}: the direction is min or max.")
        better = NUMBERS[name].better
        if better is None and not colon:
            raise DaplError(f"--objective {name}: neither more nor less of it is better; say {name}:min or {name}:max.")
        if name in found:
            raise DaplError(f"--objective: {name} is given twice.")
        found[name] = SweepObjective(name, way == "max" if colon else better == "higher")
    return tuple(found.values())


def metrics_for(objectives: Sequence[SweepObjective]) -> tuple[str, ...]:
    """The metrics to measure, so that the objectives and the table have their numbers."""
    return tuple(dict.fromkeys((*ALWAYS, *(given_by(objective.name).name for objective in objectives))))


def numbers_for(objectives: Sequence[SweepObjective]) -> tuple[str, ...]:
    """The numbers of the table."""
    return tuple(dict.fromkeys((*SHOWN, *(objective.name for objective in objectives))))


Values = dict[str, Any]
"""Dotted field → value, as the config reads it."""


@dataclass(frozen=True)
class Base:
    """The config that all runs start from, as it was when the sweep began: the file may be edited meanwhile."""

    source: str
    given: Values

    @classmethod
    def read(cls, path: Path, overrides: Mapping[str, Any]) -> Base:
        return cls(str(path), {**read_config_file(path), **overrides})

    def config(self, values: Mapping[str, Any] | None = None) -> Config:
        """The config with some fields changed; one that does not exist, or a value that does not fit, is refused."""
        try:
            return load_config(None, self.given | dict(values or {}))
        except DaplError as error:
            lines = str(error).split("\n")
            raise DaplError("\n".join(f"{self.source}: {line.removeprefix('config: ')}" for line in lines)) from error

    def read_back(self, field: str, value: Any, fixed: Mapping[str, Any]) -> Any:
        """The value as the config understands it: 1 is 1.0 where a float is asked for, '1e-3' too."""
        if field == "seed":
            raise DaplError("seed: is not a field to sweep over; --seeds 0,1,2 gives mean and deviation over seeds.")
        return value_of(self.config({**fixed, field: value}), field)


def value_of(config: Config, field: str) -> Any:
    """The value of a dotted field, in plain types."""
    found: Any = config.model_dump(mode="json")
    for key in field.split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


@dataclass(frozen=True)
class Choices:
    """A field and the values that it takes."""

    field: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Interval:
    """A field and the ends between which it is searched, both included; whole numbers where the ends are."""

    field: str
    low: float
    high: float
    log: bool


Dimension = Choices | Interval


@dataclass(frozen=True)
class Panel:
    """One sweep: what is varied, and what is set beside the config. The paper's figure has one panel for each."""

    name: str
    title: str
    dimensions: tuple[Dimension, ...]
    fixed: Values

    def fields(self) -> list[str]:
        return [dimension.field for dimension in self.dimensions]

    def points(self) -> Iterator[Values]:
        """Every combination of the values; the last field changes fastest."""
        lists = [d.values for d in self.dimensions if isinstance(d, Choices)]
        for values in itertools.product(*lists):
            yield dict(zip(self.fields(), values, strict=True))

    def is_grid(self) -> bool:
        return all(isinstance(dimension, Choices) for dimension in self.dimensions)


def parse_grid(text: str) -> tuple[str, Any]:
    """``loss.contrast.weight=0,0.1`` → field and values; lists in brackets: ``model.backbone.stages=[-1],[-2,-1]``.

    >>> parse_grid("model.head_dim=8,16")
    ('model.head_dim', [8, 16])
    """
    field, values = _halves("grid", text, "FIELD=VALUE,VALUE,…")
    try:
        return field, yaml.safe_load(f"[{values}]")
    except yaml.YAMLError as error:
        raise DaplError(f"--grid {field}: '{values}' is not a list of values such as 0,0.1,0.5.") from error


def parse_search(text: str) -> tuple[str, str]:
    """``loss.foreground.weight=log:0.1:20`` or ``…=uniform:0:1`` → field and interval."""
    return _halves("search", text, "FIELD=log:LOW:HIGH or FIELD=uniform:LOW:HIGH")


def _halves(flag: str, text: str, form: str) -> tuple[str, str]:
    field, equals, rest = text.partition("=")
    if not equals or not field.strip() or not rest.strip():
        raise DaplError(f"--{flag} {text}: has to be {form}.")
    return field.strip(), rest.strip()


def _choices(field: str, values: Any, base: Base, fixed: Mapping[str, Any]) -> Choices:
    """Each value checked against the config; one that is there twice counts once."""
    if not isinstance(values, list) or not values:
        raise DaplError(f"{field}: a grid needs a list of at least one value, e.g. {field}=1,2,3.")
    read = {json.dumps(value): value for value in (base.read_back(field, given, fixed) for given in values)}
    return Choices(field, tuple(read.values()))


def _interval(field: str, text: Any, base: Base, fixed: Mapping[str, Any]) -> Interval:
    kind, *ends = str(text).split(":")
    if kind not in ("log", "uniform"):
        raise DaplError(f"{field}: '{kind}' is not known{nearest(kind, ('log', 'uniform'))}")
    if len(ends) != 2:
        raise DaplError(f"{field}: '{text}' needs two ends, e.g. {kind}:0.1:20.")
    low, high = (base.read_back(field, yaml.safe_load(end), fixed) for end in ends)
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, (int, float)):
            raise DaplError(f"{field}: is not a number, so it has no interval; list its values with --grid.")
    if not low < high or (kind == "log" and low <= 0):
        rule = "0 < LOW < HIGH" if kind == "log" else "LOW < HIGH"
        raise DaplError(f"{field}: '{text}' needs {rule}.")
    return Interval(field, low, high, kind == "log")


def make_panel(
    name: str,
    title: str,
    base: Base,
    grid: Sequence[tuple[str, Any]] = (),
    search: Sequence[tuple[str, Any]] = (),
    fixed: Mapping[str, Any] | None = None,
) -> Panel:
    """A panel from fields with values (``grid``), fields with intervals (``search``), and fields set beside the config.

    Every field, every value and every combination of a grid is checked against the config.
    """
    kept = {field: base.read_back(field, value, {}) for field, value in (fixed or {}).items()}
    dimensions: list[Dimension] = [_choices(field, values, base, kept) for field, values in grid]
    dimensions += [_interval(field, text, base, kept) for field, text in search]
    panel = Panel(name, title, tuple(dimensions), kept)
    if not dimensions:
        raise DaplError(f"{name}: nothing is varied; give --grid, --search or --ablation.")
    fields = [*panel.fields(), *kept]
    for field in fields:
        if fields.count(field) > 1:
            raise DaplError(f"{name}: {field} is given twice; a field has one list of values or one interval.")
        if field in base.given:
            raise DaplError(f"--{field}: the sweep itself sets this field; leave the flag out.")
    if panel.is_grid():
        for values in panel.points():
            base.config({**kept, **values})
    return panel


def run_name(values: Mapping[str, Any], base: Config, seed: int) -> str:
    """Names the folder of a run by what differs from the config, so that equal runs of two panels are one run."""
    changed = {field: value for field, value in sorted(values.items()) if _there(base, field) != (True, value)}
    words = [f"{field}={_word(value)}" for field, value in changed.items()] or ["base"]
    plain = ",".join([*words, f"seed={seed}"])
    name = "".join(letter if letter.isalnum() or letter in "._=,+-[]" else "_" for letter in plain)
    if name == plain and len(name) <= 150:
        return name
    digest = hashlib.blake2b(plain.encode(), digest_size=6).hexdigest()
    return f"{name[:120]},{digest}"


def _there(config: Config, field: str) -> tuple[bool, Any]:
    try:
        return True, value_of(config, field)
    except (KeyError, IndexError, TypeError, ValueError):
        return False, None


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def shown(values: Mapping[str, Any]) -> str:
    """``loss.contrast.weight 0.5, seed 1``, for people."""
    return ", ".join(f"{field} {show(value)}" for field, value in values.items())


def show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _word(value)


ABLATIONS = ("contrast", "fg_weight", "fg_threshold", "head_dim", "paper", "parts")
WITHOUT = "without_"
"""Panels whose name starts so compare a weight of 0 with that of the config."""

_DAPL = {"loss.foreground.weight": 0.0}
"""The paper's DAPL without FG."""

_PAPER: dict[str, dict[str, Any]] = {
    # The text names 0.01, 0.5 and "≥ 1.0"; what lies between and above is ours.
    "contrast": {
        "title": "Contrastive loss",
        "grid": {"loss.contrast.weight": [0.01, 0.1, 0.5, 1.0, 2.0, 5.0]},
        "fixed": _DAPL,
    },
    # "λ_fg ∈ [0.5, 25.0]", with 10 and 15 named.
    "fg_weight": {
        "title": "Foreground loss, τ_bg = 0.3",
        "grid": {"loss.foreground.weight": [0.5, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0]},
        "fixed": {"loss.foreground.threshold": 0.3},
    },
    # 0.01, 0.10, 0.20 and 0.25 are named; 0.3 is the λ_fg = 20 of the panel before.
    "fg_threshold": {
        "title": "Background threshold, λ_fg = 20",
        "grid": {"loss.foreground.threshold": [0.01, 0.05, 0.1, 0.2, 0.25, 0.3]},
        "fixed": {"loss.foreground.weight": 20.0},
    },
    # Rows of the main table.
    "head_dim": {"title": "Width of a head", "grid": {"model.head_dim": [8, 16, 32]}, "fixed": _DAPL},
}


def _ablation_of_parts(base: Base) -> dict[str, dict[str, Any]]:
    """Ours taken apart: each term that it learns by off, how many heads, how wide, and what a head sees."""
    config = base.config()
    if config.model.system != "parts":
        raise DaplError(
            f"--ablation parts: takes the system parts apart, and {base.source} is of {config.model.system}; give "
            "e.g. configs/cub20/parts.yaml."
        )
    weights = {f"loss.locate.{name}": value for name, value in config.loss.locate.model_dump().items()}
    if any(stage.stage in ("warm_up", "joint") for stage in config.schedule):  # in closed form nothing asks for them
        weights |= {"loss.cluster": config.loss.cluster, "model.head_dropout": value_of(config, "model.head_dropout")}
    found: dict[str, dict[str, Any]] = {}
    for field, weight in weights.items():
        if isinstance(weight, float) and weight:
            name = field.rpartition(".")[2]
            found[WITHOUT + name] = {"title": name.replace("_", " "), "grid": {field: [0.0, weight]}}
    found["heads"] = {"title": "Number of heads", "grid": {"model.heads": [5, 10, 15]}}
    found["head_dim"] = {"title": "Width of a head", "grid": {"model.head_dim": [16, 32, 64]}}
    found["evidence"] = {"title": "What a head sees", "grid": {"model.evidence": ["crop", "map"]}}
    return found


def panels_of(ablation: str, base: Base) -> list[Panel]:
    """One of `ABLATIONS`, or a YAML file such as those in configs/sweeps."""
    if ablation.endswith((".yaml", ".yml")):
        path = Path(ablation)
        entries = read_yaml(path)
        if not entries:
            raise DaplError(f"{path}: names no sweep; it holds 'name: {{grid: {{field: [values]}}}}'.")
        return [_panel(path, name, entry, base) for name, entry in entries.items()]
    if ablation not in ABLATIONS:
        raise DaplError(f"--ablation: '{ablation}' is not known{nearest(ablation, ABLATIONS)}")
    entries = _ablation_of_parts(base) if ablation == "parts" else _PAPER
    names = entries if ablation in ("paper", "parts") else (ablation,)
    return [_panel(None, name, entries[name], base) for name in names]


def _panel(path: Path | None, name: str, entry: Any, base: Base) -> Panel:
    where = f"{path}: {name}"
    known = ("title", "grid", "search", "fixed")
    if not isinstance(entry, Mapping):
        raise DaplError(f"{where}: a sweep is a mapping of {', '.join(known)}.")
    for key, value in entry.items():
        if key not in known:
            raise DaplError(f"{where}: unknown key '{key}'{nearest(str(key), known)}")
        if key != "title" and not isinstance(value, Mapping):
            raise DaplError(f"{where}: '{key}' is a mapping of fields, this is a {type(value).__name__}.")
    title = str(entry.get("title", name))
    try:
        grid, search = (list(entry.get(key, {}).items()) for key in ("grid", "search"))
        return make_panel(name, title, base, grid, search, entry.get("fixed"))
    except DaplError as error:
        raise DaplError(f"{where}: {error}" if path else str(error)) from error
