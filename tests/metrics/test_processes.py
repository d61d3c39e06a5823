"""The classes over two processes. Run as a module, this file is one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from . import test_classes, test_companion_classes

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    """The first process has more images than the second, and one of them no visible part."""
    command = [sys.executable, "-m", "tests.metrics.test_processes", str(tmp_path / "meeting"), str(tmp_path / "out")]
    processes = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True, cwd=ROOT) for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    found = json.loads((tmp_path / "out").read_text())
    for name, module in (("parts", test_classes), ("companions", test_companion_classes)):
        module.assert_same(found[name], module.values(module.updated([list(range(module.IMAGES))])))


def one_of_two_processes(meeting: str, out: str, rank: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    found = {}
    for name, module in (("parts", test_classes), ("companions", test_companion_classes)):
        rows = list(range(13)) if rank == 0 else list(range(13, module.IMAGES))
        found[name] = module.values(module.updated([rows[:4], rows[4:]]))
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one_of_two_processes(sys.argv[1], sys.argv[2], int(sys.argv[3]))
