"""`dapl interventions`: the numbers, files and refusals of a run, and any other model from Python."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.data.sample import Subset
from dapl.data.toybirds import ToyBirds
from dapl.evaluation.interventions import interventions, run_interventions
from dapl.evaluation.interventions.result import COLUMNS, HEADINGS
from dapl.models.build import SYSTEMS
from dapl.runs.run import Run


@pytest.fixture
def copy_of(trained: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda system: Path(shutil.copytree(trained(system), tmp_path / system))


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_every_system_can_be_measured(system, trained):
    pytest.importorskip("captum")
    found = run_interventions(trained(system), images=2, quiet=True, files=False)
    own = "gradcam" if system == "blackbox" else "own"
    assert list(found.explanations) == [own, "drops", "shuffled", "even", "oracle"]
    for numbers in found.explanations.values():
        assert all(0 <= number.value <= 1 for number in numbers.values() if number.value == number.value)
    assert found.explanations["oracle"]["completeness"].value == 1
    assert found.protocol["system"] == system


def test_the_command_writes_numbers_and_drawings(copy_of, capsys):
    run = Run.open(copy_of("dapl"))
    assert main(["interventions", str(run.folder), "--images", "2", "--attribution", "own,own_map"]) == 0
    shown = capsys.readouterr().out
    for word in ("own_map", "shuffled (chance)", "oracle", "Com", "Con = TS", "(BI)", str(run.interventions_file)):
        assert word in shown
    written = json.loads(run.interventions_file.read_text())
    assert written["protocol"]["attributions"] == ["own", "own_map"]
    assert written["protocol"]["images"] == 2
    assert set(written["explanations"]) == {"own", "own_map", "drops", "shuffled", "even", "oracle"}
    value = written["explanations"]["own"]["preservation"]  # the only scores that every image has are PC and DC
    assert value["low"] <= value["value"] <= value["high"]
    for name in ("scores.png", "bird.png"):
        with Image.open(run.interventions_folder / name) as drawing:
            assert min(drawing.size) > 300


def test_data_that_is_not_drawn_is_refused_in_one_sentence(copy_of, capsys):
    folder = copy_of("dapl")
    config = Run.open(folder).config_file
    text = config.read_text()
    start, end = text.index("data:\n"), text.index("model:\n")
    config.write_text(f"{text[:start]}data:\n  name: folder\n  root: /nowhere\n{text[end:]}")
    assert main(["interventions", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "was trained on folder; interventions need drawn birds (data.name: toybirds)" in said
    assert not Run.open(folder).interventions_file.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "1"], "--images: is 1; give at least 2"),
        (["--attribution", "gradcamm"], "--attribution: 'gradcamm' is not known; did you mean 'gradcam'?"),
        (["--split", "dev"], "split"),
    ],
)
def test_bad_options_are_refused(options, message, dapl_run, capsys):
    assert main(["interventions", str(dapl_run), *options]) == 2
    assert message in capsys.readouterr().err


BIRDS = ToyBirds(classes=3, images_per_class=2, size=48, split="test")


def belly_colour(images: torch.Tensor) -> torch.Tensor:
    return images[:, :, 16:32, 16:32].double().mean((2, 3))


def test_any_model_and_any_attribution_from_python():
    def middle(images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        maps = torch.zeros(len(images), 48, 48)
        maps[:, 16:32, 16:32] = 1
        return maps

    found = interventions(belly_colour, Subset(BIRDS, [4, 1]), {"middle": middle}, images=None, quiet=True)
    assert found.protocol["images"] == 2
    assert found["middle", "contrastivity"] != found["middle", "contrastivity"] or found["middle", "contrastivity"] == 0
    assert "2 images" in repr(found)
    rows = found.rows()
    assert [row["explanation"].split()[0] for row in rows] == ["middle", "drops", "shuffled", "even", "oracle"]
    assert {column.name for column in COLUMNS} == {"explanation", *HEADINGS} == set(rows[0])


def test_the_same_seed_gives_the_same_numbers():
    def noise(images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return images.float().std(1) * (1 + classes.view(-1, 1, 1))

    first, second, other = (
        interventions(belly_colour, BIRDS, {"noise": noise}, images=3, resamples=20, seed=seed, quiet=True)
        for seed in (0, 0, 1)
    )
    assert json.dumps(first.to_json()) == json.dumps(second.to_json()) != json.dumps(other.to_json())


def test_what_does_not_fit_is_refused(tiny_cub):
    from dapl.data.cub import read_cub

    def small(images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(images), 7, 7)

    with pytest.raises(DaplError, match="attribution 'small': gave maps of 4×7×7; it must be 4×48×48"):
        interventions(belly_colour, BIRDS, {"small": small}, images=2, quiet=True)
    with pytest.raises(DaplError, match="attributions: none is given"):
        interventions(belly_colour, BIRDS, {}, quiet=True)
    with pytest.raises(DaplError, match="interventions need drawn birds"):
        interventions(belly_colour, read_cub(tiny_cub).dataset("test"), {"small": small}, quiet=True)
    with pytest.raises(DaplError, match="images: is 1"):
        interventions(belly_colour, BIRDS, {"small": small}, images=1, quiet=True)
