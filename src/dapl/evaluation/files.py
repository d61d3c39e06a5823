"""The files of an evaluation: metrics.json, tables by class and by part as CSV, and the plots.

The plots show which head looks at which part, Coverage against τ, the overlap of heads, and the share on background.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from dapl.common.files import json_text, remove, replacing
from dapl.common.reading import read_text
from dapl.evaluation.measurements import Measurements
from dapl.evaluation.measures import per_class, per_part
from dapl.evaluation.protocol import Place, Result, add_result, changed_fields
from dapl.evaluation.result import Evaluation

_WHOLE = ("images", "rows", "rows_with_parts", "best_head")
"""Columns that count things."""


def write_files(
    numbers: Path, folder: Path, result: Evaluation, measured: Measurements, before: Result | None = None
) -> Place:
    """``numbers`` as JSON, tables and plots in ``folder``, beside what is known already; says what became of them.

    ``before`` is what metrics.json holds; without it the result takes the place of whatever is there. Less never
    replaces more: the results of another protocol have tables and plots in a folder of their own below ``folder``.
    All of them are written before the first takes its place: where the disk is full, those of before are still whole.
    """
    known, place = add_result(before or {}, result.to_json())
    own = folder / _folder_name(result.protocol, known["protocol"]) if place == "beside" else folder
    tables = {"per_class.csv": csv_text("class", measured.classes, per_class(measured))}
    if measured.parts:
        tables["per_part.csv"] = csv_text("part", measured.parts, per_part(measured))
    with ExitStack() as stack:
        drawn = draw_all(own, result, measured, stack)
        for name, text in tables.items():
            text = with_columns_of(own / name, text) if place == "added" else text
            stack.enter_context(replacing(own / name)).write_text(text, encoding="utf-8")
        stack.enter_context(replacing(numbers)).write_text(json_text(known), encoding="utf-8")
    if place == "full":
        for stale in {*NAMES, "per_part.csv"} - set(drawn) - tables.keys():
            remove(own / stale)
    return place


def _folder_name(protocol: dict[str, Any], shown: dict[str, Any]) -> str:
    """Split and options that differ from those of the result that is shown, e.g. ``validation`` or ``test-tau-0.5``."""
    changed = changed_fields(protocol, shown)
    if changed.pop("split", None) is not None:
        changed.pop("images", None)  # another split has other images
    return "-".join([str(protocol["split"]), *(f"{name}-{value}" for name, value in changed.items())])


def with_columns_of(file: Path, text: str) -> str:
    """A new table with the columns that an older one has and it has not, row by row of the same name."""
    if not file.is_file():
        return text
    old, new = (list(csv.reader(io.StringIO(one))) for one in (read_text(file, "delete it"), text))
    if [row[0] for row in old] != [row[0] for row in new]:
        return text
    left = [number for number, name in enumerate(old[0]) if name not in new[0]]
    merged = io.StringIO()
    rows = zip(new, old, strict=True)
    csv.writer(merged, lineterminator="\n").writerows([*one, *(other[n] for n in left)] for one, other in rows)
    return merged.getvalue()


def csv_text(key: str, names: Sequence[str], columns: dict[str, list[float]]) -> str:
    """One line per name; a value that there is not is left empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([key, *columns])
    for row, name in enumerate(names):
        writer.writerow([name, *(_cell(column, values[row]) for column, values in columns.items())])
    return text.getvalue()


def _cell(column: str, value: float) -> str:
    if math.isnan(value):
        return ""
    return str(int(value)) if column in _WHOLE else f"{value:.6g}"


NAMES = ("parts_heads.png", "coverage_tau.png", "redundancy.png", "background_bias.png")

_BLUE, _ORANGE, _GREEN, _INK, _SOFT = "#1f5fa8", "#d1672b", "#3a8f5c", "#222222", "#8a8a8a"
_CELLS_WITH_TEXT = 400
"""More cells than this would be numbers too small to read."""


def draw_all(folder: Path, result: Evaluation, measured: Measurements, stack: ExitStack) -> list[str]:
    """Draw what there is data for; returns the names of the files, which take their places with the stack's end."""
    figures: dict[str, Figure] = {}
    rows = measured.scoped
    if measured.parts:
        figures["parts_heads.png"] = parts_heads(measured, result)
    if result.curves:
        figures["coverage_tau.png"] = coverage_tau(result)
    if "ious" in rows and not (overlap := measured.heads_overlap()).isnan().all():
        figures["redundancy.png"] = head_redundancy(overlap.numpy(), result)
    shares = {"map (B)": "bias", "region": "region_share"}
    found = {name: rows[column] for name, column in shares.items() if column in rows}
    found = {name: values for name, values in found.items() if not values.isnan().all()}
    if found:
        figures["background_bias.png"] = background(found, result)
    for name, figure in figures.items():
        figure.savefig(stack.enter_context(replacing(folder / name)), format="png", dpi=150)
    return list(figures)


def parts_heads(measured: Measurements, result: Evaluation) -> Figure:
    """K×M: how often the prototype of head m is on part k, where that is visible."""
    shares, parts = measured.heads_on_parts().numpy(), measured.parts
    heads = shares.shape[1]
    figure, axes = _figure(3.2 + 0.52 * heads, 1.9 + 0.34 * len(parts))
    _heat_map(figure, axes, shares, f"share of the {_rows(result)} that show the part")
    axes.set(xlabel="head (prototype of the class)", xticks=range(heads), yticks=range(len(parts)))
    axes.set_yticklabels([part.replace("_", " ") for part in parts])
    _title(axes, "Which head looks at which part", result, part=True)
    return figure


def coverage_tau(result: Evaluation) -> Figure:
    curves = result.curves
    tau = curves["tau"]
    figure, axes = _figure(6.4, 4.2)
    axes.fill_between(tau, curves["low"], curves["high"], color=_BLUE, alpha=0.18, linewidth=0)
    axes.plot(tau, curves["precision"], color=_ORANGE, linewidth=1.4, label="precision")
    axes.plot(tau, curves["recall"], color=_GREEN, linewidth=1.4, label="recall")
    axes.plot(tau, curves["coverage"], color=_BLUE, linewidth=2.4, label="Coverage, 95 % interval")
    _chance_curves(axes, result)
    used = result.protocol["tau"]
    axes.axvline(used, color=_SOFT, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"τ = {used:g}", (used, 1.0), xytext=(4, -4), textcoords="offset points", color=_SOFT, va="top", fontsize=9
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="τ: share of a part that a region must cover", ylabel="value")
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    _title(axes, "Coverage against the threshold τ", result, part=True)
    return figure


_CHANCE_STYLES = {
    "smooth noise in the mask": (0, (1, 1)),
    "random discs in the mask": (0, (3, 2)),
    "random discs in the image": (0, (6, 3)),
}
"""Rows of chance whose Coverage is drawn beside the model's, and their dashes."""


def _chance_curves(axes: Axes, result: Evaluation) -> None:
    curves = {} if result.chance is None else result.chance.curves
    for name, dashes in _CHANCE_STYLES.items():
        if name in curves:
            label = f"Coverage of {name}"
            axes.plot(curves["tau"], curves[name], color=_SOFT, linewidth=1.2, linestyle=dashes, label=label)


def head_redundancy(ious: np.ndarray, result: Evaluation) -> Figure:
    """M×M: the mean IoU of the regions of two heads; a head with itself is left blank."""
    heads = len(ious)
    figure, axes = _figure(2.4 + 0.52 * heads, 1.5 + 0.52 * heads)
    _heat_map(figure, axes, ious, f"mean IoU of the regions over {_rows(result)}", square=True)
    axes.set(xlabel="head", ylabel="head", xticks=range(heads), yticks=range(heads))
    mean = np.nanmean(ious)
    _title(axes, f"Do heads look at the same spot? Mean overlap {mean:.2f}", result)
    return figure


def background(shares: dict[str, Tensor], result: Evaluation) -> Figure:
    """Shares of background (n×M each) as histograms."""
    figure, axes = _figure(6.4, 4.2)
    edges = np.linspace(0, 1, 41).tolist()
    for name, values in shares.items():
        colour = _BLUE if name == "map (B)" else _ORANGE
        flat = values[~values.isnan()].numpy()
        weights = np.full(len(flat), 100 / len(flat))
        axes.hist(flat, edges, weights=weights, color=colour, alpha=0.28)
        axes.hist(
            flat,
            edges,
            weights=weights,
            color=colour,
            histtype="step",
            linewidth=1.5,
            label=f"{name}, mean {flat.mean():.2f}",
        )
        axes.axvline(flat.mean(), color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set(
        xlim=(0, 1),
        xlabel="share that lies on background (0: all on the object)",
        ylabel=f"% of ({_row(result)}, prototype) pairs",
    )
    axes.legend(frameon=False, fontsize=9, title="background share of the", title_fontsize=9)
    _title(axes, "How much of the prototypes' activation lies beside the object", result)
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.tick_params(labelsize=9, color=_SOFT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _heat_map(figure: Figure, axes: Axes, values: np.ndarray, label: str, square: bool = False) -> None:
    """Values in [0, 1] as colours and, where there is room, as numbers; NaN is grey."""
    axes.set_facecolor("#ececec")
    highest = max(0.2, np.ceil(10 * np.nanmax(values, initial=0)) / 10)
    aspect: Literal["equal", "auto"] = "equal" if square else "auto"
    image = axes.imshow(np.ma.masked_invalid(values), vmin=0, vmax=highest, cmap="YlGnBu", aspect=aspect)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xticks(np.arange(-0.5, values.shape[1]), minor=True)
    axes.set_yticks(np.arange(-0.5, values.shape[0]), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="both", length=0)
    if values.size <= _CELLS_WITH_TEXT:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                ink = "white" if value > 0.55 * highest else _INK
                axes.text(column, row, _two_digits(value), ha="center", va="center", fontsize=8, color=ink)
    bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02, ticks=np.linspace(0, highest, 5))
    bar.set_label(label, fontsize=9)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(labelsize=8, length=0)


def _two_digits(value: float) -> str:
    return "0" if value < 0.005 else f"{value:.2f}".removeprefix("0")


def _title(axes: Axes, text: str, result: Evaluation, part: bool = False) -> None:
    axes.set_title(f"{text}\n", fontsize=11.5, color=_INK, loc="left")
    axes.text(
        0, 1.015, _caption(result.protocol, part), transform=axes.transAxes, fontsize=8.5, color=_SOFT, va="bottom"
    )


def _caption(protocol: dict[str, Any], part: bool) -> str:
    where = f"{protocol['data']}, {protocol['split']}"
    seen = f"{where}, {protocol['images']:,} images"
    if protocol["scope"] == "projection":
        seen = f"{protocol['data']}, each prototype on its source image"
    return f"{seen}, parts {protocol['part_mode']}, τ {protocol['tau']:g}" if part else seen


def _rows(result: Evaluation) -> str:
    return "classes" if result.protocol["scope"] == "projection" else "images"


def _row(result: Evaluation) -> str:
    return "class" if result.protocol["scope"] == "projection" else "image"
