"""The plots of an evaluation.

They show which head looks at which part, Coverage against τ, the overlap of heads, and the share on background. A plot
says in its file what it was drawn from, and is drawn anew only where that has changed: matplotlib may take longer to
load and to draw than an evaluation to measure.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image, PngImagePlugin
from torch import Tensor

from dapl.batches.features import digest_of
from dapl.common.errors import DaplError
from dapl.common.files import replacing
from dapl.common.reading import read_bytes
from dapl.evaluation.measurements import Measurements
from dapl.evaluation.protocol import code_digest
from dapl.evaluation.result import Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREEN, _INK, _SOFT = "#1f5fa8", "#d1672b", "#3a8f5c", "#222222", "#8a8a8a"
_DPI = 150
_CELLS_WITH_TEXT = 400
"""More cells than this would be numbers too small to read."""


def draw_all(folder: Path, result: Evaluation, measured: Measurements, stack: ExitStack) -> list[str]:
    """Draw what there is data for and has changed; returns the names of all plots that there are data for.

    The new files take their places with the stack's end.
    """
    plots: dict[str, tuple[Mapping[str, Tensor], Callable[[], Figure]]] = {}
    rows = measured.scoped
    if measured.parts:
        shares = measured.heads_on_parts()
        plots["parts_heads.png"] = {"shares": shares}, lambda: parts_heads(shares.numpy(), measured.parts, result)
    if result.curves:
        plots["coverage_tau.png"] = {}, lambda: coverage_tau(result)
    if "ious" in rows and not (overlap := measured.heads_overlap()).isnan().all():
        plots["redundancy.png"] = {"overlap": overlap}, lambda: head_redundancy(overlap.numpy(), result)
    columns = {"map (B)": "bias", "region": "region_share"}
    found = {name: rows[column] for name, column in columns.items() if column in rows}
    found = {name: values for name, values in found.items() if not values.isnan().all()}
    if found:
        plots["background_bias.png"] = found, lambda: background(found, result)
    curves = {} if result.chance is None else result.chance.curves
    said = json.dumps([code_digest(), result.protocol, measured.parts, result.curves, curves], default=str)
    for name, (shown, draw) in plots.items():
        # Four decimals are more than anyone sees; the last bits may differ from one pass to the next.
        origin = digest_of({column: values.mul(1e4).round() for column, values in shown.items()}, said)
        if origin_of(folder / name) != origin:
            save(draw(), stack.enter_context(replacing(folder / name)), origin)
    return list(plots)


_ORIGIN = "drawn from"


def origin_of(file: Path) -> str | None:
    """What `save` was told that a plot was drawn from; None where there is no whole plot."""
    try:
        content = read_bytes(file, "delete it, and it is drawn anew")
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            origin = image.info.get(_ORIGIN)
            image.verify()
        return origin
    # Pillow calls a broken PNG any of these.
    except (DaplError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def save(figure: Figure, file: Path, origin: str = "") -> None:
    """As PNG: what ``figure.savefig`` writes, which draws everything twice. ``origin``: kept in the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    facts = PngImagePlugin.PngInfo()
    facts.add_text(_ORIGIN, origin)
    Image.fromarray(np.asarray(canvas.buffer_rgba())).save(file, format="PNG", dpi=(_DPI, _DPI), pnginfo=facts)


def parts_heads(shares: np.ndarray, parts: Sequence[str], result: Evaluation) -> Figure:
    """K×M: how often the prototype of head m is on part k, where that is visible."""
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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
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
                text = axes.text(column, row, _two_digits(value), ha="center", va="center", fontsize=8, color=ink)
                text.set_in_layout(False)  # it lies inside, where nothing has to make room for it
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
