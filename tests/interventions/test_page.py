"""docs/interventions.md shows the numbers of the files that are kept beside it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_interventions", DOCS / "render_interventions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_kept_files(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0, "run python docs/render_interventions.py"


def test_another_number_makes_the_page_out_of_date(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "KEPT", Path(shutil.copytree(script.KEPT, tmp_path / "kept")))
    assert script.main(["--check"]) == 0
    file = next(script.KEPT.glob("*.json"))
    found = json.loads(file.read_text(encoding="utf-8"))
    found["explanations"]["drops"]["correctness"]["value"] = 0.123
    file.write_text(json.dumps(found), encoding="utf-8")
    assert script.main(["--check"]) == 1


def test_every_kept_file_has_the_oracle_at_the_top(script: ModuleType) -> None:
    for file in script.KEPT.glob("*.json"):
        oracle = json.loads(file.read_text(encoding="utf-8"))["explanations"]["oracle"]
        assert {number["value"] for number in oracle.values()} - {None} == {1.0}


def test_what_the_page_reads_off_the_numbers_holds(script: ModuleType) -> None:
    kept = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["explanations"] for path in script.KEPT.glob("*.json")
    }

    def above(system: str, explanation: str, other: str, score: str) -> bool:
        """By more than both intervals."""
        return kept[system][explanation][score]["low"] > kept[system][other][score]["high"]

    both = ("completeness", "correctness")
    assert all(above(system, "drops", "shuffled", score) for system in kept for score in both)
    own = {system for system in kept if "own" in kept[system]}
    assert own == {"dapl", "parts", "protopnet"}
    assert {system for system in own if all(above(system, "own", "shuffled", score) for score in both)} == {"parts"}
    heat = kept["blackbox"]
    assert all(above("blackbox", "integrated_gradients", "shuffled", score) for score in both)
    for score in both:
        assert heat["integrated_gradients"][score]["value"] > heat["gradcam"][score]["value"]
        assert heat["integrated_gradients"][score]["value"] >= kept["parts"]["own"][score]["value"]
    for system in own:
        assert kept[system]["even"]["correctness"]["value"] > kept[system]["own"]["correctness"]["value"]
