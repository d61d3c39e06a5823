"""Files are written, locked, removed and read in one place each: nothing in the source goes round it.

The rules are read off the source. Whoever needs a new way adds it to `dapl.common`, not to this list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dapl

PACKAGE = Path(dapl.__file__).parent
FILES, LOCKS, READING = "common/files.py", "common/locks.py", "common/reading.py"

WRITING = {"write_text", "write_bytes", "touch", "hardlink_to", "symlink_to", "rename"}
REMOVING = {"rmtree", "unlink", "rmdir", "removedirs"}
MOVING = {"os.replace", "os.rename", "os.link", "shutil.move", "shutil.copy", "shutil.copyfile", "shutil.copytree"}
MAKING = {"mkdir", "makedirs"}
SAVING = {"np.save", "np.savez", "torch.save", "save_file", ".save_file", "os.truncate"}

REASONS: dict[tuple[str, str], str] = {
    ("batches/pixels.py", "open"): "into files of `replacing`",
    ("batches/pixels.py", "np.save"): "the same",
    ("data/shards.py", "open"): "a tar, in a file that was opened through the door",
    ("batches/cache.py", "unlink"): "caches that gave way to others",
    ("experiments/sweep.py", "shutil.rmtree"): "its own new folder, under the lock of the sweep",
    ("prepare/faceforensics.py", "unlink"): "the manifest, under the lock of the folder, before the work begins anew",
    ("prepare/faceforensics_video.py", "np.save"): "into a folder of `replacing_folder`",
    ("prepare/faceforensics_video.py", "save"): "into a folder of `replacing_folder`",
    ("export/onnx_file.py", "save"): "into a folder of `replacing_folder`",
    ("common/files.py", "os.open"): "to sync it; it was written just before",
    ("common/files.py", "open"): "its last byte; it was opened to be appended to just before",
    ("common/locks.py", "os.open"): "a lock, which is opened to be written too, and that waits for nobody",
    ("cli/__init__.py", "os.open"): "the null device",
    ("batches/pixels.py", "Image.open"): "bytes in memory",
    ("training/loggers.py", "Image.open"): "bytes in memory",
    ("export/onnx_file.py", "onnxruntime.InferenceSession"): "the file that was written just before",
    ("common/liveness.py", "read_text"): "/proc",
    ("runs/provenance.py", "read_text"): "/proc",
    ("report/page.py", "read_bytes"): "styles and script of the package",
    ("evaluation/protocol.py", "read_bytes"): "the source of the package",
    ("report/split_sums.py", "read_bytes"): "the checkpoint, which was read through its door before",
}


def sources() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def called(node: ast.Call) -> str:
    """``os.replace``, ``.unlink`` (of some object) or ``open``."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    if isinstance(node.func, ast.Attribute):
        of = node.func.value
        return f"{of.id}.{node.func.attr}" if isinstance(of, ast.Name) and of.id in MODULES else f".{node.func.attr}"
    return ""


MODULES = {"os", "shutil", "np", "json", "fcntl", "filelock", "tempfile", "torch", "pickle"}


def text_of(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def opens_for_writing(node: ast.Call) -> bool:
    name = called(node)
    if name not in ("open", ".open"):
        return False
    modes = node.args[1:2] if name == "open" else node.args[:1]
    modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
    return any(set(text_of(mode)) & set("wax+") for mode in modes)


def in_a_replacing_block(tree: ast.AST) -> set[int]:
    """Lines within ``with replacing(…) as temporary``: what is written there is about to take its place."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and any(
            isinstance(item.context_expr, ast.Call)
            and called(item.context_expr).endswith(("replacing", "replacing_folder"))
            for item in node.items
        ):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Call) and called(node) == ".enter_context" and "replacing(" in ast.unparse(node):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def goes_round(name: str, tree: ast.AST) -> list[str]:
    """Calls that write, remove or move files outside of a ``with replacing(…)``."""
    covered, found = in_a_replacing_block(tree), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or node.lineno in covered:
            continue
        what = called(node)
        attribute = what.rpartition(".")[2]
        if (
            opens_for_writing(node)
            or (what.startswith(".") and attribute in WRITING | REMOVING | MAKING)
            or (what == ".replace" and len(node.args) == 1)  # of a path; that of a text takes two
            or what in MOVING | SAVING
            or (what.partition(".")[0] in ("os", "shutil") and attribute in REMOVING | MAKING)
        ) and not {(name, what), (name, attribute)} & REASONS.keys():
            found.append(f"{name}:{node.lineno}: {what}")
    return found


@pytest.mark.parametrize(
    "line",
    [
        'path.write_text("x")',
        'open(path, "w")',
        'path.open("ab")',
        'path.open(mode="x")',
        "os.replace(a, b)",
        "a.replace(b)",
        "shutil.rmtree(a)",
        "a.unlink()",
        "a.mkdir()",
        "os.makedirs(a)",
        "np.save(a, b)",
        "safetensors.torch.save_file(a, b)",
    ],
)
def test_the_rule_sees(line: str) -> None:
    assert goes_round("some/file.py", ast.parse(line))
    assert not goes_round("some/file.py", ast.parse(f"with replacing(path) as temporary:\n    {line}"))


def test_files_are_written_removed_and_moved_in_one_place() -> None:
    found = [line for name, tree in sources() if name not in (FILES, LOCKS) for line in goes_round(name, tree)]
    assert found == []


def test_memory_maps_that_are_written_have_their_room_on_the_disk() -> None:
    """A map of a sparse file ends the process with a signal where the disk is full."""
    found = [
        (name, node.lineno)
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and called(node) == ".open_memmap"
        and any("w" in text_of(argument) for argument in node.args)
    ]
    assert [name for name, _ in found] == ["batches/cache.py"]


def test_locks_are_taken_in_one_place() -> None:
    for name, tree in sources():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"fcntl", "filelock", "msvcrt"} & set(names) or name == LOCKS, name


def opens_for_reading(name: str, tree: ast.AST) -> list[str]:
    """Calls that read a file without asking first whether it is one: a pipe would be waited for."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        what = called(node)
        modes = [text_of(mode) for mode in [*node.args, *(keyword.value for keyword in node.keywords)]]
        reads = what in (".read_text", ".read_bytes", "json.load", "open", "os.open") or (
            what == ".open" and (not node.args or any(mode in ("r", "rb", "rt") for mode in modes))
        )
        if reads and not opens_for_writing(node) and (name, what.removeprefix(".")) not in REASONS:
            found.append(f"{name}:{node.lineno}: {what}")
    return found


@pytest.mark.parametrize(
    "line",
    ["path.read_text()", "path.read_bytes()", "open(path)", "path.open()", 'path.open("rb")', "os.open(path, 0)"],
)
def test_the_rule_of_reading_sees(line: str) -> None:
    assert opens_for_reading("some/file.py", ast.parse(line))


BY_NAME = {"Image.open", "av.open", "tarfile.open", "np.load", "np.memmap", "np.lib.format.open_memmap", "safe_open"}
BY_NAME |= {"safetensors.torch.load_file", "torch.load", "onnxruntime.InferenceSession"}
"""Libraries that open what they are given the name of, and would wait at a pipe."""


def opened_by_libraries(name: str, tree: ast.AST) -> list[str]:
    """Calls that leave the opening to a library: it may have what was opened or asked about at the door."""
    doors = ("open_regular", "regular_file", "_open", "io.BytesIO")
    streams = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and ast.unparse(item.context_expr).startswith(doors)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (what := ast.unparse(node.func)) in BY_NAME and (name, what) not in REASONS:
            given = [ast.unparse(one) for one in (*node.args, *(keyword.value for keyword in node.keywords))]
            if given[0] not in streams and not given[0].startswith(doors) and "'w+'" not in given:
                found.append(f"{name}:{node.lineno}: {what}")
    return found


@pytest.mark.parametrize("line", ["av.open(str(path))", "np.load(path)", "torch.load(path, weights_only=True)"])
def test_the_rule_of_libraries_sees(line: str) -> None:
    assert opened_by_libraries("some/file.py", ast.parse(line))
    through = line.replace("str(path)", "path").replace("(path", "(regular_file(path, 'x')")
    assert not opened_by_libraries("some/file.py", ast.parse(through))


def test_libraries_open_nothing_that_did_not_come_through_the_door() -> None:
    assert [line for name, tree in sources() for line in opened_by_libraries(name, tree)] == []


def test_files_are_opened_for_reading_through_one_door() -> None:
    found = [line for name, tree in sources() if name != READING for line in opens_for_reading(name, tree)]
    assert found == []


def test_nothing_but_the_door_turns_the_text_of_a_file_into_json() -> None:
    """``json.loads`` of a text that was made in the same program is no file: those places are listed."""
    texts = {
        "common/reading.py": "the door itself",
        "runs/run.py": "a line of metrics.jsonl, read through the door and checked by its schema",
        "evaluation/measurements.py": "what another process of the same evaluation said",
        "experiments/sweep_study.py": "values of a trial in the study's database",
        "experiments/comparison.py": "a config that pydantic wrote",
        "data/shards.py": "annotations of the user, which have errors of their own",
        "data/faceforensics_files.py": "prepared data, which has errors of its own",
    }
    users = {
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) in ("json.loads", "json.load")
    }
    assert users <= set(texts)


def test_the_exit_code_is_decided_in_one_place() -> None:
    """`main` turns what is raised into 2, 130 or 141; nothing else ends the program."""
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) in ("exit", "quit", "os._exit", ".exit"):
                # the others are processes that are not the command itself
                allowed = ("__main__.py", "cli/__init__.py", "common/liveness.py", "processes/launch.py")
                assert name in allowed, f"{name}:{node.lineno}"


@pytest.mark.parametrize("name", [FILES, LOCKS, READING])
def test_the_places_are_there(name: str) -> None:
    assert (PACKAGE / name).is_file()
