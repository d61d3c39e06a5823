"""One plain process needs no Fabric and gives the numbers that Fabric gives."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from dapl.common.errors import DaplError
from dapl.config import load_config
from dapl.processes.interface import Processes, SingleProcess
from dapl.processes.launch import make_processes

LOADED = """
import sys
from dapl.config import load_config
from dapl.processes.launch import make_processes
plain = load_config(None, {"runtime.accelerator": "cpu"})
reduced = load_config(None, {"runtime.accelerator": "cpu", "runtime.precision": "bf16-mixed"})
several = load_config(None, {"runtime.accelerator": "cpu", "runtime.devices": 2})
for config in (plain, reduced, several):
    print(type(make_processes(config)).__name__, "lightning_fabric" in sys.modules, "torchmetrics" in sys.modules)
"""


def test_fabric_is_loaded_only_where_one_plain_process_is_not_enough() -> None:
    """And Fabric without torchmetrics, whose version is all it wants; nothing is left that stands for it."""
    found = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["SingleProcess False False", *["FabricProcesses True False"] * 2]


@pytest.mark.parametrize("field", ["runtime.accelerator", "runtime.precision"])
def test_what_does_not_exist_is_one_sentence(field: str) -> None:
    with pytest.raises(DaplError, match=r"^runtime: .*abacus"):
        make_processes(load_config(None, {field: "abacus"}))


def steps(processes: Processes, model: torch.nn.Module) -> list[torch.Tensor]:
    images = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    module, optimizer = processes.setup(model, torch.optim.Adam(model.parameters(), lr=0.1))
    for batch in images.split(2):
        optimizer.zero_grad()
        processes.backward(module(batch).square().mean())
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_plain_process_and_fabric_do_the_same() -> None:
    from dapl.processes.fabric import FabricProcesses

    runtime = load_config(None, {"runtime.accelerator": "cpu"}).runtime
    both: list[Processes] = [SingleProcess(), FabricProcesses.of_runtime(runtime)]
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    plain, fabric = (steps(processes, copy.deepcopy(model)) for processes in both)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(plain, fabric, strict=True))
    values = torch.tensor([1.0, 2.0])
    for processes in both:
        assert (processes.world_size, processes.global_rank, processes.local_rank) == (1, 0, 0)
        assert processes.device == torch.device("cpu")
        assert processes.sum(values).tolist() == [1, 2]
        assert processes.gather(values).tolist() == [[1, 2]]
        assert processes.launch(lambda own, word: (own.world_size, word), "word") == (1, "word")
        with processes.autocast():
            assert model(values.new_ones(1, 3)).dtype == torch.float32
        processes.barrier()
