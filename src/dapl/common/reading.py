"""The one door by which files are opened for reading: regular files only, of a sane size where they are read whole;
then JSON or YAML, then a schema. Whatever is wrong is a sentence that names the file and, where there is one, the
field.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from dapl.common.errors import BrokenError, DaplError, MissingError

T = TypeVar("T")

LARGEST = 1 << 28
"""Bytes of a text file; larger ones are not ours, and would fill the memory."""
LARGEST_DATA = 1 << 33
"""Bytes of a file of the user's that is read whole: annotations of millions of images have some gigabytes."""
LARGEST_CONFIG = 1 << 20
"""Characters of a config; larger text is none, and would take minutes to read."""
_MOST_NODES = 100_000
"""Values of a config with its aliases written out. Nine lines of nine aliases each would be 400 million."""


def open_regular(path: Path, advice: str) -> BinaryIO:
    """A regular file, open for reading. A pipe or a device, which may give nothing or never end, is refused at once.

    ``advice``: what to do where it is missing or broken, after a semicolon.

    >>> open_regular(Path("/dev/zero"), "name a file")
    Traceback (most recent call last):
    dapl.common.errors.BrokenError: /dev/zero: is a pipe or device and not a file; name a file.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError(f"{path}: no such file; {advice}.") from error
    except (OSError, ValueError) as error:
        raise BrokenError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); {advice}.") from error
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(file, "rb")
    os.close(file)
    kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
    raise BrokenError(f"{path}: is {kind} and not a file; {advice}.")


def regular_file(path: Path, advice: str) -> Path:
    """``path`` itself, for a library that opens files by their name, where `open_regular` would open it."""
    open_regular(path, advice).close()
    return path


def read_bytes(path: Path, advice: str, largest: int = LARGEST) -> bytes:
    """A regular file, whole."""
    with open_regular(path, advice) as stream:
        try:
            size = os.fstat(stream.fileno()).st_size
            if size > largest:
                raise BrokenError(f"{path}: {size:,} bytes are more than such a file has; {advice}.")
            return stream.read(size)
        except OSError as error:
            raise BrokenError(f"{path}: cannot be read ({error.strerror or error}); {advice}.") from error


def read_text(path: Path, advice: str, largest: int = LARGEST) -> str:
    """As `read_bytes`; the mark that some programs put before UTF-8 is left out."""
    try:
        return read_bytes(path, advice, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BrokenError(f"{path}: not text in UTF-8 ({error.reason} at byte {error.start}); {advice}.") from error


def file_digest(path: Path) -> str:
    """A digest of the content of a file: two files with the same digest hold the same bytes.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "weights"
    >>> _ = file.write_bytes(b"one")
    >>> len(file_digest(file))
    24
    """
    with open_regular(path, "put the file itself there") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()  # type: ignore[arg-type]


def parse_json(text: str, where: object, advice: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BrokenError(f"{where}: not JSON of ours (nested too deeply); {advice}.") from error
    except ValueError as error:
        raise BrokenError(f"{where}: not JSON ({error}); {advice}.") from error


def read_json(path: Path, advice: str, largest: int = LARGEST) -> Any:
    return parse_json(read_text(path, advice, largest), path, advice)


def parse_yaml(text: str, where: str) -> Any:
    """The value that a text says; where it says none, a sentence that begins with ``where``.

    Text that nests too deeply, or whose aliases stand for millions of values, is refused and not expanded.

    >>> parse_yaml("{classes: 3, fit: &fit crop, again: *fit}", "config")
    {'classes': 3, 'fit': 'crop', 'again': 'crop'}
    >>> parse_yaml("[1, 2", "config")
    Traceback (most recent call last):
    dapl.common.errors.DaplError: config: line 1 is not YAML (expected ',' or ']', but got '<stream end>').
    """
    if len(text) > LARGEST_CONFIG:
        raise DaplError(f"{where}: is not a config: it has {len(text):,} characters, and none has {LARGEST_CONFIG:,}.")
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            count = _count(node, {})
            if count > _MOST_NODES:
                raise DaplError(f"{where}: its aliases stand for more than {_MOST_NODES:,} values; write fewer.")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise DaplError(f"{where}:{line} is not YAML ({getattr(error, 'problem', None) or error}).") from error
    except RecursionError as error:
        raise DaplError(f"{where}: is nested too deeply for a config; write it flat.") from error
    except DaplError:
        raise
    except Exception as error:  # PyYAML's constructors raise nearly anything: `!!int x`, a month 13, `!!bool maybe`
        raise DaplError(f"{where}: has a value that is none of its type ({error}).") from error


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Nodes below and including this one, an alias counted as what it stands for; a node within itself is endless."""
    if id(node) not in known:
        known[id(node)] = _MOST_NODES + 1  # while it is looked at
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_count(child, known) for child in children)
    return known[id(node)]


def checked(value: Any, schema: type[T] | TypeAdapter[T], where: object, advice: str) -> T:
    """``value`` as the schema has it; the sentence of the first thing that is wrong names its field.

    >>> checked({"images": -1}, dict[str, int], "data.json", "train anew")
    {'images': -1}
    >>> checked({"images": "many"}, dict[str, int], "data.json", "train anew")
    Traceback (most recent call last):
    dapl.common.errors.BrokenError: data.json: images: input should be a valid integer, unable to parse string as an \
integer (got 'many'); train anew.
    """
    adapter = schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    except RecursionError as error:
        raise BrokenError(f"{where}: nested too deeply; {advice}.") from error
    field = ".".join(str(part) for part in first["loc"]) or "the file"
    message = first["msg"].removeprefix("Value error, ")
    raise BrokenError(f"{where}: {field}: {message[:1].lower()}{message[1:]} (got {_short(first['input'])}); {advice}.")


def read_as(path: Path, schema: type[T] | TypeAdapter[T], advice: str) -> T:
    """A JSON file as a schema has it: `read_json` and `checked`."""
    return checked(read_json(path, advice), schema, path, advice)


def _short(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    shown = repr(value[:60] if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


def refuse_links_out(folder: Path, names: frozenset[str] | None = None, within: Path | None = None) -> None:
    """Refuse links of ``folder`` that lead out of it (or out of ``within``): a folder made by somebody else is read
    with nothing but its own files, and written to nowhere else. ``names``: look at these entries only, and below them.
    """
    root = os.path.realpath(within or folder)
    for inside, folders, files in os.walk(folder):
        if names is not None and Path(inside) == folder:
            folders[:] = [name for name in folders if name in names]
            files = [name for name in files if name in names]
        for name in (*folders, *files):
            path = os.path.join(inside, name)
            if os.path.islink(path) and not os.path.realpath(path).startswith(root + os.sep):
                raise BrokenError(
                    f"{path}: is a link that leads out of {folder}; put the file itself there, if you trust it."
                )
