"""What tests share: a tiny config and its model, a trained run of every system, and data as in `data_fixtures`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from filelock import FileLock

from dapl.batches.run_data import RunData
from dapl.common import files
from dapl.common.progress import Reporter
from dapl.config import Config, load_config
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes
from dapl.processes.launch import make_processes

from .data_fixtures import face_videos, prepared_faces, tiny_cub, tiny_sam, write_video  # noqa: F401

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from dapl.explain.classifier import Classifier

BACKBONE = {"name": "test_efficientnet", "stages": [-2], "weights": "random"}
"""timm's smallest network; its last stage but one leaves 4×4 cells of 64×64 pixels."""
TINY: dict[str, Any] = {
    "data": {"name": "toybirds", "classes": 3, "images_per_class": 6, "test_images_per_class": 2, "image_size": 64},
    "model": {"backbone": BACKBONE, "heads": 2, "head_dim": 4},
    "runtime": {"accelerator": "cpu", "workers": 0, "evaluation_batch": 4},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads, and beside other processes the threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """A thousand small runs are written and thrown away; `tests/common/test_files.py` tests that files are synced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "fsync", lambda file: None)
        yield


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Config]:
    """``configured({"data.classes": 4})``: the tiny config with dotted overrides, its caches in the test's folder."""

    def make(overrides: dict[str, Any] | None = None) -> Config:
        return load_config(None, TINY | {"cache.folder": str(tmp_path / "cache")} | (overrides or {}))

    return make


@pytest.fixture
def config(configured: Callable[..., Config]) -> Config:
    return configured()


@pytest.fixture
def processes(config: Config) -> Processes:
    return make_processes(config)


@pytest.fixture
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes are copies of this one, which has used no threads: they need not import everything anew.

    `tests/evaluation/test_evaluate.py` and the last of `tests/processes/test_two_devices.py` start them as users do.
    """
    monkeypatch.setattr("dapl.processes.fabric.START", "fork")


@pytest.fixture
def run_data_of(processes: Processes) -> Callable[[Config], RunData]:
    return lambda config: RunData(config, processes, Reporter(quiet=True))


@pytest.fixture
def run_data(run_data_of: Callable[[Config], RunData], config: Config) -> RunData:
    return run_data_of(config)


@pytest.fixture
def model(config: Config) -> PrototypeModel:
    """With attention that tells places apart, as it does only after training, in evaluation mode."""
    made: Any = build_model(config.model, config.data.classes, seed=3).eval()  # type: ignore[union-attr]
    with torch.no_grad():
        made.attention.query.weight.mul_(20)
        made.attention.key.weight.mul_(20)
    return made


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Examples stand in the docstrings of the source; looking for them in all tests too takes each worker seconds."""
    found = yield
    return [collector for collector in found if type(collector) is pytest.Module]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first, or one worker ends with them while the other has nothing left to do.

    Of two workers one begins with the first test and the other with the middle one; what is left over is shared out.
    """
    readme = [item for item in items if item.path.name == "test_readme.py"]
    slow = [item for item in items if item.get_closest_marker("slow") and item not in readme]
    others = [item for item in items if item not in readme and item not in slow]
    middle = max(0, len(items) // 2 - len(readme))
    items[:] = [*readme, *others[:middle], *slow, *others[middle:]]


@pytest.fixture(scope="session")
def cub_root() -> Path:
    """The folder of the real CUB-200-2011, which is not in the repository."""
    return _path_in("DAPL_CUB", "the folder CUB_200_2011, to run the tests on the real data")


@pytest.fixture(scope="session")
def face_model() -> Path:
    """MediaPipe's model of face landmarks, which is not in the repository."""
    return _path_in("DAPL_FACE_MODEL", "face_landmarker.task (MediaPipe's Face Landmarker model page)")


def _path_in(variable: str, what: str) -> Path:
    path = os.environ.get(variable) or pytest.skip(f"set {variable} to {what}")
    return Path(path)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A real headless Chromium, for pages; on Debian it comes with `apt-get install chromium`.

    One per module: while it is there its event loop counts as running, and tests of other modules may want one.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine to open pages with; apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


_WARM_UP = {"stage": "warm_up", "epochs": 2, "batch_size": 8}
_LAST_LAYER = {"stage": "last_layer", "epochs": 2}
_PROTOTYPES = {"model.prototypes_per_class": 3, "model.width": 8}
TINY_RUN = TINY | {"data": TINY["data"] | {"test_images_per_class": 5}, "model": {"backbone": BACKBONE}}
"""3 classes of drawn birds with 5 test images each; every system that has prototypes gets 3 per class."""
TINY_SYSTEMS: dict[str, dict[str, Any]] = {
    "dapl": {
        "model.backbone.name": "test_mambaout",  # attention over features that hardly vary gives flat maps
        "model.heads": 3,
        "model.head_dim": 4,
        "schedule": [_WARM_UP, {"stage": "project"}, _LAST_LAYER],
    },
    "protopnet": _PROTOTYPES
    | {"schedule": [_WARM_UP, {"stage": "project"}, {"stage": "prune", "threshold": 1.0}, _LAST_LAYER]},
    "protopshare": _PROTOTYPES
    | {"schedule": [_WARM_UP, {"stage": "project"}, {"stage": "merge", "steps": 3, "share": 0.4, "epochs": 1}]},
    "pixpnet": _PROTOTYPES
    | {"loss.cluster": 0.0, "loss.separation": 0.0, "schedule": [_WARM_UP, {"stage": "project"}]},
    "parts": {
        "model.backbone": BACKBONE | {"stages": [-2, -1]},
        "model.heads": 3,
        "model.head_dim": 4,
        "model.crop_size": 32,
        "model.magnify": 1.5,
        "loss.cluster_of": "all",
        "loss.contrast.weight": 0.0,
        "schedule": [
            {"stage": "locate", "epochs": 2, "batch_size": 8},
            {"stage": "project", "nearest_to": "class_mean"},
            _WARM_UP | {"pointers": True, "learning_rates": {"layers": 1e-3, "prototypes": 1e-3}},
            _LAST_LAYER,
        ],
    },
    "blackbox": {"schedule": [_WARM_UP | {"learning_rates": {"classifier": 0.01}}]},
}


@pytest.fixture(scope="session")
def tiny_fields() -> dict[str, Any]:
    """The fields of a config that every tiny run shares."""
    return TINY_RUN


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """``made_once(name, make)``: a folder that ``make`` filled, once for all processes that run tests.

    Others read it at the same time: who wants to change it copies it.
    """
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    shared.mkdir(exist_ok=True)

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        folder, ready = shared / name, shared / f"{name}.ready"
        with FileLock(shared / f"{name}.lock"):
            if not ready.exists():
                shutil.rmtree(folder, ignore_errors=True)  # what a process left that did not come to an end
                folder.mkdir()
                make(folder)
                ready.touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def trained(made_once: Callable[..., Path]) -> Callable[[str], Path]:
    """``trained("dapl")``: the folder of a tiny run of that system, trained once for all tests; leave it as it is."""
    from dapl.models.build import SYSTEMS
    from dapl.training.trainer import train

    assert set(TINY_SYSTEMS) == set(SYSTEMS), "every registered system is tested"

    @cache
    def run_of(system: str) -> Path:
        def make(folder: Path) -> None:
            fields = {**TINY_RUN, "model.system": system, "cache.folder": str(folder / "cache"), **TINY_SYSTEMS[system]}
            train(load_config(None, fields), folder / "run", quiet=True)

        return made_once(f"trained {system}", make) / "run"

    return run_of


@pytest.fixture(scope="session")
def evaluated(trained: Callable[[str], Path], made_once: Callable[..., Path]) -> Callable[[str], Path]:
    """``evaluated("dapl")``: a copy of that folder with its numbers; leave it as it is."""
    from dapl.evaluation import evaluate

    @cache
    def measured(system: str) -> Path:
        def make(folder: Path) -> None:
            evaluate(shutil.copytree(trained(system), folder / "run"), quiet=True)

        return made_once(f"evaluated {system}", make) / "run"

    return measured


@pytest.fixture(scope="session")
def dapl_run(trained: Callable[[str], Path]) -> Path:
    """The tiny run of DAPL; leave it as it is."""
    return trained("dapl")


@pytest.fixture
def run(dapl_run: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed as one likes."""
    return Path(shutil.copytree(dapl_run, tmp_path / "run"))


@pytest.fixture(scope="session")
def classifier(dapl_run: Path) -> Classifier:
    """Its model."""
    from dapl import load

    return load(dapl_run)


class Disk:
    """A file system of its own, of a few megabytes, which a test fills or makes read-only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def full(self, left: int = 0) -> Path:
        """So many bytes are left."""
        state = os.statvfs(self.folder)
        (self.folder / "filling").write_bytes(bytes(max(0, state.f_bavail * state.f_bsize - left)))
        return self.folder

    def read_only(self) -> Path:
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)
        return self.folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Needs root, and a system that lets it mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"only root can mount a small disk to fill: {made.stderr.strip()}")
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)
