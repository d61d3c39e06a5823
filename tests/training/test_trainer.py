"""A whole run: what it leaves behind, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import Config, dump_config, load_config
from dapl.data.build import build_splits
from dapl.data.toybirds import ToyBirds
from dapl.runs.checkpoint import load_checkpoint
from dapl.runs.loading import load_run
from dapl.runs.run import Run
from dapl.training import trainer
from dapl.training.trainer import train

from .conftest import UP_AND_DOWN, assert_same_run, lines_of, without_clock

SCHEDULE: list[dict[str, Any]] = [
    {"stage": "warm_up", "epochs": 2, "batch_size": 8, "augment": "flip"},
    {"stage": "joint", "epochs": 2, "batch_size": 8, "augment": "affine"},
    {"stage": "project"},
    {"stage": "last_layer", "epochs": 3},
    {"stage": "prune", "threshold": 0.2},
    {"stage": "last_layer", "epochs": 2},
]
WHOLE = {
    "model.backbone.name": "test_mambaout",  # attention over features that hardly vary gives flat maps
    "schedule": SCHEDULE,
    "loss.foreground.weight": 1.0,
    "runtime.checkpoint_steps": 1,
}


# --- a whole run ----------------------------------------------------------------------------------------------------


def test_a_whole_run(configured: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config, run = configured(WHOLE), Run(tmp_path / "run")
    path = tmp_path / "tiny.yaml"
    path.write_text(dump_config(config))
    assert main(["train", str(path), "--out", str(run.folder)]) == 0
    said = capsys.readouterr()
    assert str(run.sheet_file) in said.out
    assert "[6/6] last_layer" in said.err
    check_files(run, config)
    check_lines(lines_of(run))
    check_prototypes(run, config)
    check_best(run)


def check_files(run: Run, config: Config) -> None:
    assert run.config() == config
    assert dump_config(run.config()) == run.config_file.read_text()
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["seed"] == 0
    assert torch.__version__.startswith(environment["versions"]["torch"])  # the index has no +cpu in its versions
    data = json.loads(run.data_file.read_text())
    assert data["classes"] == list(build_splits(config.data).train.classes) == run.class_names()
    assert data["images"] == {"train": 15, "validation": 3, "test": 6}
    assert len(data["parts"]) >= 8
    with Image.open(run.sheet_file) as sheet:
        sheet.load()
        assert sheet.width > 200
    evaluation = json.loads(run.evaluation_file.read_text())
    assert "accuracy" in json.dumps(evaluation)
    for which in ("best", "last"):
        load_run(run.folder, which)  # type: ignore[arg-type]
    assert not [path for path in run.folder.rglob("*") if path.suffix in (".tmp", ".pkl", ".pt", ".pth", ".ckpt")]


def check_lines(lines: list[dict[str, Any]]) -> None:
    shape = [(line["event"], line["stage"], line["name"], line.get("epoch")) for line in lines]
    expected: list[tuple[str, int, str, int | None]] = []
    for number, stage in enumerate(SCHEDULE):
        expected += [("epoch", number, stage["stage"], epoch) for epoch in range(stage.get("epochs", 0))]
        expected.append(("stage", number, stage["stage"], None))
    assert shape == expected
    for line in lines:
        if line["event"] == "epoch":
            assert {"cross_entropy", "accuracy"} <= line["train"].keys()
            assert line["validation"].keys() == {"accuracy", "cross_entropy"}
            assert line["name"] == "last_layer" or {"cluster", "separation", "contrast", "foreground", "total"} <= set(
                line["train"]
            )
        else:
            assert line["seconds"] >= 0
    by_name = {line["name"]: line for line in lines if line["event"] == "stage"}
    assert by_name["project"]["ungrounded"] >= 0
    assert by_name["prune"]["removed"] >= 0
    for name in ("project", "prune"):
        assert by_name[name]["validation"].keys() == {"accuracy", "cross_entropy"}


def check_prototypes(run: Run, config: Config) -> None:
    """What prototypes.json says is true of the model that was saved."""
    loaded = load_run(run.folder)
    train_split = build_splits(config.data).train
    content = json.loads(run.prototypes_file.read_text())
    assert content["image_size"] == [64, 64]
    rows = content["prototypes"]
    assert len(rows) == 6
    assert any(row["box"] for row in rows)
    for j, row in enumerate(rows):
        assert row["index"] == j
        assert row["head"] == j % 2
        assert row["classes"] == [train_split.classes[j // 2]]
        assert row["kept"] == bool(loaded.model.prototypes.kept[j])
        assert (row["reason"] is None) == row["kept"]
        assert row["distance"] >= 0
        assert 0 <= row["region_foreground"] <= 1
        assert row["kept"] or row["region_foreground"] < 0.2
        assert row["grounded"] == (row["foreground_share"] > 0.5)
        if row["box"] is not None:  # a map that is flat on its own image has no region
            left, top, right, bottom = row["box"]
            assert 0 <= left < right <= 64
            assert 0 <= top < bottom <= 64
        sample = train_split[train_split.names.index(row["image"])]
        assert sample.label == j // 2
        with torch.no_grad():
            embedding = loaded.model.embed(loaded.model.backbone(sample.image.unsqueeze(0))).values
        patch = embedding[0, j % 2, :, row["location"][0], row["location"][1]]
        assert_close(loaded.model.prototypes.vectors[j], patch, rtol=0, atol=1e-5)


def check_best(run: Run) -> None:
    best = load_checkpoint(run.best)
    assert best.position.stage >= 4  # of the stages since the last change of prototypes
    assert best.optimizer == {}


def test_best_is_reset_when_prototypes_change_for_good(configured: Callable[..., Config], tmp_path: Path) -> None:
    """Before projection the accuracy may well be higher, but those prototypes are not patches of any image."""
    seen: dict[str, list[Any]] = {}
    save_best = trainer.Trainer._save_best

    def noted(self: trainer.Trainer, state: dict[str, torch.Tensor]) -> None:
        # as if nothing could ever be better than what was best before projection
        save_best(self, state)
        stage = self.config.schedule[self.position.stage].stage
        seen.setdefault(stage, []).append(self.best)
        if stage in ("warm_up", "joint"):
            self.best = [2.0, 0.0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "_save_best", noted)
        run = train(configured(WHOLE), tmp_path / "run", quiet=True)
    best = load_checkpoint(run.best)
    assert best.facts["best"][0] <= 1.0
    assert best.facts["prototypes"][0]["image"] is not None
    assert best.facts["prototypes"][0]["region_foreground"] is not None
    assert {"warm_up", "project", "prune"} <= seen.keys()


def test_the_best_epoch_is_kept_not_the_last(configured: Callable[..., Config], tmp_path: Path) -> None:
    run = train(configured(UP_AND_DOWN), tmp_path / "run", quiet=True)
    scores = [
        [line["validation"]["accuracy"], -line["validation"]["cross_entropy"]]
        for line in lines_of(run)
        if line["event"] == "epoch"
    ]
    assert 0 < scores.index(max(scores)) < 3, "choose another seed for this test"
    assert load_checkpoint(run.best).position.epoch == scores.index(max(scores))
    assert load_checkpoint(run.best).facts["best"] == max(scores)
    vectors = [load_checkpoint(path).model["prototypes.vectors"] for path in (run.best, run.last)]
    assert not torch.equal(*vectors)


def test_the_same_seed_gives_the_same_run(configured: Callable[..., Config], tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = train(configured(WHOLE), tmp_path / "first", quiet=True)
    torch.manual_seed(2)
    second = train(configured(WHOLE), tmp_path / "second", quiet=True)
    assert_same_run(second, first)
    other = train(configured(WHOLE | {"seed": 1}), tmp_path / "other", quiet=True)
    assert without_clock(lines_of(other)) != without_clock(lines_of(first))


def test_caches_do_not_change_a_run(configured: Callable[..., Config], tmp_path: Path) -> None:
    """To rounding: a batch of another cut is added up in another order, and half precision has 11 bits."""
    cached = train(configured(WHOLE), tmp_path / "cached", quiet=True)
    for name, fields in {
        "bare": {"cache.pixels": False, "cache.features": False},
        "half": {"cache.feature_type": "float16"},
    }.items():
        run = train(configured(WHOLE | fields), tmp_path / name, quiet=True)
        for one, other in zip(lines_of(run)[:2], lines_of(cached)[:2], strict=True):
            assert one["train"] == pytest.approx(other["train"], rel=1e-3), name
            assert one["validation"] == pytest.approx(other["validation"], rel=1e-3), name
        assert name != "half" or lines_of(run)[0]["train"] != lines_of(cached)[0]["train"], "nothing was rounded"


# --- what cannot be resumed or started ------------------------------------------------------------------------------


@pytest.fixture
def short(configured: Callable[..., Config], tmp_path: Path) -> Path:
    """The config of a run of one short stage."""
    path = tmp_path / "short.yaml"
    path.write_text(dump_config(configured({"schedule": [{"stage": "warm_up", "epochs": 1}]})))
    return path


@pytest.fixture
def run(short: Path, tmp_path: Path) -> Run:
    """Trained by it, in a folder that was there and empty."""
    (tmp_path / "run").mkdir()
    return train(load_config(short), tmp_path / "run", quiet=True)


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    capsys.readouterr()
    assert main(["train", *arguments]) == 2
    return capsys.readouterr().err


def test_an_existing_run_is_not_overwritten(short: Path, run: Run, capsys: pytest.CaptureFixture) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}

    before = content()
    said = refused(capsys, str(short), "--out", str(run.folder))
    assert f"{run.folder}: holds a run already; `dapl train --resume {run.folder}`" in said
    assert content() == before


def test_a_folder_of_something_else_is_not_taken(short: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("dear to me")
    assert "exists and is not a run" in refused(capsys, str(short), "--out", str(folder))
    assert "exists and is not a run" in refused(capsys, str(short), "--out", str(folder / "chapter.tex"))
    assert [path.name for path in folder.iterdir()] == ["chapter.tex"]


def test_what_is_not_a_run_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert f"{folder}: not a run directory" in refused(capsys, "--resume", str(folder))
    assert not (tmp_path / "nowhere").exists()


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(run: Run) -> None:
    before, lines = run.last.read_bytes(), lines_of(run)
    assert all(row["image"] is None and row["kept"] for row in run.read_prototypes())  # it was never projected
    assert main(["train", "--resume", str(run.folder)]) == 0
    assert run.last.read_bytes() == before
    assert lines_of(run) == lines


def test_only_where_and_how_it_runs_may_change(
    short: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = ["--resume", str(run.folder)]
    for field, value in (("model.head_dim", "8"), ("data.classes", "4"), ("seed", "1"), ("loss.cluster", "0")):
        said = refused(capsys, *resume, f"--{field}", value)
        assert f"--{field}: a resumed run takes only fields of runtime and cache" in said
    assert "leave CONFIG and --out out" in refused(capsys, str(short), *resume)
    assert "leave CONFIG and --out out" in refused(capsys, *resume, "--out", str(tmp_path / "other"))
    calls: list[tuple[Config, Path, bool]] = []
    monkeypatch.setattr("dapl.cli.train._run", lambda *arguments: calls.append(arguments) or 0)
    for words in (["--runtime.workers", "3"], ["--runtime.workers=3"], ["--devices", "3"]):
        for line in ([*resume, *words], [*words, *resume]):
            assert main(["train", *line]) == 0
            config, *rest = calls.pop()
            assert rest == [run.folder, True]
            assert 3 in (config.runtime.workers, config.runtime.devices)


def test_a_truncated_checkpoint_is_not_resumed(run: Run, capsys: pytest.CaptureFixture) -> None:
    run.last.write_bytes(run.last.read_bytes()[:1000])
    said = refused(capsys, "--resume", str(run.folder))
    assert f"{run.last}: not a whole checkpoint" in said
    assert run.last.stat().st_size == 1000


def test_the_foreground_loss_wants_masks(
    configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyBirds, "has_masks", False)
    with pytest.raises(DaplError, match=r"loss\.foreground\.weight: the data has no foreground masks"):
        train(configured({"loss.foreground.weight": 1.0}), tmp_path / "run", quiet=True)
