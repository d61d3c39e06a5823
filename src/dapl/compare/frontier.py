"""The frontier: accuracy, Coverage and Diversity of every system against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from dapl.files import replacing
from dapl.tables import Row

PANELS = (("accuracy", "coverage"), ("accuracy", "diversity"), ("coverage", "diversity"))
TITLES = {"accuracy": "accuracy", "coverage": "Coverage", "diversity": "Diversity"}

Side = tuple[int, int]
SIDES: tuple[Side, ...] = ((1, 1), (1, -1), (1, 3), (-1, 1), (-1, -1), (1, -3))
"""Where a name may stand beside its point, in steps of 5 points to the right and up; the first one is preferred."""


def draw(rows: Sequence[Row], file: Path) -> Path | None:
    """Three panels; None where fewer than two rows have all three numbers."""
    shown = [row for row in rows if all(row.get(name) is not None for name in TITLES)]
    if len(shown) < 2:
        return None
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (x, y) in zip(figure.subplots(1, 3), PANELS, strict=True):
        best = leading(shown, (x, y))
        for number, row in enumerate(shown):
            leads = number in best
            axes.errorbar(
                row[x].mean, row[y].mean, xerr=row[x].deviation, yerr=row[y].deviation, fmt="o", capsize=2,
                color="#1f5fa8" if leads else "#8a8a8a", markersize=7 if leads else 5, lw=1,
            )  # fmt: skip
            axes.annotate(row["name"], (row[x].mean, row[y].mean), textcoords="offset points", fontsize=8,
                          color="#222222" if leads else "#777777")  # fmt: skip
        line = sorted((shown[number][x].mean, shown[number][y].mean) for number in best)
        axes.step(*zip(*line, strict=True), where="pre", color="#1f5fa8", lw=0.8, alpha=0.5)
        base = next((row for row in rows if row["system"] == "blackbox"), None)
        if base is not None and x == "accuracy":
            axes.axvline(base["accuracy"].mean, color="#222222", lw=0.8, ls=":")
            axes.text(base["accuracy"].mean, axes.get_ylim()[0], " black box", fontsize=8, va="bottom")
        axes.set(xlabel=TITLES[x], ylabel=TITLES[y])
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(0.18)
    figure.suptitle("Blue: no other system is better on both axes", fontsize=10)
    set_apart(figure)
    with replacing(file) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return file


def set_apart(figure: Figure) -> None:
    """Puts the name of each point on that side of it where it covers points and the names before it least."""
    figure.draw_without_rendering()  # fixes the layout, and with it what a name covers
    figure.set_layout_engine("none")
    for axes in figure.axes:
        names = [text for text in axes.texts if isinstance(text, Annotation)]
        points = axes.transData.transform([name.xy for name in names])
        placed = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in points]
        for name in names:
            boxes = [_covered(name, side) for side in SIDES]
            overlaps = [sum(_overlap(box, other) for other in placed) for box in boxes]
            best = overlaps.index(min(overlaps))
            placed.append(_covered(name, SIDES[best]))


def _covered(name: Annotation, side: Side) -> Bbox:
    """What the name covers on that side, where it then stands; in pixels."""
    name.set_position((5 * side[0], 5 * side[1]))
    name.set(ha="left" if side[0] > 0 else "right", va="bottom" if side[1] > 0 else "top")
    return name.get_window_extent()


def _overlap(one: Bbox, other: Bbox) -> float:
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else both.width * both.height


def leading(rows: Sequence[Row], names: Sequence[str]) -> list[int]:
    """Rows that no other one beats on all of these numbers (as good on all and better on one)."""

    def beaten(mine: Row) -> bool:
        gaps = [[other[name].mean - mine[name].mean for name in names] for other in rows]
        return any(min(gap) >= 0 and max(gap) > 0 for gap in gaps)

    return [number for number, row in enumerate(rows) if not beaten(row)]
