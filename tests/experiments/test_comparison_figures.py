"""What the images of a comparison are drawn from."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from dapl.common.tables import mean_and_deviation
from dapl.data.build import build_splits
from dapl.data.transforms import fit
from dapl.experiments.comparison import plan
from dapl.experiments.comparison_figures import BACKGROUND, NO_PART, TITLES, draw_frontier, leading, look, set_apart
from dapl.explain.parts import facts_of
from dapl.runs.loading import load_run


def test_both_images_are_there(compared: Path) -> None:
    for name in ("frontier.png", "prototypes.png"):
        with Image.open(compared / name) as image:
            assert image.size[0] > 600


def test_labels_of_a_panel_against_loops(compared: Path, tmp_path: Path) -> None:
    """What most of the region lies on, of the parts of which it covers a fifth; else background where most of it is."""
    entries = plan([compared / "runs" / name for name in ("ours-seed0", "net-seed0")], tmp_path, [0], {})
    test = build_splits(entries[0].config.data).test
    seen = set()
    for entry, index in product(entries, range(len(test))):
        sample = fit(test[index], 64, "stretch")
        facts = facts_of(sample, test.parts)
        panel = look(entry, sample.image.as_subclass(Tensor), sample.label, facts)
        for region, label in zip(panel.regions, panel.labels, strict=True):
            covered = {
                name: int((region & part).sum())
                for name, part, visible in zip(test.parts, facts.parts, facts.visible, strict=True)
                if visible and float((region & part).sum() / part.sum()) > 0.2
            }
            if covered:
                assert covered[label] == max(covered.values())
            else:
                on_object = float((region & facts.mask).sum() / region.sum())
                assert label == (BACKGROUND if on_object < 0.5 else NO_PART)
            seen.add(label)
    assert BACKGROUND in seen
    assert len(seen) > 2


def test_only_prototypes_that_are_left_are_shown(compared: Path, tmp_path: Path) -> None:
    entry = plan([compared / "runs" / "share-seed0"], tmp_path, [0], {})[0]
    model = load_run(entry.runs[0].folder).model
    test = build_splits(entry.config.data).test
    for label in range(3):
        index = list(test.labels).index(label)
        sample = fit(test[index], 64, "stretch")
        panel = look(entry, sample.image.as_subclass(Tensor), label, facts_of(sample, test.parts))
        assert len(panel.labels) == int((model.prototypes.membership[:, label] & model.prototypes.kept).sum())


def test_names_of_near_points_do_not_cover_each_other() -> None:
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    for number in range(4):
        axes.annotate(
            f"a rather long name {number}", (0.4, 0.5 + 0.01 * number), xytext=(5, 5), textcoords="offset points"
        )
    set_apart(figure)
    boxes = [text.get_window_extent() for text in axes.texts]
    for first, second in combinations(boxes, 2):
        assert not first.overlaps(second)


@pytest.mark.filterwarnings("error")
def test_the_frontier_is_drawn_without_a_warning(tmp_path: Path) -> None:
    rows = [
        {"name": name, "system": system, **{key: mean_and_deviation([level]) for key in TITLES}}
        for name, system, level in (("box", "blackbox", 0.9), ("ours", "dapl", 0.8))
    ]
    chance = {"name": "chance: smooth noise in the mask", "system": "chance", "coverage": 0.97, "diversity": 0.74}
    assert draw_frontier([*rows, chance], tmp_path / "frontier.png") is not None
    assert draw_frontier(rows[:1], tmp_path / "one.png") is None


def test_leading_rows_against_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 4, (12, 2), generator=generator).tolist()
    rows = [{"a": mean_and_deviation([x]), "b": mean_and_deviation([y])} for x, y in values]
    expected = [
        i for i, (x, y) in enumerate(values) if not any(p >= x and q >= y and (p > x or q > y) for p, q in values)
    ]
    assert leading(rows, ("a", "b")) == expected
    assert 0 < len(expected) < len(values)
