"""The frontier: accuracy, Coverage and Diversity of every system against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dapl.files import replacing
from dapl.tables import Row

PANELS = (("accuracy", "coverage"), ("accuracy", "diversity"), ("coverage", "diversity"))
TITLES = {"accuracy": "accuracy", "coverage": "Coverage", "diversity": "Diversity"}


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
            axes.annotate(row["name"], (row[x].mean, row[y].mean), xytext=(5, 5), textcoords="offset points",
                          fontsize=8, color="#222222" if leads else "#777777")  # fmt: skip
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
    with replacing(file) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return file


def leading(rows: Sequence[Row], names: Sequence[str]) -> list[int]:
    """Rows that no other one beats on all of these numbers (as good on all and better on one)."""

    def beaten(mine: Row) -> bool:
        gaps = [[other[name].mean - mine[name].mean for name in names] for other in rows]
        return any(min(gap) >= 0 and max(gap) > 0 for gap in gaps)

    return [number for number, row in enumerate(rows) if not beaten(row)]
