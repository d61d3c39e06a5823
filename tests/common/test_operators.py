"""torchvision beside a torch that its compiled operators do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FORKING = """
import json, os, sys, traceback
import torch
for line in sys.stdin:
    code, said, complained = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, path in ((1, said), (2, complained)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        try:
            exec(code, {"__name__": "__main__"})
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """What a process prints that has imported torch and no more; in this one torchvision is imported already.

    All of them are copies of one, so that torch need not be imported anew for each.
    """
    folder = tmp_path_factory.mktemp("operators")
    said, complained = folder / "said.txt", folder / "complained.txt"
    command = [sys.executable, "-c", FORKING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def printed(code: str) -> str:
            for file in (said, complained):
                file.unlink(missing_ok=True)
            print(json.dumps([code, str(said), str(complained)]), file=process.stdin, flush=True)
            assert process.stdout.readline() == "0\n", complained.read_text()
            return said.read_text().strip()

        yield printed
        process.stdin.close()


def test_torchvision_can_be_imported_after_it(run: Callable[[str], str]) -> None:
    code = """
import dapl.common.operators as repair
again = repair.ensure_operators(), repair.ensure_operators()
import torch
from torchvision.transforms import v2
image = v2.functional.resize(torch.zeros(3, 8, 8), [4, 4])
print(again, tuple(image.shape), hasattr(torch.ops.torchvision, "nms"), repair.ensure_operators())
"""
    assert run(code) == "(False, False) (3, 4, 4) True False"


def test_only_what_is_missing_is_declared(run: Callable[[str], str]) -> None:
    complete = "import torchvision.extension as own; raise SystemExit(not own._has_ops())"
    if subprocess.run([sys.executable, "-c", complete], capture_output=True, timeout=120, check=False).returncode == 0:
        pytest.skip("this torchvision registers all of its operators, and a second declaration would end the process")
    code = """
import torch
library = torch.library.Library("torchvision", "FRAGMENT")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import dapl.common.operators
import torchvision
print(hasattr(torch.ops.torchvision, "qnms"))
"""
    assert run(code) == "True"


def test_the_compiler_is_loaded_when_it_is_wanted_and_not_before(run: Callable[[str], str]) -> None:
    code = """
import sys
from dapl.common.operators import timm
import torch
from torchvision import tv_tensors
from torchvision.ops.roi_align import is_compile_supported
from torchvision.transforms import v2
image = v2.functional.resize(tv_tensors.Image(torch.zeros(3, 8, 8)), [4, 4])
timm.create_model("resnet10t").eval()(torch.zeros(1, 3, 32, 32))
print(type(image).__name__, "torch._dynamo" in sys.modules, "sympy" in sys.modules, "wandb" in sys.modules)
print(is_compile_supported("cpu"), sys.modules["torch._dynamo"] is torch._dynamo, hasattr(torch._dynamo, "optimize"))
image = v2.functional.resize(image, [2, 2])
print(type(image).__name__, torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""
    assert run(code).splitlines() == ["Image False False False", "True True True", "Image 2.0"]


def test_the_client_of_the_hub_is_loaded_when_it_is_wanted_and_not_before(run: Callable[[str], str]) -> None:
    code = """
import sys
from dapl.common.operators import timm
import huggingface_hub
loaded = [name for name in ("hf_api", "file_download") if f"huggingface_hub.{name}" in sys.modules]
try:
    timm.models.load_model_config_from_hf("no/such/model/can/be")
except huggingface_hub.errors.HFValidationError as error:
    print(loaded, type(error).__name__)
print(isinstance(huggingface_hub.HfApi, type), huggingface_hub.hf_hub_download.__module__)
"""
    assert run(code).splitlines() == ["[] HFValidationError", "True huggingface_hub.file_download"]


def test_what_timm_takes_of_wandb_is_the_real_thing() -> None:
    wandb = pytest.importorskip("wandb")
    from dapl.common.operators import timm

    assert timm.utils.summary.wandb.init is wandb.init


def test_a_torch_that_keeps_the_compiler_elsewhere_loads_it_at_once(run: Callable[[str], str]) -> None:
    code = """
import torch._compile
del torch._compile._disable_dynamo
from dapl.common.operators import timm
from torchvision.transforms import v2
print(timm.__name__, tuple(v2.functional.resize(torch.zeros(3, 8, 8), [4, 4]).shape))
"""
    assert run(code) == "timm (3, 4, 4)"


@pytest.mark.parametrize("taken", ["torch._dynamo", "torch._dynamo.utils"])
def test_what_else_is_taken_of_the_compiler_is_the_real_thing(run: Callable[[str], str], taken: str) -> None:
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


def _registering(*operators: str) -> str:
    """As a compiled library does when it is loaded; asked for again, it is there already."""
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    return f"""
import torch
if not hasattr(torch, "library_of_a_test"):
    torch.library_of_a_test = torch.library.Library("torchvision", "DEF")
    for operator in {operators}:
        torch.library_of_a_test.define(operator + "{schema}")
"""


_LAYOUTS = {
    "a file that does not load": {"extension.py": ""},
    "all operators, in whatever file": {"extension.py": _registering("nms", "qnms")},
    "one operator of two": {"extension.py": _registering("nms")},
    "another CUDA": {"extension.py": "raise RuntimeError('compiled with another CUDA')"},
    "operators loaded elsewhere": {"compiled.py": _registering("nms", "qnms")},
}
"""How a torchvision may load its operators, by the files that it would have."""
_INIT = """
import importlib, pkgutil, torch
for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"torchvision.{module.name}")
for operator in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{operator}", lambda dets, scores, iou_threshold: dets)
"""


def test_what_is_declared_is_decided_by_what_torchvision_registers(run: Callable[[str], str], tmp_path: Path) -> None:
    for number, files in enumerate(_LAYOUTS.values()):
        package = tmp_path / str(number) / "torchvision"
        for name, text in (
            {"__init__.py": _INIT, "transforms/__init__.py": "", "transforms/v2.py": ""} | files
        ).items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(text)
    code = f"""
import os, sys, torch
for number in range({len(_LAYOUTS)}):
    if os.fork() == 0:
        sys.path.insert(0, f"{tmp_path}/{{number}}")
        try:
            import dapl.common.operators as repair
            print("declared" if repair._library else "nothing declared", flush=True)
        except Exception as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""
    found = dict(zip(_LAYOUTS, run(code).splitlines(), strict=True))
    assert found == {
        "a file that does not load": "declared",
        "all operators, in whatever file": "nothing declared",
        "one operator of two": "declared",
        "another CUDA": "compiled with another CUDA",
        "operators loaded elsewhere": "nothing declared",
    }
