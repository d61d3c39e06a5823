"""The figure shows the numbers of the table, on an axis that suits the values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from PIL import Image

from dapl.common.tables import mean_and_deviation
from dapl.experiments.sweep_figure import Axis, draw_results, one_sweep, side_by_side, taken_apart
from dapl.experiments.sweep_results import PanelResult, Point
from dapl.experiments.sweep_space import Choices, Dimension, Interval, Panel, Values


def point(values: Values, level: float, best: bool = False) -> Point:
    numbers = {name: mean_and_deviation([level, level + 0.1]) for name in ("accuracy", "coverage", "diversity")}
    return Point(values, numbers, {}, (), best)


def result(*dimensions: Dimension, name: str = "p") -> PanelResult:
    panel = Panel(name, "Title", dimensions, {})
    points = tuple(point(values, 0.1 * number) for number, values in enumerate(panel.points()))
    return PanelResult(panel, points, (), len(points), len(points), 0)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((8, 16, 32), "linear"),
        ((0.01, 0.5, 5.0), "log"),
        ((0.0, 0.01, 5.0), "symlog"),
        ((0.0,), "linear"),
        (("class", "all"), "category"),
        (([-1], [-2, -1]), "category"),
        ((True, False), "category"),
        ((-2, -1), "category"),
    ],
)
def test_the_axis_suits_the_values(values: tuple, scale: str) -> None:
    assert Axis.of(result(Choices("a", values)), "a").scale == scale


def test_intervals_have_the_scale_that_they_were_searched_on() -> None:
    panel = Panel("p", "", (Interval("a", 1.0, 2.0, True), Interval("b", 1, 500, False)), {})
    found = PanelResult(panel, (point({"a": 1.5, "b": 7}, 0.5, True),), (), 1, 1, 0)
    assert [Axis.of(found, field).scale for field in ("a", "b")] == ["log", "linear"]
    assert len(one_sweep(found, "", "validation").axes) == 6


def test_three_panels_show_mean_and_deviation() -> None:
    figure = one_sweep(result(Choices("loss.contrast.weight", (0.01, 0.5, 5.0))), "caption", "validation")
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy (%)", "Coverage", "Diversity"]
    for axes, factor in zip(figure.axes, (100, 1, 1), strict=True):
        (bars,) = [container for container in axes.containers if isinstance(container, ErrorbarContainer)]
        line, _, (deviations,) = bars.lines
        assert np.allclose(line.get_xdata(), [0.01, 0.5, 5.0])
        assert np.allclose(line.get_ydata(), factor * np.array([0.05, 0.15, 0.25]))
        lengths = [np.ptp(segment[:, 1]) / 2 for segment in deviations.get_segments()]
        assert np.allclose(lengths, factor * 0.1 / 2**0.5)
        assert axes.get_xscale() == "log"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0.01", "0.5", "5"]


def test_a_second_field_is_a_line_each() -> None:
    figure = one_sweep(result(Choices("a", (1, 2)), Choices("b", ("x", "y", "z"))), "", "validation")
    bars = [container for container in figure.axes[0].containers if isinstance(container, ErrorbarContainer)]
    assert [container.get_label() for container in bars] == ["x", "y", "z"]
    assert np.allclose(bars[1].lines[0].get_ydata(), [15.0, 45.0])


def test_labels_that_would_run_into_each_other_are_left_out() -> None:
    figure = one_sweep(result(Choices("a", (1, 2, 3, 50, 90))), "", "validation")
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["1", "", "", "50", "90"]


def test_taken_apart_a_row_is_a_change(tmp_path: Path) -> None:
    whole, bare = (point({"loss.cluster": value}, level) for value, level in ((0.4, 0.5), (0.0, 0.3)))
    whole, bare = replace(whole, runs=("base",)), replace(bare, runs=("off",))
    term = PanelResult(
        Panel("without_cluster", "cluster", (Choices("loss.cluster", (0.0, 0.4)),), {}), (bare, whole), (), 2, 2, 0
    )
    heads = (replace(point({"model.heads": n}, 0.1 * n), runs=("base" if n == 5 else str(n),)) for n in (3, 5))
    number = PanelResult(Panel("heads", "", (Choices("model.heads", (3, 5)),), {}), tuple(heads), (), 2, 2, 0)
    figure = taken_apart([term, number], "caption", "validation")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "as it is",
        "without cluster",
        "$N$ = 3",
    ]
    assert [axes.get_xlabel() for axes in figure.axes] == ["accuracy (%)", "Coverage", "Diversity"]
    for axes, factor in zip(figure.axes, (100, 1, 1), strict=True):
        places = [container.lines[0].get_xdata()[0] for container in axes.containers]
        assert np.allclose(places, factor * np.array([0.55, 0.35, 0.35]))
    assert [path.name for path in draw_results(tmp_path, [term, number], "caption")] == ["sweep.png"]


def test_side_by_side_a_column_is_a_sweep() -> None:
    sweeps = [result(Choices("a", (1, 2, 3)), name=name) for name in ("x", "y", "z")]
    figure = side_by_side(sweeps, "caption", "validation")
    assert len(figure.axes) == 6
    assert figure.axes[0].get_ylim() == figure.axes[2].get_ylim()


def test_files(tmp_path: Path) -> None:
    names = ("contrast", "fg_weight", "fg_threshold", "head_dim")
    files = draw_results(tmp_path, [result(Choices("a", (1, 2)), name=name) for name in names], "caption")
    assert [file.name for file in files] == ["sweep.png", *(f"{name}.png" for name in names)]
    assert Image.open(files[0]).info["dpi"][0] == pytest.approx(300, abs=1)
    assert draw_results(tmp_path, [result(Choices("a", (1, 2)))], "caption", "test") == []
