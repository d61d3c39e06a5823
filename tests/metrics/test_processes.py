"""The classes over two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ..forked import Forked
from . import test_classes, test_companion_classes


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    """The first process has more images than the second, and one of them no visible part."""
    places = tmp_path / "meeting", tmp_path / "out"
    for process in [Forked(tmp_path / f"said {rank}", one_of_two_processes, *places, rank) for rank in range(2)]:
        process.finish()
    found = json.loads((tmp_path / "out").read_text())
    for name, module in (("parts", test_classes), ("companions", test_companion_classes)):
        module.assert_same(found[name], module.values(module.updated([list(range(module.IMAGES))])))


def one_of_two_processes(meeting: Path, out: Path, rank: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    found = {}
    for name, module in (("parts", test_classes), ("companions", test_companion_classes)):
        rows = list(range(13)) if rank == 0 else list(range(13, module.IMAGES))
        found[name] = module.values(module.updated([rows[:4], rows[4:]]))
    if rank == 0:
        out.write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
