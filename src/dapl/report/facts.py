"""What the page says of the model, its training and its numbers, read off the small files of a run without torch.

Training curves are given as the geometry of small SVG charts, which the template only writes down.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import yaml

from dapl.common.errors import BrokenError, MissingError
from dapl.common.reading import read_text
from dapl.config import Config
from dapl.evaluation.protocol import OTHERS, changed_fields
from dapl.metrics.registry import NUMBERS, given_by, shown
from dapl.runs.run import Run

_MACHINE_PATH = re.compile(r"^(~|/|[A-Za-z]:[\\/]|\\\\|file:)")


def rounded(value: float | None, digits: int = 4) -> float | None:
    """None for what is not a number."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def name_of(text: str) -> str:
    """A path of the machine becomes its last name; other texts, as names below a data set's root, stay."""
    if not _MACHINE_PATH.match(text):
        return text
    names = [name for name in re.split(r"[\\/]", text) if name]
    return f"…/{names[-1]}" if names else "…"


def without_paths(value: Any) -> Any:
    """The same for every text in lists and mappings."""
    if isinstance(value, str):
        return name_of(value)
    if isinstance(value, dict):
        return {key: without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    return value


SYSTEMS = {
    "dapl": "DAPL",
    "protopnet": "ProtoPNet",
    "protopshare": "ProtoPShare",
    "pixpnet": "PixPNet",
    "blackbox": "black box",
}
"""As their papers write them; a system that is not here is shown by the name that configs give it."""


def model_facts(run: Run, config: Config, prototypes: int, kept: int, classes: int) -> dict[str, Any]:
    """System, backbone and size, as pairs of name and text."""
    model = config.model
    system, facts = SYSTEMS.get(model.system, model.system), run.model_facts()
    stages = ", ".join(str(stage).replace("-", "−") for stage in model.backbone.stages)
    lines = [("system", system), ("backbone", model.backbone.name), ("feature stages", stages)]
    names = {
        "heads": "heads",
        "head_dim": "width of a head",
        "prototypes_per_class": "prototypes per class",
        "width": "width of a prototype",
    }
    lines += [(text, f"{value}") for field, text in names.items() if (value := getattr(model, field, None)) is not None]
    lines += [
        ("classes", f"{classes:,}"),
        ("prototypes", f"{kept:,} of {prototypes:,} kept" if kept < prototypes else f"{prototypes:,}"),
    ]
    said = {name for name, _ in lines}
    lines += [(name.replace("_", " "), _short(value)) for name, value in facts.items() if name not in said]
    return {"system": system, "backbone": model.backbone.name, "lines": lines}


def training_facts(run: Run, config: Config) -> dict[str, Any]:
    environment, images = run.environment(), run.image_counts()
    lines = [("data", config.data.name), ("image", f"{config.data.image_size} px, {config.data.fit}")]  # type: ignore[attr-defined]
    lines += [(f"{split} images", f"{count:,}") for split, count in images.items()]
    lines.append(("seed", str(config.seed)))
    lines += [(name, str(environment[name])) for name in ("python", "system") if environment.get(name)]
    return {
        "lines": lines,
        "stages": _stages(run, config),
        "versions": {name: version for name, version in environment.get("versions", {}).items() if version},
        "config": yaml.safe_dump(without_paths(config.model_dump(mode="json")), sort_keys=False, allow_unicode=True),
    }


def _stages(run: Run, config: Config) -> list[dict[str, Any]]:
    """The schedule with what each stage took; a stage that was not reached has no seconds."""
    took = {entry["stage"]: entry.get("seconds") for entry in run.logged() if entry.get("event") == "stage"}
    shown = []
    for number, stage in enumerate(config.schedule):
        fields = stage.model_dump(mode="json")
        name, epochs = fields.pop("stage"), fields.pop("epochs", None)
        if fields.get("decay") != "step":
            fields = {key: value for key, value in fields.items() if key not in ("decay_epochs", "decay_factor")}
        settings = ", ".join(
            f"{key.replace('_', ' ')} {_short(value)}" for key, value in fields.items() if value and value != "none"
        )
        name, seconds = name.replace("_", " "), rounded(took.get(number), 1)
        shown.append({"name": name, "epochs": epochs, "settings": settings, "seconds": seconds})
    return shown


def other_numbers(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of other protocols: what is otherwise there, and their numbers as text."""
    found = []
    for other in evaluation.get(OTHERS, ()):
        protocol = other["protocol"]
        changed = changed_fields(protocol, evaluation["protocol"])
        what = [f"{name.replace('_', ' ')} {_short(value)}" for name, value in changed.items() if name != "images"]
        text = f"{', '.join(what) or 'other images'}: {protocol.get('images', 0):,} images"
        found.append({"protocol": text, "rows": number_rows(other)})
    return found


def number_rows(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    """Every number with its interval, as text, in the order of `dapl evaluate`."""
    rows = []
    for name, entry in NUMBERS.items():
        number = evaluation["numbers"].get(name)
        if number is None:
            continue
        value, low, high = number["value"], number.get("low"), number.get("high")
        rows.append(
            {
                "name": name,
                "text": entry.heading,
                "indented": given_by(name).name != name,
                "value": _number(name, value),
                "interval": None if low is None or high is None else f"{_number(name, low)} – {_number(name, high)}",
                "better": entry.better,
            }
        )
    return rows


def class_numbers(run: Run) -> dict[str, dict[str, float | None]]:
    """metrics/per_class.csv by class; empty where it is not there."""
    path = run.evaluation_folder / "per_class.csv"
    advice = f"`dapl evaluate {run.folder}` writes it anew"
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path, advice), newline="")))
        return {row.pop("class"): {name: float(text) if text else None for name, text in row.items()} for row in rows}
    except MissingError:
        return {}
    except (csv.Error, KeyError, ValueError, TypeError, AttributeError) as error:
        raise BrokenError(f"{path}: not a table of numbers by class ({error}); {advice}.") from error


def not_measured(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    """Metrics that could not be had, by the reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in evaluation.get("missing", {}).items():
        reasons.setdefault(reason, []).append(name.replace("_", " "))
    return [{"names": names, "reason": reason} for reason, names in reasons.items()]


def _number(name: str, value: float | None) -> str:
    return "–" if value is None else shown(name, value, digits=3)


def _short(value: Any) -> str:
    """A setting as people write it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(inner)}" for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " × ".join(_short(inner) for inner in value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


WIDTH, HEIGHT = 420, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 22, 30
_MOST_POINTS = 400
"""More than this cannot be told apart at this width."""

CHARTS: dict[str, dict[str, tuple[str, str]]] = {
    "Accuracy": {"train": ("train", "accuracy"), "validation": ("validation", "accuracy")},
    "Loss": {
        "train, all terms": ("train", "total"),
        "train, cross-entropy": ("train", "cross_entropy"),
        "validation, cross-entropy": ("validation", "cross_entropy"),
    },
    "Terms of the loss": {
        term: ("train", term) for term in ("cluster", "separation", "contrast", "foreground", "spatial")
    },
}
"""Title → line → where its values are in a line of metrics.jsonl."""


def curves(logged: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A chart for each of `CHARTS` that has values; epochs of all stages follow each other."""
    epochs = [entry for entry in logged if entry.get("event") == "epoch"]
    charts = []
    for title, lines in CHARTS.items():
        series = {name: [_number_at(entry, group, key) for entry in epochs] for name, (group, key) in lines.items()}
        series = {name: values for name, values in series.items() if any(value is not None for value in values)}
        if series:
            charts.append(_chart(title, series, epochs))
    return charts


def _number_at(entry: dict[str, Any], group: str, key: str) -> float | None:
    value = entry.get(group, {}).get(key)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _chart(title: str, series: dict[str, list[float | None]], epochs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    known = [value for values in series.values() for value in values if value is not None]
    ticks = nice_ticks(min(known), max(known))
    low, high = ticks[0], ticks[-1]
    count = len(epochs)

    def x(position: float) -> float:
        return round(_LEFT + (position + 0.5) / count * (WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(_TOP + (high - value) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1)

    stages = _stage_spans(epochs)
    lines = []
    for name, values in series.items():
        pieces = [_points(values, start, end, x, y) for _, start, end in stages]
        last = [value for value in values if value is not None][-1]
        lines.append({"name": name, "pieces": [piece for piece in pieces if piece], "last": f"{last:.3g}"})
    return {
        "title": title,
        "width": WIDTH,
        "height": HEIGHT,
        "left": _LEFT,
        "right": WIDTH - _RIGHT,
        "top": _TOP,
        "bottom": HEIGHT - _BOTTOM,
        "ticks": [{"y": y(tick), "text": f"{tick:g}".replace("-", "−")} for tick in ticks],
        "stages": [
            {"name": name.replace("_", " "), "x": x(start - 0.5), "width": round(x(end - 0.5) - x(start - 0.5), 1)}
            for name, start, end in stages
        ],
        "ends": [{"x": x(0), "text": "1"}, {"x": x(count - 1), "text": str(count)}] if count > 1 else [],
        "lines": lines,
    }


def _stage_spans(epochs: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(name, first epoch, end) of each stage."""
    spans, start = [], 0
    for (_, name), group in groupby(epochs, key=lambda entry: (entry.get("stage"), str(entry.get("name", "")))):
        end = start + len(list(group))
        spans.append((name, start, end))
        start = end
    return spans


def _points(values: Sequence[float | None], start: int, end: int, x, y) -> str:
    """The points of one stage, as SVG writes them; thinned where there are more than can be seen."""
    step = max(1, -(-len(values) // _MOST_POINTS))
    rows = sorted({*range(start, end, step), end - 1})
    return " ".join(f"{x(row)},{y(value)}" for row in rows if (value := values[row]) is not None)


def nice_ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round values that enclose both, at most about ``wanted`` steps apart: multiples of 1, 2 or 5 × 10ⁿ."""
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]
