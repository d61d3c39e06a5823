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
import dapl.common.operators as repair
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


def test_the_compiler_is_loaded_when_it_is_wanted_and_not_before() -> None:
    code = """
import sys
from dapl.common.operators import timm
import torch
from torchvision import tv_tensors
from torchvision.ops.roi_align import is_compile_supported
from torchvision.transforms import v2
image = v2.functional.resize(tv_tensors.Image(torch.zeros(3, 8, 8)), [4, 4])
timm.create_model("resnet10t").eval()(torch.zeros(1, 3, 32, 32))
print(type(image).__name__, "torch._dynamo" in sys.modules, "sympy" in sys.modules)
print(is_compile_supported("cpu"), sys.modules["torch._dynamo"] is torch._dynamo, hasattr(torch._dynamo, "optimize"))
image = v2.functional.resize(image, [2, 2])
print(type(image).__name__, torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""
    assert run(code).splitlines() == ["Image False False", "True True True", "Image 2.0"]


def test_a_torch_that_keeps_the_compiler_elsewhere_loads_it_at_once() -> None:
    code = """
import torch._compile
del torch._compile._disable_dynamo
from dapl.common.operators import timm
from torchvision.transforms import v2
print(timm.__name__, tuple(v2.functional.resize(torch.zeros(3, 8, 8), [4, 4]).shape))
"""
    assert run(code) == "timm (3, 4, 4)"


@pytest.mark.parametrize("taken", ["torch._dynamo", "torch._dynamo.utils"])
def test_what_else_is_taken_of_the_compiler_is_the_real_thing(taken: str) -> None:
    """Other versions of torchvision and timm may import other functions of it."""
    code = f"""
import sys
import dapl.common.operators as repair
with repair._postponed_compiler():
    from {taken} import config
import torch
print(config is torch._dynamo.config, sys.modules["torch._dynamo"] is torch._dynamo)
"""
    assert run(code) == "True True"


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
