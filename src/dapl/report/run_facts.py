"""What the page says of the model, its training and its numbers, read off the small files of a run."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dapl.config import Config
from dapl.evaluation.result import LINES
from dapl.report.plain import rounded, without_paths
from dapl.run import Run

SYSTEMS = {
    "dapl": "DAPL",
    "protopnet": "ProtoPNet",
    "protopshare": "ProtoPShare",
    "pixpnet": "PixPNet",
    "blackbox": "black box",
}
"""As their papers write them; a system that is not here is shown by the name that configs give it."""
HEADLINES = ("accuracy", "coverage", "diversity", "region_background_share")
"""The numbers at the top of the page."""
_PERCENT = ("accuracy", "balanced_accuracy")
_BETTER = {
    "higher": ("accuracy", "balanced_accuracy", "coverage", "precision", "recall", "diversity", "object_overlap",
               "consistency", "stability", "purity", "faithfulness"),
    "lower": ("ece", "cross_entropy", "redundancy", "imbalance", "background_bias", "region_background_share", "oirr"),
}  # fmt: skip


def model_facts(run: Run, config: Config, prototypes: int, classes: int) -> dict[str, Any]:
    """System, backbone and size, as pairs of name and text."""
    model = config.model
    facts = _optional_json(run.model_file)
    lines = [("system", SYSTEMS.get(model.system, model.system)), ("backbone", model.backbone.name)]
    stages = ", ".join(str(stage).replace("-", "−") for stage in model.backbone.stages)
    lines.append(("feature stages", stages))
    names = {"heads": "heads", "head_dim": "width of a head", "prototypes_per_class": "prototypes a class",
             "width": "width of a prototype"}  # fmt: skip
    lines += [(text, f"{value}") for field, text in names.items() if (value := getattr(model, field, None)) is not None]
    lines += [("classes", f"{classes:,}"), ("prototypes", f"{prototypes:,}")]
    said = {name for name, _ in lines}
    lines += [(name.replace("_", " "), _short(value)) for name, value in facts.items() if name not in said]
    return {"system": SYSTEMS.get(model.system, model.system), "backbone": model.backbone.name, "lines": lines}


def training_facts(run: Run, config: Config) -> dict[str, Any]:
    environment, data = _optional_json(run.folder / "environment.json"), _optional_json(run.data_file)
    pictures = data.get("pictures", {})
    lines = [("data", config.data.name), ("picture", f"{config.data.image_size} px, {config.data.fit}")]  # type: ignore[attr-defined]
    lines += [(f"{split} pictures", f"{count:,}") for split, count in pictures.items()]
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
        seconds = took.get(number)
        shown.append({"name": name.replace("_", " "), "epochs": epochs, "settings": settings,
                      "seconds": None if seconds is None else rounded(seconds, 1)})  # fmt: skip
    return shown


def number_rows(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    """Every number with its interval, as text, in the order of `dapl evaluate`."""
    rows = []
    for name, text in LINES.items():
        number = evaluation["numbers"].get(name)
        if number is None:
            continue
        value, low, high = number["value"], number.get("low"), number.get("high")
        rows.append({
            "name": name,
            "text": text.strip(),
            "indented": text.startswith(" "),
            "value": _number(name, value),
            "interval": None if low is None or high is None else f"{_number(name, low)} – {_number(name, high)}",
            "better": next((way for way, names in _BETTER.items() if name in names), None),
        })  # fmt: skip
    return rows


def class_numbers(run: Run) -> dict[str, dict[str, float | None]]:
    """metrics/per_class.csv by class; empty where it is not there."""
    return {row.pop("class"): {k: _value(v) for k, v in row.items()} for row in _table(run, "per_class.csv")}


def evaluation_of(run: Run) -> dict[str, Any]:
    """metrics.json; {} where it is not there or not what `dapl evaluate` writes."""
    found = _optional_json(run.evaluation_file)
    return found if {"protocol", "numbers"} <= found.keys() else {}


def not_measured(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    """Metrics that could not be had, by the reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in evaluation.get("missing", {}).items():
        reasons.setdefault(reason, []).append(name.replace("_", " "))
    return [{"names": names, "reason": reason} for reason, names in reasons.items()]


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" if name in _PERCENT else f"{value:.3f}"


def _table(run: Run, name: str) -> list[dict[str, str]]:
    path = run.evaluation_folder / name
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _value(text: str) -> float | None:
    return float(text) if text else None


def _optional_json(path: Path) -> dict[str, Any]:
    """{} where the file is not there or is not what we write."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _short(value: Any) -> str:
    """A setting as people write it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(inner)}" for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " × ".join(_short(inner) for inner in value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
