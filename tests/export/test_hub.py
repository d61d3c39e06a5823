"""An exported folder predicts and explains as the run did, elsewhere, without the data; a spoiled one is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image

import dapl
from dapl.common.errors import DaplError
from dapl.data.toybirds import ToyBirds
from dapl.explain.patches import Patch, PatchSource
from dapl.export.export import export_config, export_run, images_of_test
from dapl.export.folder import LARGEST, decoded, take_images
from dapl.export.hub import ExportedModel, load_exported
from dapl.models.build import SYSTEMS
from dapl.runs.loading import load_run
from dapl.runs.outlines import main_bounds
from dapl.runs.run import Run
from dapl.runs.schemas import PrototypeRecord


@torch.no_grad()
def test_it_is_the_model_of_the_run(run: Path, exported: Path) -> None:
    loaded, found = load_run(run), load_exported(exported)
    images = images_of_test(loaded.config, 2)
    assert torch.equal(found.model(images).logits, loaded.model(images).logits)
    assert not found.model.training
    assert found.classes == loaded.classes
    assert found.records == loaded.records
    assert found.config.data.image_size == loaded.config.data.image_size
    assert found.config == export_config(loaded)
    assert found.config.model == loaded.config.model
    assert found.config.mean == pytest.approx(torch.as_tensor(loaded.model.backbone.mean).flatten().tolist())
    assert found.metrics == json.loads(Run(run).evaluation_file.read_text())


def test_every_projected_prototype_has_an_image(run: Path, exported: Path) -> None:
    loaded, found = load_run(run), load_exported(exported)
    assert set(found.images) == {record.index for record in loaded.records if record.image is not None}
    for record in found.records:
        patch = found.patches.patch(record)
        assert patch is not None
        if record.box is None:  # a map that is flat on its own image has no region
            assert patch.outline is None
            continue
        assert patch.outline is not None
        assert patch.close_up() is patch  # it was cut out already
    here, there = (dapl.load(folder).known for folder in (run, exported))
    assert [here.described(j) for j in range(len(here.records))] == [
        there.described(j) for j in range(len(there.records))
    ], "names and flags travel with it"


ELSEWHERE = """
import json, sys
import dapl
from pathlib import Path
for folder in sorted(Path(sys.argv[1]).iterdir()):
    model = dapl.load(folder)
    said = {"system": folder.name, "class": model.predict(sys.argv[2]).class_name}
    if len(model.model.prototypes):
        why = model.explain(sys.argv[2])
        why.save(f"{folder.name}.html")
        shown = why.classes[0]
        said |= {"logit": shown.logit, "total": shown.total, "problem": model.patches.problem,
                 "patches": [model.patches.patch(row.record) is not None for row in shown.rows]}
    print(json.dumps(said))
"""


def test_another_process_without_the_data(
    evaluated: Callable[[str], Path], export_of: Callable[[str, str], Path], image: Path, tmp_path: Path
) -> None:
    """No run, no cache, no home: the folders alone. One process for all systems."""
    for system in SYSTEMS:
        shutil.copytree(export_of(system, "hub"), tmp_path / "there" / system)
    home = {"HOME": str(tmp_path / "nobody"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "there"), str(image)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = {answer["system"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert answers.keys() == SYSTEMS.keys()
    for system, said in answers.items():
        here = dapl.load(evaluated(system))
        assert said["class"] == here.predict(image).class_name
        if len(here.model.prototypes):
            shown = here.explain(image).classes[0]
            assert said["total"] == pytest.approx(said["logit"], abs=1e-4)
            assert said["logit"] == pytest.approx(shown.logit, abs=1e-4)
            assert said["patches"] == [True] * len(shown.rows)
            assert said["problem"] is None
            assert (tmp_path / f"{system}.html").stat().st_size > 5000


def test_from_pretrained_predicts_and_explains(own_export: Path, image: Path) -> None:
    model = ExportedModel.from_pretrained(own_export)
    assert model.predict(image) == dapl.load(own_export).predict(image)
    why = model.explain(image, top=2)
    assert len(why.classes[0].rows) == 2
    assert repr(model) == f"ExportedModel(dapl on test_mambaout, 3 classes, {len(model.records)} prototypes)"


def test_saving_what_was_loaded_gives_the_same_files(own_export: Path, tmp_path: Path) -> None:
    again = load_exported(own_export).save_pretrained(tmp_path / "again")
    for name in ("model.safetensors", "config.json", "prototypes.json", "metrics.json"):
        assert (again / name).read_bytes() == (own_export / name).read_bytes(), name
    first, second = (
        {path.name: path.read_bytes() for path in (folder / "prototypes").iterdir()} for folder in (own_export, again)
    )
    assert first
    assert first == second


def test_weights_are_plain_safetensors(own_export: Path, evaluated: Callable[[str], Path]) -> None:
    state = safetensors.torch.load_file(own_export / "model.safetensors")
    assert state.keys() == load_run(evaluated("dapl")).model.state_dict().keys()
    assert (own_export / "model.safetensors").stat().st_mode & 0o044 == 0o044  # others may read it


def test_the_card(system: str, run: Path, exported: Path) -> None:
    card = ModelCard.load(exported / "README.md")
    measured = json.loads(Run(run).evaluation_file.read_text())["numbers"]
    assert card.data.library_name == "dapl"
    assert system in card.data.tags
    assert f"classes: {system} on" not in card.text  # every system has a name that a person reads
    assert {result.metric_type: result.metric_value for result in card.data.eval_results or []} == {
        name: measured[name]["value"]
        for name in ("accuracy", "balanced_accuracy", "ece", "coverage", "diversity", "background_bias", "consistency")
        if name in measured
    }
    assert f"{measured['accuracy']['value']:.1%}" in card.text
    assert ("model.explain" in card.text) == (system != "blackbox")
    assert ("prototypes.png" in card.text) == (exported / "prototypes.png").exists() == (system != "blackbox")
    assert "model.onnx" not in card.text
    for line in card.text.splitlines():
        if line.startswith("!["):
            assert (exported / line.split("(")[1].rstrip(")")).is_file()


def test_names_of_classes_are_no_html_on_the_card(own_export: Path) -> None:
    found = load_exported(own_export)
    classes = ["<script>alert(1)</script>", "`<b>two`\n# Title", "*three*"]
    card = replace(found, config=found.config.model_copy(update={"classes": classes})).card()
    assert (
        "Classes: <code>&#60;script&#62;alert(1)&#60;&#47;script&#62;</code>, <code>&#96;&#60;b&#62;two&#96; &#35;"
        in card
    )
    assert "<code>&#42;three&#42;</code>." in card
    assert "<script" not in card
    assert "<b>" not in card


def test_the_card_of_a_run_that_was_not_measured(own_run: Path) -> None:
    Run(own_run).evaluation_file.unlink()
    Run(own_run).sheet_file.unlink(missing_ok=True)
    folder = export_run(own_run, formats=["hub"], quiet=True).folder
    assert folder == own_run / "export"
    card = ModelCard.load(folder / "README.md")
    assert "Nothing was measured" in card.text
    assert "model.onnx" not in card.text
    assert "model-index" not in yaml.safe_load(card.content.split("---")[1])
    assert not (folder / "metrics.json").exists()
    assert Image.open(folder / "prototypes.png").size[0] > 100


def test_no_path_of_the_machine_leaks(own_run: Path, tmp_path: Path) -> None:
    config = load_run(own_run).config
    backbone = config.model.backbone.model_copy(update={"weights": str(tmp_path / "mine.safetensors")})
    config = config.model_copy(update={"model": config.model.model_copy(update={"backbone": backbone})})
    folder = export_run(own_run, formats=["hub"], config=config, quiet=True).folder
    for path in folder.rglob("*"):
        if path.is_file():
            assert str(tmp_path.parent).encode() not in path.read_bytes(), path
            assert str(Path.home()).encode() + b"/" not in path.read_bytes(), path


def test_normalisation_is_that_of_the_export(own_export: Path) -> None:
    """Not that of whatever version of timm is installed."""
    spoil(own_export, "config.json", {"mean": [0.1, 0.2, 0.3]})
    assert load_exported(own_export).model.backbone.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_without_the_training_images(own_run: Path) -> None:
    """The model still goes out, and says how many prototypes have no image."""
    loaded = load_run(own_run)
    strange = loaded.config.data.model_copy(update={"seed": 99, "classes": 2, "images_per_class": 2})
    config = loaded.config.model_copy(update={"data": strange})
    done = export_run(own_run, formats=["hub"], config=config, quiet=True)
    there = load_exported(done.folder)
    assert done.without_images == len(loaded.records) - len(there.images) > 0


def spoil(folder: Path, name: str, change: dict) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | change))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", {"format": 7}, r"config.json: export format 7, this version reads 1"),
        ("config.json", {"library_name": "timm"}, r"config.json: does not describe a model of dapl"),
        ("config.json", {"classes": []}, r"config.json: classes: "),
        ("config.json", {"classes": ["a", "b"]}, r"model.safetensors: a checkpoint of another model"),
        ("config.json", {"mean": [1, 2]}, r"config.json: mean: "),
        ("config.json", {"model": {"system": "nothing"}}, r"config.json: model: "),
        ("prototypes.json", {"prototypes": [{"index": 0}]}, r"prototypes.json: prototypes.0"),
        ("prototypes.json", {"patches": [{"index": -1}]}, r"prototypes.json: patches.0.index"),
        ("prototypes.json", {"patches": [{"index": "../../x"}]}, r"prototypes.json: patches.0.index"),
    ],
)
def test_a_spoiled_file_is_named(own_export: Path, name: str, change: dict, message: str) -> None:
    spoil(own_export, name, change)
    with pytest.raises(DaplError, match=message):
        dapl.load(own_export)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "prototypes.json"])
@pytest.mark.parametrize("how", ["missing", "cut", "empty", "folder"])
def test_a_missing_or_cut_file_is_named(own_export: Path, name: str, how: str) -> None:
    path = own_export / name
    content = path.read_bytes()
    path.unlink()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "folder":
        path.mkdir()
    with pytest.raises(DaplError, match=name):
        load_exported(own_export)


def test_records_must_be_those_of_the_model(own_export: Path) -> None:
    records = json.loads((own_export / "prototypes.json").read_text())["prototypes"]
    spoil(own_export, "prototypes.json", {"prototypes": records[:-1]})
    with pytest.raises(DaplError, match="does not list the 9 prototypes"):
        load_exported(own_export)


def test_a_broken_image_costs_only_itself(own_export: Path, image: Path) -> None:
    first = sorted((own_export / "prototypes").iterdir())[0]
    first.write_bytes(b"\x89PNG not an image")
    model = dapl.load(own_export)
    why = model.explain(image, against=0)
    why.save(image.with_suffix(".html"))
    assert "prototype 0 is no JPEG" in (model.patches.problem or "")


def test_an_image_is_a_jpeg_of_a_sane_size(own_export: Path) -> None:
    first = sorted((own_export / "prototypes").iterdir())[0]
    Image.new("RGB", (3000, 2)).save(first, format="JPEG")
    found = load_exported(own_export)
    assert found.patches.patch(found.records[0]) is None
    first.write_bytes(b"\xff\xd8" + bytes(2 << 20))
    assert 0 not in load_exported(own_export).images


def test_an_unknown_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DaplError, match="no such folder"):
        load_exported(tmp_path / "nothing")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DaplError, match=r"nobody/nothing: no such folder, and the hub did not give it"):
        ExportedModel.from_pretrained("nobody/nothing")


def test_an_earlier_export_is_replaced_and_nothing_else(own_export: Path, own_run: Path) -> None:
    (own_export / "prototypes" / "00099.jpg").write_bytes(b"stale")
    (own_export / "model.onnx").write_bytes(b"stale")
    export_run(own_run, own_export, ["hub"], quiet=True)
    assert not (own_export / "prototypes" / "00099.jpg").exists()
    assert not (own_export / "model.onnx").exists()  # it was not asked for, and may be of another model
    (own_export / "thesis.tex").write_text("mine")
    before = sorted(own_export.rglob("*"))
    with pytest.raises(DaplError, match=r"holds thesis\.tex, which no export does"):
        export_run(own_run, own_export, ["hub"], quiet=True)
    assert sorted(own_export.rglob("*")) == before


def test_a_failed_export_leaves_the_earlier_one(
    own_export: Path, own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in own_export.rglob("*") if path.is_file()}

    def fail(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr("dapl.export.hub.ModelCard", fail)
    with pytest.raises(DaplError, match="disk full"):
        export_run(own_run, own_export, ["hub"], quiet=True)
    assert {path: path.read_bytes() for path in own_export.rglob("*") if path.is_file()} == before
    assert [path.name for path in own_export.parent.iterdir() if path.name.endswith(".tmp")] == []


class Birds(PatchSource):
    """Patches from drawn birds of 224 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.birds = ToyBirds(classes=4, images_per_class=1, size=224)

    def patch(self, record: PrototypeRecord) -> Patch:
        place = 40 * record.index
        outline = f"M{place} 40L{place + 90} 40 {place + 90} 190 {place} 190Z"
        return Patch(torch.as_tensor(self.birds[record.index].image), (place, 40, place + 90, 190), outline)


def test_two_thousand_images_stay_below_30_mb() -> None:
    images = take_images([PrototypeRecord(j, ["bird"], 0) for j in range(4)], Birds())
    assert len(images) == 4
    assert 2000 / 4 * sum(len(image.jpeg) for image in images.values()) < 30e6
    for j, image in images.items():
        height, width = decoded(image.jpeg, j).shape[1:]
        left, top, right, bottom = main_bounds(image.outline or "")
        assert max(height, width) <= LARGEST
        assert (right - left) / (bottom - top) == pytest.approx(90 / 150, rel=0.05)  # still the same shape
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
