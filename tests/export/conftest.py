"""The tiny runs of every registered system, exported once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dapl.explain.draw import to_pil
from dapl.export.export import export_run, images_of_test
from dapl.models.build import SYSTEMS
from dapl.runs.loading import load_run


@pytest.fixture(scope="session")
def export_of(evaluated: Callable[[str], Path], made_once: Callable[..., Path]) -> Callable[[str, str], Path]:
    """``export_of("dapl", "hub")``: the folder in that format; leave it as it is."""

    @cache
    def exported(system: str, formats: str) -> Path:
        def make(folder: Path) -> None:
            export_run(evaluated(system), folder / "export", formats.split(","), quiet=True)

        return made_once(f"exported {system} {formats}", make) / "export"

    return exported


@pytest.fixture(params=sorted(SYSTEMS))
def system(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run(system: str, evaluated: Callable[[str], Path]) -> Path:
    """The run of every system in turn; leave it as it is."""
    return evaluated(system)


@pytest.fixture
def exported(system: str, export_of: Callable[[str, str], Path]) -> Path:
    """In hub format."""
    return export_of(system, "hub")


@pytest.fixture
def onnx_model(system: str, export_of: Callable[[str, str], Path]) -> Path:
    """The file."""
    return export_of(system, "onnx") / "model.onnx"


@pytest.fixture
def own_export(export_of: Callable[[str, str], Path], tmp_path: Path) -> Path:
    """A copy of DAPL's hub format of one's own."""
    shutil.copytree(export_of("dapl", "hub"), tmp_path / "export")
    return tmp_path / "export"


@pytest.fixture
def own_run(evaluated: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of DAPL's run of one's own."""
    shutil.copytree(evaluated("dapl"), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def image(evaluated: Callable[[str], Path], tmp_path: Path) -> Path:
    """A test image as a file."""
    to_pil(images_of_test(load_run(evaluated("dapl")).config, 1)[0]).save(tmp_path / "bird.png")
    return tmp_path / "bird.png"
