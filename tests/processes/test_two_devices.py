"""Two processes on the CPU against one: the same losses step by step, the same projection and the same pruning.

That they measure the same is in `tests/evaluation/test_evaluate.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.testing import assert_close

from dapl.cli import main
from dapl.config import Config, dump_config
from dapl.runs.checkpoint import load_checkpoint
from dapl.runs.run import Run
from dapl.training.trainer import train

from ..conftest import TINY_RUN, TINY_SYSTEMS

pytestmark = pytest.mark.slow

# 24 images, of which 21 are trained on: an odd number, so that the shares of two processes are never the same.
# Where nothing is learned two images are read at a time: one process and two read each image in the same company.
# In another company its maps differ in the last bits, and a pixel at the edge of a region may change sides.
DATA = {"data.images_per_class": 8, "data.test_images_per_class": 3, "runtime.evaluation_batch": 2}
# ImageNet weights: through random ones hardly a gradient comes back, and Adam makes the same of it whatever its size.
# Its last stage but one: no parameter may wait for a gradient that never comes, so what is behind it must be cut off.
BACKBONE = {"model.backbone": {"name": "tf_efficientnet_lite0", "stages": [-2], "weights": "package"}}
LOSS = {"loss.foreground.weight": 1.0, "loss.spatial.weight": 0.5}
FIRST: list[dict[str, Any]] = [
    {"stage": "warm_up", "epochs": 2, "batch_size": 21, "augment": "flip"},
    {"stage": "warm_up", "epochs": 2, "batch_size": 10},  # 10 + 10 + 1: a process is left without an image
    {"stage": "joint", "epochs": 3, "batch_size": 21, "augment": "affine"},
]
THEN: list[dict[str, Any]] = [
    {"stage": "project"},
    {"stage": "last_layer", "epochs": 5},
    {"stage": "prune", "threshold": 0.4},
    {"stage": "last_layer", "epochs": 5},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two devices")


@pytest.fixture
def first_stages(configured: Callable[..., Config], folder: Path, forked_processes: None) -> Callable[[int], Run]:
    """``first_stages(devices)``: trained in so many processes, with caches of its own; made once for all tests."""

    def run(devices: int) -> Run:
        out = folder / f"{devices}"
        if not out.exists():
            own = {"cache.folder": str(folder / f"cache {devices}"), "runtime.devices": devices, "schedule": FIRST}
            train(configured(DATA | BACKBONE | LOSS | own), out, quiet=True)
        return Run(out)

    return run


def epochs_of(run: Run) -> list[dict[str, Any]]:
    return [entry for entry in run.logged() if entry["event"] == "epoch"]


def test_losses_are_the_same_step_by_step(first_stages: Callable[[int], Run]) -> None:
    one, two = (epochs_of(first_stages(devices)) for devices in (1, 2))
    assert len(one) == 7
    for alone, together in zip(one, two, strict=True):
        assert {"foreground", "spatial", "contrast"} < alone["train"].keys()
        # Adam's first change of a weight has one size whatever the gradient, so rounding can turn one that is near 0
        changed = alone["name"] == "joint" and alone["epoch"] > 0
        expected = pytest.approx(alone["train"], rel=1e-3 if changed else 1e-5)
        assert together["train"] == expected, f"stage {alone['stage']}, epoch {alone['epoch']}"
    assert one[0]["train"]["total"] != pytest.approx(one[-1]["train"]["total"], rel=0.01), "nothing was learned"


def test_the_same_weights_give_the_same_projection_and_pruning(
    first_stages: Callable[[int], Run], folder: Path
) -> None:
    ends = []
    for devices in (1, 2):
        run = Run(folder / f"same weights {devices}")
        shutil.copytree(first_stages(1).folder, run.folder)
        config = run.config({"schedule": FIRST + THEN, "runtime.devices": devices})
        ends.append(train(config, run.folder, resume=True, quiet=True))
    one, two = ends
    compare_prototypes(one, two)
    compare_weights(one, two)
    stages = ([entry for entry in run.logged() if entry["event"] == "stage"][3:] for run in ends)
    for alone, together in zip(*stages, strict=True):
        assert alone["name"] == together["name"]
        assert alone.get("removed") == together.get("removed")
        assert alone.get("ungrounded") == together.get("ungrounded")


@pytest.mark.usefixtures("forked_processes")
def test_parts_learn_in_two_processes(configured: Callable[..., Config], folder: Path) -> None:
    """Prototypes that follow their sources have no gradient that a process could wait for.

    Without dropout and balance, which are of a process's share of the batch, a step is the step of one process.
    """
    fields = TINY_RUN | TINY_SYSTEMS["parts"] | {"model.system": "parts", "model.head_dropout": 0.0}
    fields |= {"loss.locate.balance": 0.0, "loss.locate.foreground_from": "features"}
    one, two = (
        train(configured(fields | {"runtime.devices": devices}), folder / f"parts {devices}", quiet=True)
        for devices in (1, 2)
    )
    for alone, together in zip(epochs_of(one), epochs_of(two), strict=True):
        assert together["train"] == pytest.approx(alone["train"], rel=1e-3), alone["name"]
    assert [line["image"] for line in one.read_prototypes()] == [line["image"] for line in two.read_prototypes()]


def compare_prototypes(one: Run, two: Run) -> None:
    removed = 0
    for alone, together in zip(one.read_prototypes(), two.read_prototypes(), strict=True):
        for name in ("index", "classes", "head", "image", "location", "box", "grounded", "kept", "reason"):
            assert alone[name] == together[name], f"prototype {alone['index']}: {name}"
        for name in ("distance", "foreground_share", "region_foreground"):
            assert alone[name] == pytest.approx(together[name], rel=1e-4, abs=1e-6), name
        assert alone["image"] is not None
        removed += not alone["kept"]
    assert removed, "nothing was pruned: choose another threshold for this test"


def compare_weights(one: Run, two: Run) -> None:
    for name in ("best", "last"):
        alone, together = (load_checkpoint(getattr(run, name)) for run in (one, two))
        for key, tensor in alone.model.items():
            assert_close(together.model[key], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


def test_a_mistake_is_one_sentence_in_several_processes_too(
    configured: Callable[..., Config], tiny_cub: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    image = next((tiny_cub / "images").glob("*/*_0000_*.jpg"))
    image.write_bytes(image.read_bytes()[:400])
    path = tmp_path / "cub.yaml"
    path.write_text(dump_config(configured({"data": {"name": "cub", "root": str(tiny_cub), "image_size": 64}})))
    assert main(["train", str(path), "--out", str(tmp_path / "run"), "--devices", "2"]) == 2
    said = capfd.readouterr().err
    assert said.strip().splitlines()[-1].startswith(f"dapl: {image}: the image is corrupt or truncated")
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
