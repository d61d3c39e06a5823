"""The figures of a comparison.

The frontier shows accuracy, Coverage and Diversity of all systems against each other; side by side stand the prototypes
of one class on the same image, for each system, coloured by the part they lie on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.common.files import replacing
from dapl.common.tables import Row
from dapl.data.build import build_splits
from dapl.data.sample import Sample, class_index
from dapl.data.transforms import fit
from dapl.experiments.comparison import CHANCE, ComparedSystem
from dapl.explain.parts import ImageFacts, facts_of, foreground_shares, name_parts, squares_of
from dapl.metrics.functional.regions import shown_regions
from dapl.runs.loading import load_run

PANELS = (("accuracy", "coverage"), ("accuracy", "diversity"), ("coverage", "diversity"))
TITLES = {"accuracy": "accuracy", "coverage": "Coverage", "diversity": "Diversity"}

Side = tuple[int, int]
SIDES: tuple[Side, ...] = ((1, 1), (1, -1), (1, 3), (-1, 1), (-1, -1), (1, -3))
"""Where a name may stand beside its point, in steps of 5 points to the right and up; the first one is preferred."""


def draw_frontier(rows: Sequence[Row], file: Path) -> Path | None:
    """Three panels; None where fewer than two rows have all three numbers. Chance has lines, or hollow points."""
    shown = [row for row in rows if all(row.get(name) is not None for name in TITLES)]
    if len(shown) < 2:
        return None
    figure = new_figure(14, 4.8)
    for axes, (x, y) in zip(figure.subplots(1, 3), PANELS, strict=True):
        best = leading(shown, (x, y))
        for number, row in enumerate(shown):
            point, spread = (row[x].mean, row[y].mean), (row[x].deviation, row[y].deviation)
            colour, ink, size = ("#1f5fa8", "#222222", 7) if number in best else ("#8a8a8a", "#777777", 5)
            axes.errorbar(*point, *spread[::-1], fmt="o", capsize=2, color=colour, markersize=size, lw=1)
            axes.annotate(row["name"], point, (5, 5), textcoords="offset points", fontsize=8, color=ink)
        line = sorted((shown[number][x].mean, shown[number][y].mean) for number in best)
        axes.step(*zip(*line, strict=True), where="pre", color="#1f5fa8", lw=0.8, alpha=0.5)
        base = next((row for row in rows if row["system"] == "blackbox"), None)
        if base is not None and x == "accuracy":
            axes.axvline(base["accuracy"].mean, color="#222222", lw=0.8, ls=":")
            axes.text(base["accuracy"].mean, axes.get_ylim()[0], " black box", fontsize=8, va="bottom")
        _show_chance(axes, rows, x, y)
        axes.set(xlabel=TITLES[x], ylabel=TITLES[y])
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(0.18)
    hollow = "; hollow and dotted: trivial maps, no model" if any(row["system"] == CHANCE for row in rows) else ""
    figure.suptitle(f"Blue: no other system is better on both axes{hollow}", fontsize=10)
    set_apart(figure)
    return save_figure(figure, file)


LINES = ("smooth noise in the mask", "random discs in the image")
"""Rows of chance that have a line where the other axis is accuracy, of which they have none."""


def _show_chance(axes, rows: Sequence[Row], x: str, y: str) -> None:
    for row in rows:
        if row["system"] != CHANCE or row.get(y) is None:
            continue
        name = row["name"].removeprefix(f"{CHANCE}: ")
        if row.get(x) is not None:
            axes.plot(row[x], row[y], "o", mfc="none", color="#b5651d", markersize=5)
            axes.annotate(name, (row[x], row[y]), (5, 5), textcoords="offset points", fontsize=7, color="#b5651d")
        elif name in LINES:
            axes.axhline(row[y], color="#b5651d", lw=0.8, ls=":")
            place = axes.get_yaxis_transform()  # x as a share of the panel
            axes.text(0.02, row[y], name, transform=place, fontsize=7, color="#b5651d", va="bottom")


def new_figure(width: float, height: float) -> Figure:
    """In inches, and without the windows of pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, file: Path, dpi: int = 150) -> Path:
    with replacing(file) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
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


BACKGROUND = "background"
NO_PART = "object, no part"
_TILE = 2.3


@dataclass(frozen=True)
class SystemView:
    """One system on the image: M prototypes of the class."""

    name: str
    predicted: str
    regions: Tensor
    """bool M×S×S."""
    labels: list[str]
    """The part that each region lies on, or `BACKGROUND`, or `NO_PART`."""

    def summary(self) -> str:
        parts = len(set(self.labels) - {BACKGROUND, NO_PART})
        return f"{parts} parts, {self.labels.count(BACKGROUND)} of {len(self.labels)} on background"


def choose(systems: Sequence[ComparedSystem], class_name: str | None, image: int) -> tuple[Sample, Sequence[str], str]:
    """(test image as the systems see it, names of its parts, its class); said before anything is trained."""
    data = systems[0].config.data
    test = build_splits(data).test
    label = 0 if class_name is None else class_index(list(test.classes), class_name)
    own = [index for index, one in enumerate(test.labels) if one == label]
    if not 0 <= image < len(own):
        raise DaplError(f"--image {image}: {test.classes[label]} has test images 0 … {len(own) - 1}.")
    return fit(test[own[image]], data.image_size, data.fit), test.parts, str(test.classes[label])


def draw_side_by_side(
    systems: Sequence[ComparedSystem], file: Path, sample: Sample, parts: Sequence[str], class_name: str
) -> Path | None:
    """The figure of the first seed of each system that has prototypes; None where there is none."""
    systems = [system for system in systems if system.config.model.system != "blackbox"]
    if not systems:
        return None
    facts = facts_of(sample, parts)
    image = sample.image.as_subclass(Tensor)
    views = [look(system, image, sample.label, facts) for system in systems]
    return save_figure(figure_of(views, image, class_name), file)


@torch.inference_mode()
def look(system: ComparedSystem, image: Tensor, label: int, facts: ImageFacts) -> SystemView:
    """image: uint8 3×S×S."""
    loaded = load_run(system.runs[0].folder, config=system.config)
    model = loaded.model
    output = model(image.unsqueeze(0))
    named, counts = model.prototypes_of(torch.tensor([label]))
    own = named[0][counts[0]]
    squares = squares_of(model, output.embedding, 0, own)
    regions = shown_regions(model, model.maps(output.embedding, own)[0], image.shape[-1], squares)
    shares = foreground_shares(regions, facts)
    labels = [
        part or (BACKGROUND if share is not None and share < 0.5 else NO_PART)
        for part, share in zip(name_parts(regions, facts), shares, strict=True)
    ]
    return SystemView(system.name, loaded.classes[int(output.logits.argmax())], regions, labels)


def figure_of(views: Sequence[SystemView], image: Tensor, class_name: str) -> Figure:
    """One row per system: all its regions on the image at the left, then each prototype by itself."""
    columns = 1 + max(len(view.labels) for view in views)
    figure = new_figure(_TILE * 0.62 * (columns + 0.75), _TILE * len(views) + 1.1)
    grid = figure.add_gridspec(len(views), columns, width_ratios=[1.75, *([1] * (columns - 1))])
    colours = part_colours(views)
    pixels = image.permute(1, 2, 0).numpy()
    for row, view in enumerate(views):
        axes = figure.add_subplot(grid[row, 0])
        _show(axes, pixels)
        for region, label in zip(view.regions, view.labels, strict=True):
            _outline(axes, region, colours[label], label == BACKGROUND)
        axes.set_title(view.name, fontsize=11, fontweight="bold", loc="left")
        axes.set_xlabel(f"{view.summary()}\npredicts {_short(view.predicted)}", fontsize=8, loc="left")
        for column, (region, label) in enumerate(zip(view.regions, view.labels, strict=True), 1):
            axes = figure.add_subplot(grid[row, column])
            shade = np.where(region.numpy()[..., None], 1.0, 0.45)
            _show(axes, (pixels * shade).astype(np.uint8))
            _outline(axes, region, colours[label], label == BACKGROUND)
            axes.set_xlabel(label, fontsize=7, color=colours[label] if label != BACKGROUND else "#c00000")
    handles = [
        Line2D([], [], color=colour, lw=3, ls="--" if label == BACKGROUND else "-", label=label)
        for label, colour in colours.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 9), fontsize=8, frameon=False)
    figure.suptitle(f"The prototypes of {_short(class_name)} on one test image", fontsize=12)
    return figure


def part_colours(views: Sequence[SystemView]) -> dict[str, str]:
    """One colour per part, the same for every system; background is red, the object without a part white-grey."""
    present = {label for view in views for label in view.labels}
    named = sorted(present - {BACKGROUND, NO_PART})
    wheel = matplotlib.colormaps["hsv"](np.linspace(0.08, 0.92, max(len(named), 1)))
    colours = {label: matplotlib.colors.to_hex(colour) for label, colour in zip(named, wheel, strict=False)}
    return colours | {label: ink for label, ink in ((NO_PART, "#9a9a9a"), (BACKGROUND, "#e00000")) if label in present}


def _show(axes, pixels: np.ndarray) -> None:
    axes.imshow(pixels)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _outline(axes, region: Tensor, colour: str, background: bool) -> None:
    if not region.any():  # a flat map has no region
        return
    values = np.pad(region.float().numpy(), 1)[1:-1, 1:-1]
    axes.contour(values, levels=[0.5], colors=["black"], linewidths=2.6, alpha=0.5)
    axes.contour(values, levels=[0.5], colors=[colour], linewidths=1.6, linestyles="--" if background else "-")


def _short(name: str) -> str:
    """A class of CUB without its number and underscores."""
    return name.split(".", 1)[-1].replace("_", " ") if name[:1].isdigit() else name
