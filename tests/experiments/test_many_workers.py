"""Eight workers on one sweep, two of them killed: on real servers of PostgreSQL and MariaDB, and in one folder."""

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
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from dapl.experiments import sweep_study
from dapl.experiments.sweep_space import Choices, Panel, parse_objectives
from dapl.experiments.sweep_study import PanelStudy, open_storage, point_text

GRID = Panel("grid", "", (Choices("a", tuple(range(6))), Choices("b", (0.5, 1.5, 2.5))), {})
WORKERS = 8
BEATS = {"heartbeat_interval": 1, "grace_period": 6}
"""A living worker that a busy machine stops for longer than the grace period is taken for dead, as it should be."""


def _binaries(server: str, *names: str) -> list[str]:
    """The programs of a server, some of which Debian keeps out of the path."""
    folders = [*sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True), "/usr/sbin"]
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    found = [shutil.which(name, path=path) for name in names]
    if None in found:
        pytest.skip(f"no {server} on this machine; apt-get install {server}")
    return [name for name in found if name is not None]


@contextmanager
def _folder_of(user: str) -> Iterator[tuple[Path, list[str], int]]:
    """A folder for a server, what makes a command run as its user, and a free port: servers refuse to run as root.

    Not in pytest's folder, which every pytest closes to other users when it starts.
    """
    as_user: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix=f"dapl-{user}-"))
    try:
        if os.geteuid() == 0:
            try:
                entry = pwd.getpwnam(user)
            except KeyError:
                pytest.skip(f"the server does not run as root, and there is no user {user}")
            as_user = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        yield folder, as_user, port
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(words: list[str], folder: Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def _postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL of its own."""
    pytest.importorskip("psycopg", reason="pip install 'dapl[postgresql]'")
    initdb, pg_ctl = _binaries("postgresql", "initdb", "pg_ctl")
    with _folder_of("postgres") as (folder, as_user, port):
        data = ["-D", str(folder / "data")]
        _run([*as_user, initdb, *data, "-U", "dapl", "-A", "trust", "--no-sync"], folder)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        _run([*as_user, pg_ctl, *data, "-w", "-l", str(folder / "log"), "-o", options, "start"], folder)
        try:
            yield f"postgresql+psycopg://dapl@127.0.0.1:{port}/postgres"
        finally:
            _run([*as_user, pg_ctl, *data, "-m", "immediate", "stop"], folder)


@contextmanager
def _mysql() -> Iterator[str]:
    """The URL of a database on a MariaDB server of its own."""
    pymysql = pytest.importorskip("pymysql", reason="pip install 'dapl[mysql]'")
    install, mariadbd = _binaries("mariadb-server", "mariadb-install-db", "mariadbd")
    with _folder_of("mysql") as (folder, as_user, port):
        data = ["--no-defaults", f"--datadir={folder / 'data'}"]
        _run([*as_user, install, *data, "--auth-root-authentication-method=normal", "--skip-test-db"], folder)
        options = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={folder / 'socket'}"]
        options += [f"--pid-file={folder / 'pid'}", "--innodb-flush-log-at-trx-commit=0"]
        with (folder / "log").open("w") as log:
            server = subprocess.Popen([*as_user, mariadbd, *data, *options], cwd=folder, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 60
            while True:
                assert server.poll() is None, (folder / "log").read_text()
                try:
                    connection = pymysql.connect(host="127.0.0.1", port=port, user="root")
                    break
                except pymysql.err.OperationalError:  # not yet
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.1)
            with connection, connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE dapl")
            yield f"mysql+pymysql://root@127.0.0.1:{port}/dapl"
        finally:
            server.kill()
            server.wait()


SERVERS = {"postgresql": _postgresql, "mysql": _mysql}


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
@pytest.mark.parametrize("shared", [*SERVERS, "folder"])
def test_no_point_is_lost_or_finished_twice(shared: str, tmp_path: Path) -> None:
    with SERVERS.get(shared, nullcontext)() as url:
        _kill_two_of_eight(url, tmp_path)


def _kill_two_of_eight(url: str | None, tmp_path: Path) -> None:
    """On a database each worker has a folder of its own, as on machines that share nothing else."""
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
    numbers = [trial.number for trial in study._all()]
    assert sorted(numbers) == list(range(len(numbers))), "the lower number has a point: no two trials may have the same"
    begun = collections.Counter(line.partition(" ")[2] for line in started.read_text().splitlines())
    again = {point for point, times in begun.items() if times > 1}
    silent = {sweep_study._point(trial) for trial in study._all(sweep_study.TrialState.FAIL)}
    assert set(killed.values()) <= again <= silent, "only what a killed or silent worker had may begin again"
