"""torchvision beside a torch that its compiled operators do not fit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dapl.common import operators as _torchvision


def run(code: str) -> str:
    """What a new process prints: in this one torchvision is imported already."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_torchvision_can_be_imported_after_it() -> None:
    code = """
import sys
import dapl.common.operators as repair
assert "torchvision" not in sys.modules
again = repair.ensure_operators(), repair.ensure_operators()
import torch
from torchvision.transforms import v2
image = v2.functional.resize(torch.zeros(3, 8, 8), [4, 4])
print(again, tuple(image.shape), hasattr(torch.ops.torchvision, "nms"), repair.ensure_operators())
"""
    assert run(code) == "(False, False) (3, 4, 4) True False"


def test_only_what_is_missing_is_declared() -> None:
    code = """
import torch
library = torch.library.Library("torchvision", "FRAGMENT")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import dapl.common.operators
import torchvision
print(hasattr(torch.ops.torchvision, "qnms"))
"""
    assert run(code) == "True"


@pytest.fixture
def _unrepaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if neither `ensure_operators` nor torchvision's import had run; the operators themselves are declared."""
    monkeypatch.setattr(_torchvision, "_library", None)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    assert hasattr(torch.ops.torchvision, "nms")


@pytest.mark.usefixtures("_unrepaired")
def test_nothing_is_declared_where_the_operators_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torchvision, "_compiled_operators_load", lambda: False)
    assert _torchvision.ensure_operators() is False
    assert _torchvision._library is None


@pytest.mark.usefixtures("_unrepaired")
@pytest.mark.parametrize("loads", [True, False])
def test_whether_the_compiled_operators_load(loads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def load_library(path: str) -> None:
        tried.append(path)
        if not loads:
            raise OSError("undefined symbol")

    monkeypatch.setattr(torch.ops, "load_library", load_library)
    assert _torchvision._compiled_operators_load() is loads
    assert len(tried) == 1
    assert "torchvision" in tried[0]
