"""Training curves as the geometry of small SVG charts: the template only writes it down. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

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
        series = {name: [_value(entry, group, key) for entry in epochs] for name, (group, key) in lines.items()}
        series = {name: values for name, values in series.items() if any(value is not None for value in values)}
        if series:
            charts.append(_chart(title, series, epochs))
    return charts


def _value(entry: dict[str, Any], group: str, key: str) -> float | None:
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
    """Of one stage, as SVG writes them; thinned where there are more than can be seen."""
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
