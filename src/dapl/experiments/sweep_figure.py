"""The figure of a sweep: accuracy, Coverage and Diversity against what was varied, with error bars over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

from dapl.common.tables import Spread
from dapl.experiments.comparison_figures import new_figure, save_figure
from dapl.experiments.sweep_results import PanelResult, Point
from dapl.experiments.sweep_space import WITHOUT, Interval, show
from dapl.metrics.registry import NUMBERS

_BLUE, _ORANGE, _GREEN, _INK, _SOFT = "#1f5fa8", "#d1672b", "#3a8f5c", "#222222", "#8a8a8a"
_METRICS = (
    ("accuracy", "accuracy (%)", _BLUE, "o"),
    ("coverage", "Coverage", _ORANGE, "s"),
    ("diversity", "Diversity", _GREEN, "^"),
)
_SYMBOLS = {
    "loss.contrast.weight": r"$\lambda_\mathrm{contrast}$",
    "loss.foreground.weight": r"$\lambda_\mathrm{fg}$",
    "loss.foreground.threshold": r"$\tau_\mathrm{bg}$",
    "model.head_dim": r"$D_1$",
    "model.heads": r"$N$",
    "model.evidence": "evidence",
}
_LINES = ("#1f5fa8", "#d1672b", "#3a8f5c", "#8a4fa3", "#b8860b", "#4a4a4a")
_ERRORBAR: dict[str, Any] = {"markersize": 4, "linewidth": 1.4, "elinewidth": 0.9, "capsize": 2.2}
_LOG_FROM = 100.0
"""Values that span more than this factor stand on a logarithmic axis."""
PAPER_PANELS = ("contrast", "fg_weight", "fg_threshold")


def draw_results(folder: Path, results: Sequence[PanelResult], caption: str, split: str = "validation") -> list[Path]:
    """sweep.png, and of several panels one figure each; names end in -test where the numbers are of test."""
    ending = "" if split == "validation" else f"-{split}"
    drawn = [result for result in results if any(getattr(point, split) for point in result.points)]
    figures: dict[str, Figure] = {}
    if any(result.panel.name.startswith(WITHOUT) for result in drawn):
        figures[f"sweep{ending}.png"] = taken_apart(drawn, caption, split)
    elif len(results) == 1 and drawn:
        figures[f"sweep{ending}.png"] = one_sweep(drawn[0], caption, split)
    elif drawn:
        in_paper = [result for result in drawn if result.panel.name in PAPER_PANELS]
        beside = in_paper if len(in_paper) == len(PAPER_PANELS) else drawn
        single = [result for result in beside if len(result.panel.dimensions) == 1]
        if single:
            figures[f"sweep{ending}.png"] = side_by_side(single, caption, split)
        figures |= {f"{result.panel.name}{ending}.png": one_sweep(result, caption, split) for result in drawn}
    return [save_figure(figure, folder / name, dpi=300) for name, figure in figures.items()]


def one_sweep(result: PanelResult, caption: str, split: str) -> Figure:
    """Three panels, one per metric; where several fields were varied by a grid, a line for each value of the others."""
    panel = result.panel
    searched = not panel.is_grid() or len(_lines(result)) > len(_LINES)
    fields = panel.fields() if searched else panel.fields()[:1]
    figure = new_figure(7.2, 0.55 + 2.25 * len(fields))
    axes = figure.subplots(len(fields), len(_METRICS), squeeze=False)
    for row, field in zip(axes, fields, strict=True):
        axis = Axis.of(result, field)
        for place, (name, label, colour, mark) in zip(row, _METRICS, strict=True):
            if searched:
                _scatter(place, result.points, axis, name, split, colour)
            else:
                _metric_lines(place, result, axis, name, split, colour, mark)
            axis.set(place)
            place.set_ylabel(label, fontsize=8.5)
            _style(place)
    if not searched and len(panel.dimensions) > 1:
        handles, labels = axes[0][0].get_legend_handles_labels()
        others = ", ".join(_SYMBOLS.get(field, field) for field in panel.fields()[1:])
        sizes: dict[str, Any] = {"fontsize": 8, "title_fontsize": 8}
        figure.legend(handles, labels, title=others, loc="outside right center", frameon=False, **sizes)
    figure.suptitle(f"{_math(panel.title)}\n", fontsize=10, color=_INK, x=0.01, ha="left")
    figure.text(0.01, 1 - 0.36 / figure.get_figheight(), caption, fontsize=7.5, color=_SOFT, va="center")
    return figure


def side_by_side(results: Sequence[PanelResult], caption: str, split: str) -> Figure:
    """As the paper's ablation figure: a panel for each sweep, with accuracy above, Coverage and Diversity below."""
    figure = new_figure(max(4.0, 2.55 * len(results) + 0.4), 3.6)
    rows = figure.subplots(2, len(results), squeeze=False, sharey="row", height_ratios=(1, 1.3))
    for column, result in enumerate(results):
        axis = Axis.of(result, result.panel.fields()[0])
        above, below = rows[0][column], rows[1][column]
        for place, (name, _, colour, mark) in zip((above, below, below), _METRICS, strict=True):
            _errorbar(place, result.points, axis, name, split, colour, mark)
        for place in (above, below):
            _style(place)
            axis.set(place)
        above.set_xlabel("")
        above.set_xticklabels([])
        above.set_title(_math(result.panel.title), fontsize=9, color=_INK)
    rows[0][0].set_ylabel("accuracy (%)", fontsize=8.5)
    rows[1][0].set_ylabel("Coverage, Diversity", fontsize=8.5)
    handles = [pair for axes in rows[:, 0] for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    figure.legend(*zip(*handles, strict=True), loc="outside lower right", ncols=3, frameon=False, fontsize=8.5)
    figure.text(0.01, 0.022, caption, fontsize=7, color=_SOFT, va="bottom")
    return figure


def taken_apart(results: Sequence[PanelResult], caption: str, split: str) -> Figure:
    """A row for the config as it is and one for each change of it, a column per number; the line is the config's."""
    whole, changes = _changes(results)
    metrics = [*_METRICS, ("part_identity", "part identity", _LINES[3], "D")]
    metrics = [entry for entry in metrics if any(_spread(point, entry[0], split) for point in changes.values())]
    figure = new_figure(1.6 + 1.75 * len(metrics), 0.9 + 0.24 * len(changes))
    columns = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
    for place, (name, label, colour, mark) in zip(columns, metrics, strict=True):
        factor = 100 if NUMBERS[name].percent else 1
        for height, point in enumerate(changes.values()):
            if spread := _spread(point, name, split):
                deviation = factor * spread.deviation if spread.deviation else None
                options = _ERRORBAR | {"linestyle": ""}
                place.errorbar(factor * spread.mean, height, xerr=deviation, color=colour, marker=mark, **options)
        if whole is not None and (spread := _spread(whole, name, split)):
            place.axvline(factor * spread.mean, color=_SOFT, linewidth=0.8, zorder=0)
        _style(place)
        place.xaxis.set_major_locator(MaxNLocator(4))
        place.grid(axis="x", color="#e6e6e6", linewidth=0.6)
        place.set_xlabel(label, fontsize=8.5)
    columns[0].yaxis.set_major_locator(FixedLocator(list(range(len(changes)))))
    columns[0].set_yticklabels(list(changes), fontsize=8)
    columns[0].set_ylim(len(changes) - 0.5, -0.5)
    figure.text(0.01, 0.012, caption, fontsize=7, color=_SOFT, va="bottom")
    figure.set_layout_engine("constrained", rect=(0, 0.05, 1, 0.95))
    return figure


def _changes(results: Sequence[PanelResult]) -> tuple[Point | None, dict[str, Point]]:
    """The point of the config as it is, and the points by what was changed, that one first."""
    whole, found = None, dict[str, Point]()
    for result in results:
        field = result.panel.fields()[0]
        without = result.panel.name.startswith(WITHOUT)
        for point in result.points:
            value = point.values[field]
            if without and value:
                whole = point
            else:
                named = f"without {result.panel.title}" if without else f"{_SYMBOLS.get(field, field)} = {show(value)}"
                found[named] = point
    if whole is None:
        return None, found
    return whole, {"as it is": whole} | {name: point for name, point in found.items() if point.runs != whole.runs}


@dataclass(frozen=True)
class Axis:
    """How the values of a field lie on the horizontal axis."""

    field: str
    values: tuple[Any, ...]
    scale: str
    """linear, log, symlog (where 0 is among values that want a log axis), or category."""
    ticks: bool = True
    """Whether each value has its tick; an interval has round ones."""

    @classmethod
    def of(cls, result: PanelResult, field: str) -> Axis:
        dimension = next(d for d in result.panel.dimensions if d.field == field)
        if isinstance(dimension, Interval):
            return cls(field, (dimension.low, dimension.high), "log" if dimension.log else "linear", ticks=False)
        values = dimension.values
        if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values) or min(values) < 0:
            return cls(field, values, "category")
        above = [value for value in values if value > 0]
        wide = bool(above) and max(above) / min(above) >= _LOG_FROM
        scale = "linear" if not wide else "log" if min(values) > 0 else "symlog"
        return cls(field, tuple(sorted(values)), scale)

    def position(self, value: Any) -> float:
        return float(self.values.index(value)) if self.scale == "category" else float(value)

    def set(self, axes: Axes) -> None:
        """Scale and ticks: the values themselves, as far as their labels have room."""
        axes.set_xlabel(_SYMBOLS.get(self.field, self.field), fontsize=8.5)
        if self.scale == "log":
            axes.set_xscale("log")
        if self.scale == "symlog":
            axes.set_xscale("symlog", linthresh=min(value for value in self.values if value > 0))
        if not self.ticks:
            return
        axes.xaxis.set_major_locator(FixedLocator([self.position(value) for value in self.values]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xticklabels(self._labels(axes), fontsize=8)

    def _labels(self, axes: Axes) -> list[str]:
        """Text of each tick, empty where it would run into the one before; the last one always stands."""
        axes.get_xlim()  # brings the limits up to date with what was drawn
        to_screen = axes.transScale + axes.transLimits  # type: ignore[attr-defined]
        places = [to_screen.transform((self.position(value), 0))[0] for value in self.values]
        texts = [show(value) for value in self.values]
        kept: list[int] = []
        for index in range(len(texts)):
            while kept and places[index] - places[kept[-1]] < 0.016 * (len(texts[index] + texts[kept[-1]]) + 1):
                if index < len(texts) - 1:
                    break
                kept.pop()
            else:
                kept.append(index)
        return [text if index in kept else "" for index, text in enumerate(texts)]


def _errorbar(
    axes: Axes, points: Sequence[Point], axis: Axis, name: str, split: str, colour: str, mark: str, label: str = ""
) -> None:
    """Mean and standard deviation, and each seed as a faint dot."""
    found = [(axis.position(p.values[axis.field]), _spread(p, name, split)) for p in points]
    pairs = sorted(((x, spread) for x, spread in found if spread is not None), key=lambda pair: pair[0])
    if not pairs:
        return
    factor = 100 if NUMBERS[name].percent else 1
    deviations = [factor * (spread.deviation or 0) for _, spread in pairs]
    places, means = [x for x, _ in pairs], [factor * spread.mean for _, spread in pairs]
    bars, name_shown = deviations if any(deviations) else None, label or NUMBERS[name].heading
    axes.errorbar(places, means, bars, color=colour, marker=mark, label=name_shown, **_ERRORBAR)
    if len(pairs[0][1].values) > 1:
        dots = [(x, factor * value) for x, spread in pairs for value in spread.values]
        axes.plot(*zip(*dots, strict=True), ".", color=colour, alpha=0.3, markersize=3, zorder=1)


def _metric_lines(axes: Axes, result: PanelResult, axis: Axis, name: str, split: str, colour: str, mark: str) -> None:
    lines = _lines(result)
    if len(lines) == 1:
        _errorbar(axes, result.points, axis, name, split, colour, mark)
        return
    marks = itertools.cycle("os^Dvp")
    for (text, points), line_colour in zip(lines.items(), _LINES, strict=False):
        _errorbar(axes, points, axis, name, split, line_colour, next(marks), text)


def _lines(result: PanelResult) -> dict[str, list[Point]]:
    """The points by the values of all fields but the first."""
    others = result.panel.fields()[1:]
    lines: dict[str, list[Point]] = {}
    for point in result.points:
        lines.setdefault(", ".join(show(point.values[field]) for field in others), []).append(point)
    return lines


def _scatter(axes: Axes, points: Sequence[Point], axis: Axis, name: str, split: str, colour: str) -> None:
    """Every point of a search; the best ones stand out."""
    factor = 100 if NUMBERS[name].percent else 1
    for best in (False, True):
        spreads = [(axis.position(p.values[axis.field]), _spread(p, name, split)) for p in points if p.is_best == best]
        pairs = [(x, factor * spread.mean) for x, spread in spreads if spread is not None]
        if pairs:
            loud: dict[str, Any] = {"s": 34, "edgecolor": _INK, "linewidth": 0.9, "zorder": 3}
            quiet: dict[str, Any] = {"s": 14, "alpha": 0.55, "linewidth": 0}
            axes.scatter(*zip(*pairs, strict=True), color=colour, **(loud if best else quiet))


def _spread(point: Point, name: str, split: str) -> Spread | None:
    spread = getattr(point, split).get(name)
    return spread if spread is not None and math.isfinite(spread.mean) else None


def _style(axes: Axes) -> None:
    axes.tick_params(labelsize=8, color=_SOFT)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _math(title: str) -> str:
    """The paper's symbols in a title."""
    for plain, field in (("τ_bg", "loss.foreground.threshold"), ("λ_fg", "loss.foreground.weight")):
        title = title.replace(plain, _SYMBOLS[field])
    return title
