"""Eight workers on one sweep, two of them killed: on a real PostgreSQL server, and on a folder that they share."""

from __future__ import annotations

import collections
import multiprocessing
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dapl.experiments import sweep_study
from dapl.experiments.sweep_space import Choices, Panel, parse_objectives
from dapl.experiments.sweep_study import PanelStudy, open_storage, point_text

GRID = Panel("grid", "", (Choices("a", tuple(range(6))), Choices("b", (0.5, 1.5, 2.5))), {})
WORKERS = 8
BEATS = {"heartbeat_interval": 1, "grace_period": 6}
"""A living worker that a busy machine stops for longer than the grace period is taken for dead, as it should be."""


def _binary(name: str) -> str | None:
    """Debian keeps the server's programs out of the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL of its own, on a free port of this machine; it refuses to run as root.

    Not in pytest's folder, which every pytest closes to other users when it starts.
    """
    pytest.importorskip("psycopg", reason="pip install 'dapl[postgresql]'")
    initdb, pg_ctl = _binary("initdb"), _binary("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL is not installed; apt-get install postgresql")
    as_user: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="dapl-postgresql-"))
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        os.chown(folder, user.pw_uid, user.pw_gid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"

    def run(*words: str) -> None:
        done = subprocess.run([*as_user, *words], capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    run(initdb, "-D", str(data), "-U", "dapl", "-A", "trust", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
    run(pg_ctl, "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql+psycopg://dapl@127.0.0.1:{port}/postgres"
    finally:
        run(pg_ctl, "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def _work(folder: Path, started: Path, url: str | None, hangs: bool) -> None:
    """Take points until there are none; one that hangs holds its second point until it is killed."""
    sweep_study.DATABASE_HEARTBEAT = sweep_study.FOLDER_HEARTBEAT = BEATS
    folder.mkdir(exist_ok=True)
    storage, lock = open_storage(url, folder)
    study = PanelStudy("many workers", GRID, parse_objectives(["accuracy"]), storage, lock, None, 0)
    taken, last = 0, time.monotonic()
    while time.monotonic() - last < 2.5 * BEATS["grace_period"]:  # others may die: their points come back
        claimed = study.claim()
        if claimed is None:
            if study.counts()[0] == study.total():
                return
            time.sleep(0.3)
            continue
        trial, values = claimed
        taken, last = taken + 1, time.monotonic()
        with started.open("a") as file:
            file.write(f"{os.getpid()} {point_text(values)}\n")
        with study.heartbeat(trial):
            time.sleep(600 if hangs and taken == 2 else 0.05)
        study.finish(trial, [float(values["a"])], {"by": os.getpid()})


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["database", "folder"])
def test_no_point_is_lost_or_finished_twice(shared: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """On the database each worker has a folder of its own, as on machines that share nothing else."""
    url = request.getfixturevalue("server") if shared == "database" else None
    started = tmp_path / "started.txt"
    started.touch()
    start = multiprocessing.get_context("fork").Process
    workers = []
    for number in range(WORKERS):
        folder = tmp_path / (f"host {number}" if url else "shared")
        workers.append(start(target=_work, args=(folder, started, url, number < 2)))
        workers[-1].start()
    killed: dict[int, str] = {}
    until = time.monotonic() + 300
    while len(killed) < 2 and time.monotonic() < until:
        taken = collections.defaultdict(list)
        for line in started.read_text().splitlines():
            process, _, point = line.partition(" ")
            taken[int(process)].append(point)
        for worker in workers[:2]:
            if len(taken[worker.pid]) == 2 and worker.pid not in killed:  # it holds its second point
                os.kill(worker.pid, signal.SIGKILL)
                killed[worker.pid] = taken[worker.pid][1]
        if all(not worker.is_alive() for worker in workers):
            break
        time.sleep(0.05)
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers[2:]] == [0] * (WORKERS - 2)

    folder = tmp_path / ("host 2" if url else "shared")
    study = PanelStudy("many workers", GRID, parse_objectives(["accuracy"]), *open_storage(url, folder), None, 0)
    points = sorted(map(point_text, GRID.points()))
    assert sorted(point_text(values) for _, values, _ in study.finished()) == points
    complete = collections.Counter(trial.user_attrs["point"] for trial in study._all(sweep_study.TrialState.COMPLETE))
    assert set(complete.values()) == {1}, "a point was finished twice"
    begun = collections.Counter(line.partition(" ")[2] for line in started.read_text().splitlines())
    again = {point for point, times in begun.items() if times > 1}
    silent = {sweep_study._point(trial) for trial in study._all(sweep_study.TrialState.FAIL)}
    assert set(killed.values()) <= again <= silent, "only what a killed or silent worker had may begin again"
