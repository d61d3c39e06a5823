"""Paths as a config writes them, and writing so that a reader never sees half a file or half a folder.

Every file that dapl writes goes through here. It is written beside its place under a name that says which process
writes it, synced to the disk (itself, then its folder), and takes its place in one step: a kill, a full disk or a loss
of power leaves the old file or the new one (what is made anew in a moment need not be synced). What a dead process
left is removed by the next one that writes into the folder. What the system refuses becomes a `WriteError` of one
sentence.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dapl.common.errors import BrokenError, DaplError, MissingError, WriteError, printable, said_by_system
from dapl.common.liveness import is_alive, this_process
from dapl.common.reading import read_text

_LEFTOVER = re.compile(r"^\.(?P<name>.+?)\.(?P<process>[0-9a-f]+-\d+-\d+|\d+)(?:\.(?P<which>new|old))?\.tmp$")
"""The temporary name of a file or folder; older versions named the process by its number alone."""
_OTHER_HOST_SECONDS = 86_400
"""Whether a process of another machine lives cannot be seen; what it has not touched for a day is left over."""
_TRIES = 10
_swept: set[Path] = set()
_staged: dict[Path, Path] = {}
"""Folders that are about to take the place of others: they are synced as a whole."""


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """What the system refuses within, or what cannot be written as text, is a `WriteError` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise WriteError(said_by_system(error, _known(path), "cannot be written")) from error
    except UnicodeEncodeError as error:
        odd = printable(error.object[max(0, error.start - 20) : error.end])
        raise WriteError(f"{_known(path)}: cannot be written, {odd} is not text in UTF-8; rename it.") from error


def _known(path: Path) -> Path:
    """The path that a person knows, where this one lies in a folder that is about to take its place."""
    for parent in (path, *path.parents):
        if parent in _staged:
            return _known(_staged[parent] / path.relative_to(parent))
    return path


def check_writable(folder: Path) -> None:
    """Before long work whose result goes there: what can be known without writing. The folder may be yet to be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    with refusing(folder):
        if not os.access(folder, os.W_OK):
            read_only = hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
            raise OSError(number, os.strerror(number))


def make_folder(folder: Path) -> Path:
    """The folder and those above it, where they do not exist."""
    with refusing(folder):
        if not folder.is_dir():  # asking is faster than being refused
            folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def replacing(path: Path, synced: bool = True) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on success it takes its place, on failure it is removed.

    ``synced``: False for what is made anew in a moment, should the power fail while it waits to be written to the disk.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "facts.txt"
    >>> with replacing(path) as temporary:
    ...     _ = temporary.write_text("whole")
    ...     path.exists()
    False
    >>> path.read_text()
    'whole'
    """
    make_folder(path.parent)
    _sweep_once(path.parent)
    temporary, placed = path.with_name(f".{path.name}.{this_process()}.tmp"), False
    try:
        with refusing(path):
            yield temporary
            synced = synced and not _is_staged(path)
            if synced:
                sync(temporary)
            os.replace(temporary, path)
            placed = True
            if synced:
                _sync_folder(path.parent)
    finally:
        if not placed:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: Path, check: Callable[[Path], None] = lambda folder: None) -> Iterator[Path]:
    """Yields an empty folder beside ``folder``; on success it takes its place, on failure nothing has changed.

    ``check(folder)`` raises where what is there must stay; it is asked before the work and again before the exchange.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "report"
    >>> with replacing_folder(target) as new:
    ...     write_text(new / "index.html", "whole")
    ...     target.exists()
    False
    >>> [path.name for path in target.iterdir()]
    ['index.html']
    """
    make_folder(folder.parent)
    _sweep_once(folder.parent)
    check(folder)
    new, old = (folder.with_name(f".{folder.name}.{this_process()}.{which}.tmp") for which in ("new", "old"))
    remove(new)
    with refusing(folder):
        new.mkdir()
    _staged[new] = folder
    try:
        with refusing(folder):
            yield new
        check(folder)  # something may have come there in the meantime
        with refusing(folder):
            _sync_tree(new)
            _exchange(new, folder, old)
            _sync_folder(folder.parent)
    finally:
        _staged.pop(new, None)
        remove(new)
        remove(old)


def _exchange(new: Path, folder: Path, old: Path) -> None:
    """``new`` takes the place of ``folder``; should that fail, what was there is put back."""
    for tries_left in range(_TRIES, -1, -1):
        if folder.exists():
            remove(old)
            os.replace(folder, old)
        try:
            os.replace(new, folder)
            return
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and tries_left:
                continue  # another process was between our two steps with its own: that is the older one now
            if old.exists():
                os.replace(old, folder)
            raise


def write_bytes(path: Path, content: bytes, synced: bool = True) -> None:
    with replacing(path, synced) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, synced: bool = True) -> None:
    write_bytes(path, _encoded(path, text), synced)


def _encoded(path: Path, text: str) -> bytes:
    with refusing(path):
        return text.encode("utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """As every JSON file of ours is written."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_new(path: Path, content: bytes) -> bool:
    """Whole or not at all, and never over a file that exists: False where there is one."""
    make_folder(path.parent)
    _sweep_once(path.parent)
    temporary = path.with_name(f".{path.name}.{this_process()}.tmp")
    with refusing(path):
        try:
            temporary.write_bytes(content)
            sync(temporary)
            try:
                os.link(temporary, path)  # unlike a rename, refuses to replace
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                if path.exists():
                    return False
                os.replace(temporary, path)
            _sync_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    return True


def append_line(path: Path, line: str) -> None:
    """Add one line to a file. A line that a kill cut short before is ended first; on failure the file is as it was.

    Against loss of power: `sync` the file before something is written that counts on its lines.
    """
    _append(path, _encoded(path, line) + b"\n")


def make_appendable(path: Path) -> None:
    """Before work whose lines will go there: the file is there and takes lines, or it is an error."""
    _append(path, b"")


def _append(path: Path, content: bytes) -> None:
    with refusing(path), path.open("ab") as file:
        before = file.tell()
        try:
            if content:
                file.write((b"" if _ends_whole(path, before) else b"\n") + content)
            file.flush()
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise


def _ends_whole(path: Path, size: int) -> bool:
    if not size:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def reserve(path: Path, size: int) -> None:
    """Take ``size`` bytes of the disk for a file that is there.

    A memory map of a sparse file dies of a signal, without a message, where the disk is full when a page is written.
    """
    with path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_TAG = "CACHEDIR.TAG"
_TAG_TEXT = """Signature: 8a477f597d28d172789f06886806bc55
# A folder of caches of dapl: safe to delete, and not worth a backup (https://bford.info/cachedir/).
"""
_CACHED = re.compile(r"[0-9a-f]{24}-(images|masks|annotations|parts|grid|features\S*)\.np[yz]")


def mark_as_cache(folder: Path) -> None:
    """Before a cache is written. Programs that make backups know the file, and `is_cache` does."""
    if not (folder / _TAG).exists():
        write_text(folder / _TAG, _TAG_TEXT)


def is_cache(folder: Path) -> bool:
    """Whether dapl has kept caches there, this version or an older one."""
    with suppress(MissingError, BrokenError):
        return read_text(folder / _TAG, "delete it") == _TAG_TEXT
    try:
        return any(_CACHED.fullmatch(entry.name) for entry in os.scandir(folder))
    except OSError:
        return False


# --- what dead processes left ---------------------------------------------------------------------------------------


def sweep(folder: Path) -> None:
    """Remove what dead processes were about to write into ``folder``; a folder that they had put aside comes back.

    What a living process is writing stays, so that no lock is needed.
    """
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.endswith(".tmp")]
    except OSError:
        return
    for found in filter(None, map(_LEFTOVER.match, names)):
        path = folder / found.string
        if not _is_left_over(path, found["process"]):
            continue
        if found["which"] == "old" and not (folder / found["name"]).exists():
            with suppress(OSError):  # killed between the two steps of an exchange
                os.replace(path, folder / found["name"])
                continue
        remove(path)


def sweep_all(folder: Path) -> None:
    """`sweep` the folder and every one below it."""
    for inside, _, _ in os.walk(folder):
        sweep(Path(inside))


def is_leftover(name: str) -> bool:
    """Whether a file of this name is about to become another, or was when its process died.

    >>> is_leftover(".config.yaml.4711.tmp"), is_leftover("config.yaml")
    (True, False)
    """
    return _LEFTOVER.match(name) is not None


def _is_left_over(path: Path, process: str) -> bool:
    alive = is_alive(process)
    if alive is not None:
        return not alive
    try:
        return time.time() - path.lstat().st_mtime > _OTHER_HOST_SECONDS
    except OSError:
        return False


def _sweep_once(folder: Path) -> None:
    """A command may write thousands of files into a folder, and looks through it once."""
    if _is_staged(folder / "file") or (key := folder.absolute()) in _swept:
        return
    _swept.add(key)
    sweep(folder)


def remove(path: Path) -> None:
    """A file, a link or a folder with all that is in it, if it is there; what cannot be removed stays."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_if_empty(folder: Path) -> None:
    """A folder that holds nothing; any other stays."""
    with suppress(OSError):
        folder.rmdir()


# --- to the disk ----------------------------------------------------------------------------------------------------


def _is_staged(path: Path) -> bool:
    return bool(_staged) and any(parent in _staged for parent in path.parents)


def sync(path: Path) -> None:
    """What was written to a file so far is on the disk after this, where that can be promised at all."""
    file = os.open(path, os.O_RDWR)
    try:
        fsync(file)
    finally:
        os.close(file)


fsync = os.fsync
"""By this name, so that tests can go without: it takes longer than all else that a tiny run does."""


def _sync_folder(folder: Path) -> None:
    """The names in it. Some file systems cannot, and keep them all the same."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            fsync(opened)
        finally:
            os.close(opened)


def _sync_tree(folder: Path) -> None:
    for inside, _, names in os.walk(folder):
        for name in names:
            sync(Path(inside) / name)
        _sync_folder(Path(inside))


def expand_path(value: str, field: str) -> Path:
    """~ and $VARIABLES; a variable that is not set is an error that names the field."""
    expanded = os.path.expanduser(os.path.expandvars(value))
    if "$" in expanded:
        variable = expanded[expanded.index("$") + 1 :].split("/")[0].strip("{}")
        raise DaplError(
            f"{field}: the environment variable {variable} is not set; set it, or pass --{field} with a path."
        )
    return Path(expanded)
