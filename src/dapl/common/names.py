"""Names of files need not be text: a file system holds bytes, and those of another encoding than UTF-8 cannot be
written into a config, a table or a page."""

from __future__ import annotations

from pathlib import Path


def is_text(name: str) -> bool:
    """Whether a name can be written.

    >>> is_text("köln.jpg"), is_text(b"k\\xf6ln.jpg".decode("utf-8", "surrogateescape"))
    (True, False)
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def printable(name: str | Path) -> str:
    """The name with its odd bytes as escapes, for sentences about it.

    >>> printable(b"k\\xf6ln.jpg".decode("utf-8", "surrogateescape"))
    'k\\\\xf6ln.jpg'
    """
    try:
        return str(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a character, as JSON can say it
        return str(name).encode("utf-8", "backslashreplace").decode()
