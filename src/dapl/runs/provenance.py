"""Where numbers come from: the command, the day, the versions and the processor that they were made with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_VERSIONS = ("dapl", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "pillow", "safetensors")


def provenance(words: Sequence[str]) -> dict[str, Any]:
    """What stands beside numbers that are kept: how, when and on what they were made.

    ``words`` are the arguments of the command, empty where it was called from Python.

    >>> found = provenance(["compare", "configs/a b.yaml"])
    >>> found["command"], sorted(found)
    ("dapl compare 'configs/a b.yaml'", ['command', 'machine', 'measured', 'versions'])
    """
    return {
        "command": shlex.join(["dapl", *words]) if words else None,
        "measured": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, Any]:
    """The processor, and the vector instructions that torch uses on it: others round sums in another order.

    ``ATEN_CPU_CAPABILITY`` holds torch to older instructions, which is then what stands here.

    >>> sorted(machine())
    ['cores', 'instructions', 'processor', 'system', 'threads']
    """
    import torch

    return {
        "processor": processor_name(Path("/proc/cpuinfo")),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def processor_name(listing: Path) -> str:
    """As Linux lists it, or what Python knows elsewhere."""
    try:
        lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def versions() -> dict[str, str | None]:
    """The versions of the packages that decide the numbers; None for one that is not installed."""

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {package: version(package) for package in _VERSIONS}
