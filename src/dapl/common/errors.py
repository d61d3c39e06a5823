"""The one exception a user is meant to see: the command line prints it without a traceback and exits with 2.

And what its sentences are made of: what the system refused, the nearest known word, names of files that are not text.
"""

import difflib
import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class DaplError(Exception):
    """Something the user can put right. The message names the file or field, what was wrong and what to do."""


class LockedError(DaplError):
    """Another process is at work there."""


class MissingError(DaplError):
    """There is no such file."""


class BrokenError(DaplError):
    """There is a file, and it is not what it should be."""


class WriteError(DaplError):
    """A full or read-only disk, or a path that cannot be. What was there before is as it was."""


def original_message(text: str) -> str | None:
    """What a `DaplError` said in another process, from the traceback that came over; None where there is none."""
    found = list(re.finditer(r"dapl\.common\.errors\.\w+: ", text))
    return text[found[-1].end() :].strip() if found else None


_ADVICE = {
    (errno.ENOSPC, errno.EDQUOT): "free some space there, or name a folder on another disk",
    (errno.EROFS, errno.EACCES, errno.EPERM): "look at its permissions, or name another place",
    (errno.ENAMETOOLONG,): "give a shorter name",
    (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP): "look at the path, or name another place",
    (errno.EMFILE, errno.ENFILE): "close other programs, or raise the limit of open files with `ulimit -n`",
}


def said_by_system(error: OSError, where: object = None, what: str = "the system refused it") -> str:
    """What the system refused, as a sentence of ours; ``where`` is the path that a person knows.

    >>> said_by_system(OSError(errno.ENOSPC, "No space left on device"), "runs/birds", "cannot be written")
    'runs/birds: cannot be written (No space left on device); free some space there, or name a folder on another disk.'
    """
    place = where or error.filename or "dapl"
    advice = next((text for codes, text in _ADVICE.items() if error.errno in codes), "put it right and try again")
    return f"{place}: {what} ({error.strerror or error}); {advice}."


def nearest(word: str, known: Sequence[str]) -> str:
    """'; did you mean …?' where a known word is near, else the list of known ones."""
    near = difflib.get_close_matches(word[:200], known, n=1, cutoff=0.5)  # longer ones take minutes
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}."


def reason_of(error: BaseException) -> str:
    """What an exception of another library says, as much of it as fits into a sentence of ours.

    >>> reason_of(ValueError("no such layer\\nin the network")), reason_of(KeyError())
    ('ValueError: no such layer', 'KeyError')
    """
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])[:200]


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Within, the import of a package that is not there says which extra of dapl brings it.

    >>> with needing("dapl sweep needs Optuna", "sweep"):
    ...     import optuna2
    Traceback (most recent call last):
    dapl.common.errors.DaplError: dapl sweep needs Optuna (No module named 'optuna2'); pip install 'dapl[sweep]'.
    """
    try:
        yield
    except ImportError as error:
        raise DaplError(f"{what} ({error}); pip install 'dapl[{extra}]'.") from error


def is_text(name: str) -> bool:
    """Whether the name of a file can be written into a config, a table or a page.

    A file system holds bytes, and those of another encoding than UTF-8 cannot.

    >>> is_text("köln.jpg"), is_text(b"k\\xf6ln.jpg".decode("utf-8", "surrogateescape"))
    (True, False)
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def printable(name: str | Path) -> str:
    """The name of a file with its odd bytes as escapes, for sentences about it.

    >>> printable(b"k\\xf6ln.jpg".decode("utf-8", "surrogateescape"))
    'k\\\\xf6ln.jpg'
    """
    try:
        return str(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a character, as JSON can say it
        return str(name).encode("utf-8", "backslashreplace").decode()
