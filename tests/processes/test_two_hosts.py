"""Two hosts with addresses of their own, as network namespaces: torchrun over them, and what it does when one dies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dapl.common.errors import DaplError
from dapl.config import Config, dump_config
from dapl.evaluation import evaluate
from dapl.processes import launch as launching
from dapl.processes.interface import SingleProcess
from dapl.runs.checkpoint import load_checkpoint
from dapl.runs.run import Run
from dapl.training.trainer import train

# First what leaves the weights as they are, so that projection, last layer and pruning see the same in one process and
# in two; then a stage that learns. Through random weights rounding grows with every step of Adam: of that stage the
# first epoch is compared.
SCHEDULE = [
    {"stage": "warm_up", "epochs": 1, "batch_size": 8, "learning_rates": {"prototypes": 1e-12}},
    {"stage": "project"},
    {"stage": "last_layer", "epochs": 3},
    {"stage": "prune"},
    {"stage": "warm_up", "epochs": 24, "batch_size": 8},
]
FIRST_HOST = "10.213.7.1"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[list[tuple[str, str]]]:
    """(namespace, name of its interface) of two hosts that reach each other and nothing else."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip (apt-get install iproute2)")
    names = [(f"dapl{os.getpid()}{letter}", f"dapl{letter}{os.getpid() % 100000}") for letter in "ab"]
    try:
        for name, _ in names:
            _ip("netns", "add", name)
        (one, first), (other, second) = names
        _ip("link", "add", first, "netns", one, "type", "veth", "peer", "name", second, "netns", other)
        for number, (name, interface) in enumerate(names, 1):
            _ip("-n", name, "addr", "add", f"10.213.7.{number}/24", "dev", interface)
            _ip("-n", name, "link", "set", interface, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    except OSError as error:
        pytest.skip(f"this machine makes no network namespaces: {error}")
    finally:
        for name, _ in names:
            _kill_host(name)  # what a test that has failed left there
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _kill_host(name: str) -> None:
    """All processes of a host, at once and without a word."""
    inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for process in inside.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def _wait_for(what: Callable[[], bool], process: subprocess.Popen) -> None:
    for _ in range(6000):
        if what():
            return
        assert process.poll() is None, "the run has ended before that"
        time.sleep(0.02)
    raise AssertionError("the run does not come so far")


def _wait_for_epoch(run: Run, stage: int, epoch: int, process: subprocess.Popen) -> None:
    """Until the run has come so far."""

    def is_there() -> bool:
        entries = run.logged() if run.metrics_file.exists() else []
        return any(entry.get("stage") == stage and entry.get("epoch", -1) >= epoch for entry in entries)

    _wait_for(is_there, process)


def _children(process: int) -> list[int]:
    """In the order in which they were started."""
    return sorted(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def _is_asked_to_end(process: int) -> bool:
    """Whether a process that is stopped has got SIGTERM."""
    status = Path(f"/proc/{process}/status").read_text()
    (pending,) = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:")]
    return bool(int(pending, 16) >> (signal.SIGTERM - 1) & 1)


def _assert_same_weights(one: Run, other: Run) -> None:
    for name in ("best", "last"):
        expected, found = (load_checkpoint(getattr(run, name)) for run in (one, other))
        assert found.position == expected.position
        for key, tensor in expected.model.items():
            assert torch.equal(found.model[key], tensor), f"{name}: {key}"


def _start(
    hosts: list[tuple[str, str]], folder: Path, port: int, *words: str, restarts: int = 0, c10d: bool = False
) -> list[subprocess.Popen]:
    """``dapl train …`` by torchrun on both hosts; what they say goes to files."""
    started = []
    for rank, (name, interface) in enumerate(hosts):
        torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        torchrun += ["--max-restarts", str(restarts)]
        if c10d:
            own = ["--local-addr", f"10.213.7.{rank + 1}", "--rdzv-conf", f"is_host={rank == 0}"]
            torchrun += ["--rdzv-backend", "c10d", "--rdzv-id", "dapl", "--rdzv-endpoint", f"{FIRST_HOST}:{port}", *own]
        else:
            torchrun += ["--node-rank", str(rank), "--master-addr", FIRST_HOST, "--master-port", str(port)]
        command = ["ip", "netns", "exec", name, sys.executable, *torchrun, "-m", "dapl", "train", *words]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
        said = (folder / f"{port}-{rank}.txt").open("w")
        started.append(
            subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True, text=True)
        )
    return started


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_two_hosts(hosts: list[tuple[str, str]], configured: Callable[..., Config], tmp_path: Path) -> None:
    """Training, projection, pruning and evaluation give the numbers of one process, and where a process and then a
    host die on the way, the bits of two processes that ran through."""
    config = configured({"schedule": SCHEDULE, "runtime.nodes": 2})
    path = tmp_path / "hosts.yaml"
    path.write_text(dump_config(config))

    run = Run(tmp_path / "run")
    first, second = _start(hosts, tmp_path, 29517, str(path), "--out", str(run.folder), restarts=1)
    _wait_for_epoch(run, 4, 2, first)
    os.kill(_children(second.pid)[-1], signal.SIGKILL)  # one process only: torchrun starts all of them again
    _wait_for(lambda: "resuming at stage 5" in (tmp_path / "29517-0.txt").read_text(), first)
    _wait_for_epoch(run, 4, 6, first)
    _kill_host(hosts[1][0])  # the other host says so and ends, for torchrun has no restart left
    assert first.wait(300) != 0
    second.wait(60)
    said = (tmp_path / "29517-0.txt").read_text()
    assert "another process of this run has ended or cannot be reached any more" in said, said[-3000:]
    assert "dapl train --resume" in said
    position = load_checkpoint(run.last).position
    assert (4, 6) < position < (4, 24), "it was not in the middle"
    for process in _start(hosts, tmp_path, 29519, "--resume", str(run.folder)):
        assert process.wait(600) == 0, (tmp_path / "29519-0.txt").read_text()[-3000:]

    whole = train(configured({"schedule": SCHEDULE, "runtime.devices": 2}), tmp_path / "whole", quiet=True)
    _assert_same_weights(whole, run)
    alone = train(configured({"schedule": SCHEDULE}), tmp_path / "alone", quiet=True)
    for one, two in zip(alone.read_prototypes(), run.read_prototypes(), strict=True):
        for name in ("image", "location", "box", "kept", "reason", "grounded"):
            assert one[name] == two[name], name
    epochs = [[entry for entry in each.logged() if entry["event"] == "epoch"] for each in (alone, run)]
    for one, two in zip(epochs[0][:5], epochs[1][:5], strict=True):  # up to the first epoch of the stage that learns
        assert two["train"] == pytest.approx(one["train"], rel=1e-4), one["stage"]
    measured = json.loads(run.evaluation_file.read_text())["numbers"]
    again = evaluate(run.folder, config=run.config({"runtime.nodes": 1}), chance=False, quiet=True, files=False)
    for name, number in again.to_json()["numbers"].items():
        assert measured[name]["value"] == number["value"], f"{name}: one process measures the same model"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_elastic_rendezvous(hosts: list[tuple[str, str]], configured: Callable[..., Config], tmp_path: Path) -> None:
    """With c10d a process of the second host dies, and all go on.

    The process of the first host is stopped meanwhile, so that it does not end by itself: torchrun ends it because the
    second host waits for a new start, and counts no restart there.
    """
    schedule = [*SCHEDULE[1:2], SCHEDULE[-1] | {"epochs": 8}]
    path = tmp_path / "hosts.yaml"
    path.write_text(dump_config(configured({"schedule": schedule, "runtime.nodes": 2})))
    run = Run(tmp_path / "run")
    started = _start(hosts, tmp_path, 29521, str(path), "--out", str(run.folder), restarts=2, c10d=True)
    _wait_for_epoch(run, 1, 2, started[0])
    lives, dies = (_children(process.pid)[-1] for process in started)
    os.kill(lives, signal.SIGSTOP)
    os.kill(dies, signal.SIGKILL)
    _wait_for(lambda: _is_asked_to_end(lives), started[0])
    os.kill(lives, signal.SIGCONT)
    said = [tmp_path / f"29521-{rank}.txt" for rank in (0, 1)]
    for process, file in zip(started, said, strict=True):
        assert process.wait(300) == 0, file.read_text()[-3000:]
    words = said[0].read_text() + said[1].read_text()
    assert "resuming at stage 2" in words
    assert "holds a run already" not in words, "a process took its own run for another one: a restart is lost"
    whole = train(configured({"schedule": schedule, "runtime.devices": 2}), tmp_path / "whole", quiet=True)
    _assert_same_weights(whole, run)


def test_only_a_lost_peer_is_put_into_that_sentence(
    configured: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(SingleProcess):
        world_size = 2

    def fails(processes: SingleProcess, config: Config, text: str) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(launching, "make_processes", lambda config: Two())
    with pytest.raises(DaplError, match="another process of this run has ended"):
        launching.launch(configured(), fails, "[pair.cc:534] Connection closed by peer [10.0.0.2]:22816")
    with pytest.raises(RuntimeError, match="shapes differ"):
        launching.launch(configured(), fails, "shapes differ")
