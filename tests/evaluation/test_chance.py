"""Rows of chance: measured as a model would be, once for each data set and protocol, left out where data is silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dapl.batches.run_data import RunData
from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.data.sample import Sample, Splits
from dapl.data.toybirds import ToyBirds
from dapl.data.transforms import fit
from dapl.evaluation import Evaluation, EvaluationProtocol, evaluate
from dapl.evaluation import chance as module
from dapl.evaluation.chance import NO_SOURCES, chance, chance_of, prototypes_per_class, trivial_batches
from dapl.evaluation.ground_truth import SplitGroundTruth
from dapl.evaluation.result import Chance, chance_of_model, chance_table
from dapl.evaluation.trivial import TRIVIAL
from dapl.metrics.registry import METRICS, NUMBERS
from dapl.processes.interface import Processes

SIZE = 64


@pytest.fixture
def config(configured: Callable[..., Config]) -> Config:
    return configured({"data.classes": 2, "data.test_images_per_class": 2})


def slow_region(one: np.ndarray) -> np.ndarray:
    """The 5 % highest pixels of a map S×S; of those that tie at the border, the nearest to the peak, then the first."""
    region = np.zeros(SIZE**2, bool)
    values, highest = one.flatten().tolist(), float(one.max())
    slack = 1e-5 * highest
    if highest - min(values) > 1e-3 * highest:
        number = SIZE**2 - int(np.ceil(0.95 * (SIZE**2 - 1)))
        lowest = sorted(values)[-number]
        peak = next(place for place, value in enumerate(values) if value >= highest - slack)

        def distance(place: int) -> float:
            return (place // SIZE - peak // SIZE) ** 2 + (place % SIZE - peak % SIZE) ** 2

        sure = [place for place, value in enumerate(values) if value > lowest + slack]
        tied = [place for place, value in enumerate(values) if abs(value - lowest) <= slack]
        region[sure + sorted(tied, key=distance)[: number - len(sure)]] = True
    return region.reshape(SIZE, SIZE)


def slow_coverage(maps: np.ndarray, sample: Sample, tau: float) -> float:
    """Coverage of one image by the definition: maps N×S×S."""
    assert sample.part_masks is not None
    parts = [mask.numpy().astype(bool) for mask in sample.part_masks if mask.any()]
    regions = [slow_region(one) for one in maps]
    assigned = np.array([[region[part].mean() > tau for part in parts] for region in regions])
    precision, recall = assigned.any(1).mean(), assigned.any(0).mean()
    return 0.0 if precision + recall == 0 else 2 * precision * recall / (precision + recall)


def test_coverage_of_every_row_is_that_of_a_slow_loop_over_its_maps(
    config: Config, run_data_of: Callable[[Config], RunData]
):
    found = chance(config, prototypes=3, quiet=True)
    run_data = run_data_of(config)
    truth = SplitGroundTruth(run_data, "test", EvaluationProtocol())
    batch = next(trivial_batches(truth, torch.arange(4), 3))
    samples = [fit(run_data.dataset("test")[index], SIZE, config.data.fit) for index in range(4)]
    assert list(found.rows) == [one.name for one in TRIVIAL]
    for one in TRIVIAL:
        maps = one.maps(batch).expand(4, 3, SIZE, SIZE).numpy()
        expected = np.mean([slow_coverage(own, sample, 0.2) for own, sample in zip(maps, samples, strict=True)])
        assert found.rows[one.name]["coverage"] == pytest.approx(expected, abs=1e-6), one.name  # float32


def test_every_metric_that_needs_maps_and_annotations_at_most_is_measured(config: Config):
    found = chance(config, prototypes=2, quiet=True)
    annotated = {"maps", "parts", "points", "masks"}
    names = {one.name for one in METRICS if "maps" in one.needs and annotated.issuperset(one.needs)}
    assert {"coverage", "diversity", "consistency", "background_bias", "islands"} <= names
    assert names <= found.rows["oracle: discs on the keypoints"].keys() <= NUMBERS.keys()
    assert found.curves["tau"][found.curves["tau"].index(0.2)] == 0.2
    for row, numbers in found.rows.items():
        assert found.curves[row][found.curves["tau"].index(0.2)] == pytest.approx(numbers["coverage"])


def test_it_is_measured_once_for_data_protocol_and_number_of_prototypes(
    config: Config, monkeypatch: pytest.MonkeyPatch
):
    calls = []
    measure = module.measure_chance
    monkeypatch.setattr(module, "measure_chance", lambda *arguments: calls.append(arguments[2]) or measure(*arguments))
    first = chance(config, prototypes=2, quiet=True)
    assert chance(config, EvaluationProtocol(resamples=7), prototypes=2, quiet=True) == first
    assert calls == [2]
    assert chance(config, EvaluationProtocol(seed=1), prototypes=2, quiet=True) != first
    chance(config, prototypes=1, quiet=True)
    other = config.model_copy(update={"data": config.data.model_copy(update={"seed": 5})})
    chance(other, prototypes=2, quiet=True)
    assert calls == [2, 2, 1, 2]
    kept = next(Path(config.cache.folder).glob("*-chance.json"))
    kept.write_text("{")  # half a file is no reason to stop
    assert chance(config, prototypes=2, quiet=True) == first


def test_only_what_was_asked_for_is_measured_unless_all_is_known(
    config: Config, run_data: RunData, monkeypatch: pytest.MonkeyPatch
):
    calls = []
    measure = module.measure_chance
    monkeypatch.setattr(
        module, "measure_chance", lambda *arguments: calls.append(len(arguments[1])) or measure(*arguments)
    )
    ask = partial(chance_of, run_data, "test", EvaluationProtocol(tau=config.data.tau), 2)
    some = ask(frozenset({"coverage", "accuracy"}))
    assert some.numbers() == ["coverage", "precision", "recall"]
    assert ask(frozenset({"coverage"})) == some
    assert calls == [1]
    everything = chance(config, prototypes=2, quiet=True)
    assert ask(frozenset({"coverage"})) == everything
    assert {row: numbers["coverage"] for row, numbers in everything.rows.items()} == {
        row: numbers["coverage"] for row, numbers in some.rows.items()
    }
    assert len(calls) == 2


class Bare(ToyBirds):
    """Drawn birds of which less is known."""

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        return Sample(sample.image, sample.label, sample.name)


def test_rows_that_the_data_does_not_allow_are_left_out_with_the_reason(
    config: Config, processes: Processes, monkeypatch: pytest.MonkeyPatch
):
    class NoMasks(ToyBirds):
        def __getitem__(self, index: int) -> Sample:
            sample = super().__getitem__(index)
            known = (sample.keypoints, sample.visible, sample.part_masks)
            return Sample(sample.image, sample.label, sample.name, None, *known)

    def found(kind: type[ToyBirds], **without: object) -> Chance:
        birds = kind(classes=2, images_per_class=2, size=SIZE, split="test")
        for name, value in without.items():
            setattr(birds, name, value)
        birds.fingerprint = f"{kind.__name__}, {without}"
        run_data = RunData(config, processes, Reporter(quiet=True), Splits(birds, birds, birds))
        return chance_of(run_data, "test", EvaluationProtocol(), 2)

    without_masks = found(NoMasks, has_masks=False)
    assert set(without_masks.missing) == {one.name for one in TRIVIAL if "masks" in one.needs}
    assert set(without_masks.missing.values()) == {"the data has no foreground masks"}
    assert "coverage" in without_masks.rows["a fixed grid of discs"]
    assert "region_background_share" not in without_masks.rows["a fixed grid of discs"]
    text = chance_table(without_masks)
    assert text.endswith("smooth noise in the mask: the data has no foreground masks")
    bare = found(Bare, has_masks=False, parts=())
    assert bare.rows == {}
    assert chance_table(bare).endswith("not measured: the data has neither parts nor foreground masks")


def test_scope_projection_has_no_chance_rows(config: Config):
    found = chance(config, EvaluationProtocol(scope="projection"), quiet=True)
    assert set(found.missing.values()) == {NO_SOURCES}


def test_an_evaluation_has_the_rows_of_as_many_prototypes_as_the_model(evaluated: tuple[Path, Evaluation]):
    folder, result = evaluated
    assert result.chance is not None
    assert result.chance.prototypes == 4
    written = json.loads((folder / "metrics.json").read_text())["chance"]
    assert Chance(**written) == result.chance
    lines = chance_of_model(result).splitlines()
    assert lines[0] == "what chance gets on these images (4 prototypes per class, no model)"
    own = next(line for line in lines if line.startswith("this model"))
    assert f"{result['coverage']:.3f}" in own.split()


def test_only_what_was_asked_for_is_shown_and_nothing_where_no_map_is_measured(run: Path):
    some = evaluate(run, metrics="coverage", quiet=True, files=False)
    assert "Diversity" not in chance_of_model(some)
    assert evaluate(run, metrics="accuracy", quiet=True, files=False).chance is None
    assert evaluate(run, metrics="coverage", quiet=True, files=False, chance=False).chance is None


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = ["--data.classes", "2", "--data.test_images_per_class", "1", "--data.image_size", "64"]
    cache = ["--cache.folder", str(tmp_path / "cache")]
    file = tmp_path / "chance.json"
    assert main(["chance", "toybirds", *small, *cache, "--prototypes", "3", "--json", str(file), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "what chance gets on these images (3 prototypes per class, no model)" in printed
    assert str(file) in printed
    written = json.loads(file.read_text())
    assert written["prototypes"] == 3
    assert written["rows"].keys() == {one.name for one in TRIVIAL}
    assert written["data"]["name"] == "toybirds"


def test_what_is_wrong_is_said(tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(DaplError, match="prototypes: 0 per class is none"):
        chance(config, prototypes=0, quiet=True)
    assert main(["chance", "nowhere"]) == 2
    assert "nowhere: no such file or folder" in capsys.readouterr().err
    assert main(["chance", "toybirds", "--model.heads", "3"]) == 2
    assert "takes only fields of data and cache" in capsys.readouterr().err


def test_a_class_has_as_many_prototypes_as_the_mean_says():
    assert prototypes_per_class(torch.zeros(3, 4, dtype=torch.bool)) == 1
    assert prototypes_per_class(torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 0]]).bool()) == 1
