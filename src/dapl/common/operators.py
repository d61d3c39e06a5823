"""Import this before torchvision: it lets torchvision load beside a torch build its compiled operators do not fit.

torchvision's Python layer registers fake implementations for ``torchvision::nms`` and ``torchvision::qnms`` at import.
Where the compiled library did not load (a CPU build of torch beside a CUDA wheel of torchvision), the two schemas do
not exist and the import fails with ``operator torchvision::nms does not exist``. Declaring the schemas is enough:
transforms and classification models call neither operator.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None  # keeps the schemas registered for the life of the process


def _compiled_operators_load() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # nothing to repair: the import itself will say that torchvision is missing
    folder = Path(spec.origin).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        extension = folder / f"_C{suffix}"
        if extension.exists():
            try:
                torch.ops.load_library(str(extension))
            except OSError:
                return False
            return hasattr(torch.ops.torchvision, "nms")
    return False


def ensure_operators() -> bool:
    """Declare the missing schemas; returns whether anything had to be declared."""
    global _library
    if "torchvision" in sys.modules or _library is not None or _compiled_operators_load():
        return False
    missing = [operator for operator in ("nms", "qnms") if not hasattr(torch.ops.torchvision, operator)]
    if not missing:
        return False
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in missing:
        _library.define(operator + _SCHEMA)
    return True


ensure_operators()
