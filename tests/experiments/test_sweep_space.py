"""Fields, values, intervals and objectives are checked before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dapl.common.errors import DaplError
from dapl.experiments.sweep_space import (
    ABLATIONS,
    KNOWN,
    Base,
    Choices,
    Interval,
    SweepObjective,
    make_panel,
    metrics_for,
    numbers_for,
    panels_of,
    parse_grid,
    parse_objectives,
    parse_search,
    run_name,
    value_of,
)
from dapl.metrics.registry import chosen


def grid(text: str, base: Base) -> Choices:
    (found,) = make_panel("p", "", base, [parse_grid(text)]).dimensions
    assert isinstance(found, Choices)
    return found


def search(text: str, base: Base) -> Interval:
    (found,) = make_panel("p", "", base, search=[parse_search(text)]).dimensions
    assert isinstance(found, Interval)
    return found


@pytest.fixture
def base(write: Callable[..., Path]) -> Base:
    return Base.read(write(), {})


def test_values_are_those_that_the_config_reads(base: Base) -> None:
    assert grid("loss.contrast.weight=0, 1e-3,0.5,0.50", base) == Choices("loss.contrast.weight", (0.0, 0.001, 0.5))
    assert grid("model.backbone.stages=[-1],[-2,-1]", base).values == ([-1], [-2, -1])
    assert grid("loss.contrast.positives=class,all", base).values == ("class", "all")
    assert grid("schedule.0.epochs=1,2", base).values == (1, 2)


def test_an_interval_is_of_whole_numbers_where_the_field_is(base: Base) -> None:
    whole = search("model.head_dim=log:4:64", base)
    assert whole == Interval("model.head_dim", 4, 64, True)
    assert isinstance(whole.low, int)
    real = search("loss.foreground.weight=uniform:0:20", base)
    assert (real.low, real.high, real.log) == (0.0, 20.0, False)
    assert isinstance(real.low, float)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (grid, "loss.contrast.wieght=1", "unknown field 'loss.contrast.wieght'; did you mean 'weight'?"),
        (grid, "lose.contrast.weight=1", "unknown field 'lose'; did you mean 'loss'?"),
        (grid, "loss.contrast.weight=0.1,big", "field 'loss.contrast.weight': input should be a valid number"),
        (grid, "model.head_dim=8,8.5", "field 'model.head_dim': input should be a valid integer"),
        (grid, "loss.foreground.threshold=0.5,2", "less than or equal to 1 (got 2)"),
        (grid, "schedule.7.epochs=1", "'7' is no item of the list"),
        (grid, "loss.contrast.weight", "has to be FIELD=VALUE,VALUE"),
        (grid, "loss.contrast.weight=[1", "is not a list of values"),
        (grid, "seed=0,1", "--seeds"),
        (search, "loss.contrast.weight=lag:0.1:1", "'lag' is not known; did you mean 'log'?"),
        (search, "loss.contrast.weight=log:0.1", "needs two ends"),
        (search, "loss.contrast.weight=log:0:1", "needs 0 < LOW < HIGH"),
        (search, "loss.contrast.weight=uniform:2:1", "needs LOW < HIGH"),
        (search, "loss.contrast.positives=log:1:2", "loss.contrast.positives"),
    ],
)
def test_what_is_wrong_is_named(base: Base, parse: Callable[..., Any], text: str, said: str) -> None:
    with pytest.raises(DaplError, match=re.escape(said)):
        parse(text, base)


def test_the_file_may_be_edited_while_the_sweep_goes_on(base: Base) -> None:
    Path(base.source).write_text("model: {head_dim: 99}")
    assert base.config().model.head_dim == 4  # type: ignore[union-attr]


def test_a_base_may_be_laid_over_another(base: Base, tmp_path: Path) -> None:
    file = tmp_path / "over.yaml"
    file.write_text(f"base: {base.source}\nmodel: {{heads: 3}}")
    model = Base.read(file, {}).config().model
    assert (model.heads, model.head_dim) == (3, 4)  # type: ignore[union-attr]


def test_points_are_all_combinations(base: Base) -> None:
    panel = make_panel("p", "", base, [parse_grid("model.head_dim=8,4"), parse_grid("loss.cluster=0,1")])
    found = [(point["model.head_dim"], point["loss.cluster"]) for point in panel.points()]
    assert found == [(8, 0.0), (8, 1.0), (4, 0.0), (4, 1.0)]


def test_a_field_is_given_once(base: Base) -> None:
    width = parse_grid("model.head_dim=8")
    for again in ({"grid": [width, width]}, {"grid": [width], "search": [parse_search("model.head_dim=log:1:8")]}):
        with pytest.raises(DaplError, match="given twice"):
            make_panel("p", "", base, **again)
    with pytest.raises(DaplError, match="nothing is varied"):
        make_panel("p", "", base)
    flagged = Base.read(Path(base.source), {"model.head_dim": 16})
    with pytest.raises(DaplError, match=r"--model\.head_dim: the sweep itself sets"):
        make_panel("p", "", flagged, [width])


def test_runs_that_are_equal_have_one_name(base: Base) -> None:
    config = base.config()
    weight = value_of(config, "loss.contrast.weight")
    assert run_name({"model.head_dim": 4, "loss.contrast.weight": weight}, config, 1) == "base,seed=1"
    one = run_name({"loss.cluster": 0.5, "model.head_dim": 8}, config, 0)
    assert one == run_name({"model.head_dim": 8, "loss.cluster": 0.5}, config, 0)
    assert one == "loss.cluster=0.5,model.head_dim=8,seed=0"
    assert run_name({"model.backbone.stages": [-2, -1]}, config, 0) == "model.backbone.stages=[-2,-1],seed=0"


def test_names_that_cannot_be_folders_stay_apart(base: Base) -> None:
    config = base.config()
    names = [run_name({"model.backbone.weights": text}, config, 0) for text in ("a/b", "a b", "a_b", "x" * 300)]
    assert len(set(names)) == 4
    assert all("/" not in name and " " not in name and len(name) < 200 for name in names)


def test_the_paper_s_ablations(base: Base) -> None:
    panels = {panel.name: panel for panel in panels_of("paper", base)}
    assert tuple(panels) == ABLATIONS[:-2]
    assert panels["head_dim"].dimensions == (Choices("model.head_dim", (8, 16, 32)),)
    assert panels["fg_weight"].fixed == {"loss.foreground.threshold": 0.3}
    assert panels["fg_threshold"].fixed == {"loss.foreground.weight": 20.0}
    weights, thresholds = (panels[name].dimensions[0] for name in ("fg_weight", "fg_threshold"))
    assert isinstance(weights, Choices)
    assert isinstance(thresholds, Choices)
    assert (weights.values[0], weights.values[-1]) == (0.5, 25.0)
    assert {0.01, 0.1, 0.2, 0.25} <= set(thresholds.values)
    config = base.config()
    shared = run_name({**panels["fg_weight"].fixed, "loss.foreground.weight": 20.0}, config, 0)
    assert shared == run_name({**panels["fg_threshold"].fixed, "loss.foreground.threshold": 0.3}, config, 0)
    for name in ABLATIONS[:-2]:
        assert panels_of(name, base) == [panels[name]]


def test_parts_is_taken_apart(base: Base, tmp_path: Path) -> None:
    """Every weight of the config that is not 0 is turned off once; the config itself is one run for all panels."""
    file = Path(__file__).parents[2] / "configs" / "cub20" / "parts.yaml"
    ours = Base.read(file, {"loss.locate.balance": 0})
    panels = {panel.name: panel for panel in panels_of("parts", ours)}
    weights = ours.config().loss.locate.model_dump().items()
    named = {f"without_{name}" for name, value in weights if isinstance(value, float) and value}
    assert set(panels) == named | {"heads", "head_dim", "evidence"}
    trained = Base.read(file, {"loss.locate.balance": 0, "schedule": [{"stage": "warm_up", "epochs": 1}]})
    more = {panel.name for panel in panels_of("parts", trained)} - set(panels)
    assert more == {"without_cluster", "without_head_dropout"}  # these layers in closed form do not ask for
    config = ours.config()
    for name, panel in panels.items():
        (dimension,) = panel.dimensions
        assert isinstance(dimension, Choices)
        if name.startswith("without_"):
            assert dimension.values == (0.0, value_of(config, dimension.field))
            assert run_name({dimension.field: dimension.values[1]}, config, 0) == "base,seed=0"
    assert panels["heads"].dimensions == (Choices("model.heads", (5, 10, 15)),)
    assert panels["head_dim"].dimensions == (Choices("model.head_dim", (16, 32, 64)),)
    assert panels["evidence"].dimensions == (Choices("model.evidence", ("crop", "map")),)
    with pytest.raises(DaplError, match=r"--ablation parts: takes the system parts apart, and .* is of dapl; give"):
        panels_of("parts", base)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no sweep"),
        ("one: 3", "one: a sweep is a mapping"),
        ("one: {gird: {model.head_dim: [1]}}", "unknown key 'gird'; did you mean 'grid'?"),
        ("one: {grid: [1]}", "'grid' is a mapping of fields"),
        ("one: {grid: {model.head_dim: 8}}", "model.head_dim: a grid needs a list"),
        ("one: {grid: {model.head_dims: [8]}}", "did you mean 'head_dim'?"),
        ("one: {title: none}", "one: nothing is varied"),
    ],
)
def test_a_bad_file_of_sweeps(base: Base, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(DaplError) as error:
        panels_of(str(file), base)
    assert said in str(error.value)
    assert str(file) in str(error.value)


def test_an_unknown_ablation(base: Base) -> None:
    with pytest.raises(DaplError, match="'contrat' is not known; did you mean 'contrast'"):
        panels_of("contrat", base)


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[2] / "configs" / "sweeps").glob("*.yaml")), ids=str)
def test_files_of_sweeps_that_we_ship(file: Path, base: Base) -> None:
    panels = panels_of(str(file), base)
    assert [panel.name for panel in panels] == list(yaml.safe_load(file.read_text()))


# --- objectives -----------------------------------------------------------------------------------------------------


def test_directions() -> None:
    found = parse_objectives(["accuracy,Redundancy", "background-bias", "coverage:min"])
    assert [(o.name, o.maximise) for o in found] == [
        ("accuracy", True),
        ("redundancy", False),
        ("background_bias", False),
        ("coverage", False),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["acuracy"], "'acuracy' is not known; did you mean 'accuracy'"),
        (["coverage:up"], "the direction is min or max"),
        (["coverage", "coverage:min"], "given twice"),
        (["object_overlap"], "neither more nor less"),
        (["prototypes"], "not known"),
    ],
)
def test_bad_objectives(words: list[str], said: str) -> None:
    with pytest.raises(DaplError, match=said):
        parse_objectives(words)


@pytest.mark.parametrize("name", KNOWN)
def test_every_objective_is_measured_and_shown(name: str) -> None:
    objective = SweepObjective(name, True)
    assert {"accuracy", "coverage", "diversity", "background_bias"} <= chosen(metrics_for([objective]))
    assert name in numbers_for([objective])


def test_metrics_that_take_passes_of_their_own_are_left_out_unless_asked_for() -> None:
    assert "faithfulness" not in metrics_for(parse_objectives(["accuracy"]))
    assert "faithfulness" in metrics_for(parse_objectives(["faithfulness"]))
