"""The wheel carries everything: it is installed into an empty environment and a model is trained from there."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "dapl"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.egg-info")


def call(*command: object, cwd: Path, **environment: str) -> str:
    """Run a program where neither PYTHONPATH nor the checkout leads to the package; returns what it printed."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make wheel` does, from a copy, so that nothing is left in the checkout and nothing old is packed."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "dapl"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=NOT_SOURCE)
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    call(sys.executable, "-m", "pip", *build, copy, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; what the package needs is found where the tests find it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    packages = Path(call(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder).strip())
    install = ("install", "--quiet", "--no-deps", "--no-index", "--target", packages)
    call(sys.executable, "-m", "pip", *install, wheel, cwd=folder)
    needed = [path for path in site.getsitepackages() if Path(path).is_dir()]
    # plain lines: the .pth files in those folders are not read, and so an editable dapl is not found by them
    (packages / "needed.pth").write_text("\n".join(needed) + "\n", encoding="utf-8")
    return python


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("dapl/")}
    files = {file for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert packed == {f"dapl/{file.relative_to(PACKAGE).as_posix()}" for file in files}
    assert {"dapl/demo.yaml", "dapl/py.typed"} <= packed
    assert {"templates", "static"} <= {name.split("/")[2] for name in packed if name.count("/") > 2}


@pytest.mark.slow
def test_it_works_from_an_empty_environment(python: Path, tmp_path: Path) -> None:
    where = call(python, "-c", "import dapl; print(dapl.__version__, dapl.__file__)", cwd=tmp_path).split()
    assert where[0] == VERSION
    assert Path(where[1]).is_relative_to(python.parents[1])
    command = (python, "-m", "dapl")
    assert "train" in call(*command, "--help", cwd=tmp_path)
    assert list(python.parents[1].rglob("bin/dapl"))
    tiny = {
        "data": "{name: toybirds, classes: 2, images_per_class: 4, test_images_per_class: 2, image_size: 64}",
        "model": "{heads: 2, head_dim: 4, backbone: {name: resnet10t, weights: random}}",
        "schedule": "[{stage: warm_up, epochs: 1, batch_size: 4}, {stage: project}, {stage: last_layer, epochs: 1}]",
    }
    (tmp_path / "tiny.yaml").write_text("".join(f"{name}: {text}\n" for name, text in tiny.items()), encoding="utf-8")
    home = {"HOME": str(tmp_path)}
    assert "accuracy" in call(*command, "train", "tiny.yaml", "--out", "run", cwd=tmp_path, **home)
    assert "index.html" in call(*command, "report", "run", cwd=tmp_path, **home)
    assert (tmp_path / "run" / "report" / "index.html").is_file()
