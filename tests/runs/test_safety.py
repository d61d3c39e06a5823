"""What somebody else made cannot run code here: a run, an export, a cache or weights, with a trap in every place.

Each trap, when it is unpickled, makes a folder (the marker). A file with a trap is refused or not read at all.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import dapl
from dapl.common.errors import DaplError
from dapl.config import BackboneConfig, DaplModel, load_config
from dapl.data.images import read_image
from dapl.evaluation import evaluate
from dapl.evaluation.original_protopnet import read_protopnet
from dapl.export.export import export_run
from dapl.export.hub import ExportedModel
from dapl.models.build import build_model
from dapl.models.weights import read_state_dict
from dapl.runs.loading import load_run
from dapl.runs.marks import Marks
from dapl.runs.run import Run
from dapl.training.trainer import train

from ..conftest import TINY

PACKAGE = Path(dapl.__file__).parent


class Trap:
    """Unpickling it makes the folder."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def _torch_file(content: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def _numpy_file(save: Callable[..., None], marker: Path) -> bytes:
    stream = io.BytesIO()
    save(stream, np.array([Trap(marker)], dtype=object))
    return stream.getvalue()


def _a_state_dict(marker: Path) -> dict[str, Any]:
    return {"state_dict": {"weight": torch.zeros(2)}, "extra": Trap(marker)}


TRAPS: dict[str, tuple[Callable[[Path], bytes], Callable[[bytes], Any]]] = {
    "pickle as text": (lambda marker: pickle.dumps(Trap(marker), protocol=0), pickle.loads),
    "pickle": (lambda marker: pickle.dumps(Trap(marker)), pickle.loads),
    "torch": (
        lambda marker: _torch_file(_a_state_dict(marker)),
        lambda content: torch.load(io.BytesIO(content), weights_only=False),
    ),
    "old torch": (
        lambda marker: _torch_file(_a_state_dict(marker), _use_new_zipfile_serialization=False),
        lambda content: torch.load(io.BytesIO(content), weights_only=False),
    ),
    "npy": (
        lambda marker: _numpy_file(np.save, marker),
        lambda content: np.load(io.BytesIO(content), allow_pickle=True),
    ),
    "npz": (
        lambda marker: _numpy_file(lambda s, a: np.savez(s, keypoints=a, visible=a, boxes=a, exact=a), marker),
        lambda content: np.load(io.BytesIO(content), allow_pickle=True)["boxes"],
    ),
    "yaml": (
        lambda marker: f"!!python/object/apply:os.mkdir [{marker}]\n".encode(),
        lambda content: yaml.unsafe_load(content.decode()),
    ),
}
"""Name → how it is made, and the careless way of reading it that springs it."""


@pytest.fixture(params=sorted(TRAPS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """Not there at the end of a test."""
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "code of a file was run"


@pytest.fixture
def trap(kind: str, marker: Path) -> bytes:
    return TRAPS[kind][0](marker)


def test_the_traps_are_real(kind: str, tmp_path: Path) -> None:
    """Else the tests below would pass on anything."""
    make, careless = TRAPS[kind]
    careless(make(tmp_path / "sprung"))
    assert (tmp_path / "sprung").is_dir()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its cache and its export; leave it as it is."""
    root = tmp_path_factory.mktemp("safety")
    schedule = [{"stage": "warm_up", "epochs": 1, "batch_size": 4}, {"stage": "project"}]
    small = {"data.classes": 2, "data.images_per_class": 4, "cache.folder": str(root / "cache"), "schedule": schedule}
    train(load_config(None, TINY | small), root / "run", quiet=True)
    evaluate(root / "run", metrics="accuracy,coverage", quiet=True)
    export_run(root / "run", root / "export", ["hub"], quiet=True)
    return root


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy of one's own, whose run uses the cache beside it."""
    shutil.copytree(made, tmp_path / "own")
    config = tmp_path / "own" / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(made), str(tmp_path / "own")))
    return tmp_path / "own"


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def refused(call: Callable[[], Any]) -> bool:
    """Whether it said no in our own words; anything else that it raises fails the test."""
    try:
        call()
    except DaplError:
        return True
    return False


def readers(run: Path) -> dict[str, Callable[[], Any]]:
    """Everything that reads a run, the quick ones."""
    return {
        "load": lambda: dapl.load(run),
        "best": lambda: load_run(run, "best"),
        "last": lambda: load_run(run, "last"),
        "config": lambda: Run.open(run).config(),
        "classes": lambda: Run.open(run).class_names(),
        "records": lambda: Run.open(run).read_prototypes(),
        "log": lambda: Run.open(run).logged(),
        "marks": lambda: Marks.of_run(run).read(),
    }


def test_a_run_with_a_trap_in_every_place(own: Path, trap: bytes) -> None:
    run = own / "run"
    (run / "marks.json").write_text("{}")
    needed = {
        "config.yaml": "config",
        "data.json": "classes",
        "checkpoints/best.safetensors": "best",
        "checkpoints/last.safetensors": "last",
        "prototypes.json": "records",
        "marks.json": "marks",
    }
    places = files_below(run)
    assert {place.relative_to(run).as_posix() for place in places} >= needed.keys()
    for place in places:
        before = place.read_bytes()
        place.write_bytes(trap)
        said_no = {name for name, call in readers(run).items() if refused(call)}
        reader = needed.get(place.relative_to(run).as_posix())
        assert reader is None or reader in said_no, place
        place.write_bytes(before)


@pytest.mark.slow
def test_commands_on_a_run_with_traps_where_they_do_not_look(own: Path, trap: bytes) -> None:
    """Whatever a command needs is refused, and what it does not need may as well be a trap."""
    run = own / "run"
    needed = ("config.yaml", "data.json", "best.safetensors")
    for place in files_below(run):
        if place.name not in needed:
            place.write_bytes(trap)
    for name in ("pytorch_model.bin", "optimizer.pt", "model.pkl", "checkpoints/best.pth", "checkpoints/last.ckpt"):
        (run / name).write_bytes(trap)
    assert refused(lambda: export_run(run, formats=["hub"], quiet=True))  # the numbers of the card are not JSON
    assert evaluate(run, metrics="accuracy", quiet=True)["accuracy"] >= 0
    export_run(run, formats=["hub"], quiet=True)
    assert refused(lambda: train(Run.open(run).config(), run, resume=True, quiet=True))


@pytest.mark.slow
def test_a_cache_with_traps(own: Path, trap: bytes) -> None:
    run, places = own / "run", files_below(own / "cache")
    assert len(places) >= 5
    spoiled = 0
    for place in places:
        before = place.read_bytes()
        place.write_bytes(trap)
        spoiled += refused(lambda: evaluate(run, metrics="accuracy,coverage", quiet=True, files=False))
        place.write_bytes(before)
    assert spoiled >= 3  # images, features, annotations of the test split


@pytest.mark.parametrize("name", ["weights.pth", "weights.pt", "weights.bin", "weights.safetensors", "weights"])
def test_weights_with_a_trap(name: str, trap: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(trap)
    with pytest.raises(DaplError, match=name):
        read_state_dict(path)
    with pytest.raises(DaplError, match=name):
        read_protopnet(path, "resnet18")
    with pytest.raises(DaplError, match=name):
        build_model(DaplModel(backbone=BackboneConfig(name="test_efficientnet", weights=str(path))), 2)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin"])
def test_a_folder_of_weights_with_a_trap(name: str, trap: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / name).write_bytes(trap)
    with pytest.raises(DaplError, match=name):
        read_state_dict(tmp_path / "weights")


def test_an_export_with_a_trap_in_every_place(own: Path, trap: bytes) -> None:
    folder = own / "export"
    for name in ("pytorch_model.bin", "model.pkl", "modeling_dapl.py", "training_args.bin"):
        (folder / name).write_bytes(trap)
    model = ExportedModel.from_pretrained(folder)  # what is not ours is not read
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    assert model.predict(image).class_name in model.classes
    needed = ("config.json", "model.safetensors", "prototypes.json")
    for place in files_below(folder):
        before = place.read_bytes()
        place.write_bytes(trap)
        said_no = refused(lambda: dapl.load(folder).explain(image))
        assert said_no == (place.name in (*needed, "metrics.json")), place
        place.write_bytes(before)


def test_a_code_file_in_an_export_is_not_imported(own: Path, marker: Path) -> None:
    for name in ("__init__.py", "modeling_dapl.py", "configuration_dapl.py", "dapl.py"):
        (own / "export" / name).write_text(f"import os; os.mkdir({str(marker)!r})\n")
    assert dapl.load(own / "export").classes


def test_a_image_that_is_a_trap(trap: bytes, tmp_path: Path) -> None:
    for name in ("bird.jpg", "bird.png", "bird.npy", "bird"):
        (tmp_path / name).write_bytes(trap)
        with pytest.raises(DaplError, match=name):
            read_image(tmp_path / name)


@pytest.mark.parametrize("name", ["hf-hub:somebody/model", "local-dir:/tmp/model", "os.system", "../model"])
def test_a_backbone_is_a_name_of_timm_and_no_address(name: str, own: Path) -> None:
    """timm would fetch a model description, or read one from a folder, by such a name."""
    config = own / "run" / "config.yaml"
    config.write_text(config.read_text().replace("name: test_efficientnet", f"name: {name}"))
    with pytest.raises(DaplError, match="timm has no model"):
        load_run(own / "run")


CARELESS = {
    "pickle": ("load", "loads", "Unpickler"),
    "joblib": ("load",),
    "marshal": ("load", "loads"),
    "shelve": ("open",),
    "dill": ("load", "loads"),
    "cloudpickle": ("load", "loads"),
    "yaml": ("load", "load_all", "full_load", "unsafe_load"),
    "builtins": ("eval", "exec", "compile", "__import__"),
    "pandas": ("read_pickle",),
    "torch.hub": ("load",),
    "torch.jit": ("load",),
    "runpy": ("run_path", "run_module"),
}


def careless_calls(source: str) -> list[str]:
    """Calls that could run what a file holds."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name, options = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        module, _, function = name.rpartition(".")
        if function in CARELESS.get(module or "builtins", ()):
            found.append(name)
        elif name == "torch.load" and options.get("weights_only") != "True":
            found.append(f"{name} without weights_only=True")
        elif name in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
            found.append(f"{name} without allow_pickle=False")
        elif options.get("trust_remote_code", "False") != "False":
            found.append(f"{name} with trust_remote_code")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "pickle.load(f)",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f)",
        "yaml.load(f, yaml.Loader)",
        "np.load(f, allow_pickle=True)",
        "eval(text)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_careless_calls_are_seen(source: str) -> None:
    """Else the test below would pass on anything."""
    assert len(careless_calls(source)) == 1
    assert careless_calls("torch.load(f, weights_only=True); np.load(f, allow_pickle=False); model.eval()") == []


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_no_file_of_ours_reads_carelessly(file: Path) -> None:
    assert careless_calls(file.read_text(encoding="utf-8")) == []


def test_torch_reads_weights_safely_from_this_version_on() -> None:
    """Before 2.6 ``weights_only=True`` could be got around with an old file format."""
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    assert tuple(int(number) for number in numbers) >= (2, 6)
