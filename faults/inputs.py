"""Bad inputs: files of every kind that dapl reads, mutated, and command lines that ask for the impossible."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from faults.material import Material, encoded_images
from faults.mutate import NASTY, broken_bytes, broken_json, broken_table, broken_yaml
from faults.results import Tally
from faults.running import Case, Crew, Fault, Outcome

SHARES = {
    "images": 0.22,
    "images of a data set": 0.05,
    "configs": 0.18,
    "tables of keypoints": 0.09,
    "COCO files": 0.15,
    "weights and checkpoints": 0.08,
    "files of a run": 0.14,
    "entries of a run": 0.04,
    "command lines": 0.05,
}
"""Of all bad inputs."""
_PER_PROCESS = 20
"""Images that one child reads."""


def campaign(
    material: Material, crew: Crew, count: int, seed: int, kinds: Collection[str] = tuple(SHARES)
) -> Iterator[Tally]:
    makers = {
        "images": _images,
        "images of a data set": _dataset_images,
        "configs": _configs,
        "tables of keypoints": _tables,
        "COCO files": _coco,
        "weights and checkpoints": _weights,
        "files of a run": _run_files,
        "entries of a run": _run_entries,
        "command lines": _words,
    }
    for name, share in ((name, SHARES[name]) for name in kinds):
        tally, wanted = Tally(name), max(1, round(share * count))
        per_case = _PER_PROCESS if name == "images" else 1
        for outcome in crew.run(makers[name](material, -(-wanted // per_case), seed)):
            tally.add(outcome.faults, outcome.refused, per_case)
        yield tally


def _rng(seed: int, kind: str, number: int) -> random.Random:
    return random.Random(f"{seed}/{kind}/{number}")


def _write_or_no_file(path: Path, content: bytes, rng: random.Random) -> None:
    """Sometimes a pipe that nobody writes to, an endless device, a folder or nothing is in its place."""
    kind = rng.randrange(60)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to(rng.choice(["/dev/zero", "/dev/tty", "nowhere", path.name]))
    elif kind == 2:
        path.mkdir()
    else:
        path.write_bytes(content)


def _images(material: Material, count: int, seed: int) -> Iterator[Case]:
    """Each child reads some files: an image or a `DaplError`, and nothing else."""
    from dapl.common.errors import DaplError
    from dapl.data.images import read_image, read_mask

    good = encoded_images()

    def read(folder: Path, rng: random.Random) -> int:
        for number in range(_PER_PROCESS):
            suffix = rng.choice(sorted(good))
            path = folder / f"{number}.{suffix}"
            path.write_bytes(broken_bytes(good[suffix], rng))
            for reader in (read_image, read_mask):
                try:
                    reader(path)
                except DaplError:
                    continue
        return 0

    for number in range(count):
        rng = _rng(seed, "images", number)
        yield Case(f"images {number}", lambda folder, rng=rng: read(folder, rng), (0,))


def _dataset_images(material: Material, count: int, seed: int) -> Iterator[Case]:
    good = encoded_images()

    def work(folder: Path, rng: random.Random) -> list[str]:
        data = folder / "data"
        shutil.copytree(material.folder, data)
        place = rng.choice(["owl", "finch", "masks/owl"])
        kind, path = rng.randrange(10), data / place / "0.png"
        path.unlink()
        odd = os.fsdecode(b"k\xf6ln")
        if kind == 0:
            os.mkfifo(path)
        elif kind == 1:
            path.symlink_to("/dev/zero")
        elif kind == 2:
            path.symlink_to("nowhere")
        elif kind == 3:
            path.mkdir()
        elif kind == 4:
            (data / place / f"{odd}.png").write_bytes(good["png"])
        elif kind == 5:
            (data / place / ("x" * 250 + ".png")).write_bytes(good["png"])
        elif kind == 6:
            data = data.rename(folder / odd)
        elif kind == 7:
            (data / place).rename(data / odd)
        else:
            path.write_bytes(broken_bytes(good["png"], rng))
        if rng.random() < 0.5:
            return ["prepare", "check", str(data), "--quiet", "--data.image_size", "32"]
        return ["explain", str(material.run), str(path), "--format", "json", "--out", str(folder / "out")]

    for number in range(count):
        rng = _rng(seed, "dataset", number)
        yield Case(f"data set {number}", lambda folder, rng=rng: work(folder, rng), (0, 1, 2))


def _configs(material: Material, count: int, seed: int) -> Iterator[Case]:
    """A config whose data is not there: whatever is wrong, or nothing, the command is refused, and makes no run."""
    text = material.config.read_text().replace("name: toybirds", "name: folder\n  root: nowhere")
    for line in ("  classes: 3\n", "  images_per_class: 6\n", "  test_images_per_class: 2\n"):
        text = text.replace(line, "")

    def work(folder: Path, rng: random.Random) -> list[str]:
        config = folder / "run.yaml"
        _write_or_no_file(config, broken_yaml(text, rng), rng)
        return ["train", str(config), "--out", str(folder / "out"), "--data.name=folder", "--data.root=nowhere"]

    for number in range(count):
        rng = _rng(seed, "configs", number)
        yield Case(f"config {number}", lambda folder, rng=rng: work(folder, rng), (2,), check=_no_run)


def _no_run(outcome: Outcome) -> list[Fault]:
    left = [path.name for path in outcome.folder.iterdir() if path.name not in ("run.yaml", "data")]
    return [("half-written", f"{outcome.case.label}: left {left}")] if left else []


def _tables(material: Material, count: int, seed: int) -> Iterator[Case]:
    text = (material.folder / "keypoints.csv").read_text()

    def work(folder: Path, rng: random.Random) -> list[str]:
        table = folder / "keypoints.csv"
        _write_or_no_file(table, broken_table(text, rng), rng)
        words = ["prepare", "check", str(material.folder), "--quiet", "--out", str(folder / "check")]
        return [*words, "--data.keypoints", str(table), "--data.image_size", "32"]

    for number in range(count):
        rng = _rng(seed, "tables", number)
        yield Case(f"table {number}", lambda folder, rng=rng: work(folder, rng), (0, 1, 2), check=_whole_json)


def _coco(material: Material, count: int, seed: int) -> Iterator[Case]:
    text = material.coco.read_text()

    def work(folder: Path, rng: random.Random) -> list[str]:
        file = folder / "coco.json"
        _write_or_no_file(file, broken_json(text, rng), rng)
        words = ["prepare", "check", str(file), "--quiet", "--out", str(folder / "check")]
        return [*words, "--data.images", str(material.root), "--data.image_size", "32"]

    for number in range(count):
        rng = _rng(seed, "coco", number)
        yield Case(f"COCO {number}", lambda folder, rng=rng: work(folder, rng), (0, 1, 2), check=_whole_json)


def _whole_json(outcome: Outcome) -> list[Fault]:
    """What was written is whole; a command that was refused wrote nothing that looks like a result."""
    faults: list[Fault] = []
    for path in outcome.folder.rglob("*"):
        if path.name.endswith(".tmp"):
            faults.append(("half-written", f"{outcome.case.label}: {path.name}"))
        elif path.parent.name == "check" and path.suffix == ".json":
            try:
                json.loads(path.read_text())
            except ValueError as error:
                faults.append(("half-written", f"{outcome.case.label}: {path.name}: {error}"))
    return faults


def _copy(material: Material, folder: Path) -> Path:
    run = folder / "run"
    shutil.copytree(material.run, run, ignore=shutil.ignore_patterns("report", "tensorboard", "metrics"))
    return run


_EXPLAIN = ("explain", "{run}", "{image}", "--format", "json", "--out", "{out}")
_COMMANDS = {
    "explain": _EXPLAIN,
    "evaluate": ("evaluate", "{run}", "--metrics", "accuracy,coverage", "--no-chance"),
    "report": ("report", "{run}", "--images", "1", "--out", "{out}"),
    "export": ("export", "{run}", "--format", "hub", "--out", "{out}"),
    "resume": ("train", "--resume", "{run}"),
}


def command(name: str, run: Path, material: Material, out: Path) -> list[str]:
    """The words of a command on a run."""
    places = {"run": str(run), "image": str(material.image), "out": str(out)}
    return [word.format(**places) for word in _COMMANDS[name]]


def _weights(material: Material, count: int, seed: int) -> Iterator[Case]:
    def work(folder: Path, rng: random.Random) -> list[str]:
        run = _copy(material, folder)
        name = rng.choice(["best", "last"])
        file = run / "checkpoints" / f"{name}.safetensors"
        if rng.random() < 0.15:
            weights = rng.choice([file, material.image, material.config, material.coco, Path("/dev/zero"), run])
            words = ["train", str(material.config), "--out", str(folder / "out"), "--schedule.0.epochs", "1"]
            return [*words, "--model.backbone.weights", str(weights)]
        file.write_bytes(broken_bytes(file.read_bytes(), rng) if rng.random() < 0.6 else _nan(file, rng))
        chosen = "resume" if name == "last" else rng.choice(["explain", "evaluate", "export"])
        return command(chosen, run, material, folder / "out")

    for number in range(count):
        rng = _rng(seed, "weights", number)
        yield Case(f"weights {number}", lambda folder, rng=rng: work(folder, rng), (0, 2), 120)


def _nan(file: Path, rng: random.Random) -> bytes:
    """One tensor is not finite."""
    import safetensors.torch
    import torch
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    state = safetensors.torch.load_file(file)
    floats = sorted(name for name, tensor in state.items() if tensor.is_floating_point() and tensor.numel())
    state[rng.choice(floats)].view(-1)[0] = rng.choice([float("nan"), float("inf")])
    torch.manual_seed(0)
    return safetensors.torch.save(state, metadata)


def _run_files(material: Material, count: int, seed: int) -> Iterator[Case]:
    names = sorted(
        str(path.relative_to(material.run))
        for path in material.run.glob("*")
        if path.suffix in (".json", ".jsonl", ".yaml")
    )
    readers = {"metrics.jsonl": ("report", "resume"), "metrics.json": ("report", "export")}

    def work(folder: Path, rng: random.Random) -> list[str]:
        run, name = _copy(material, folder), rng.choice(names)
        path = run / name
        if name.endswith(".yaml"):
            path.write_bytes(broken_yaml(path.read_text(), rng))
        elif name.endswith(".jsonl"):
            lines = path.read_text().splitlines()
            place = rng.randrange(len(lines))
            lines[place] = broken_json(lines[place], rng).decode("utf-8", "replace")
            path.write_text("\n".join(lines))
        else:
            path.write_bytes(broken_json(path.read_text(), rng))
        return command(rng.choice(readers.get(name, tuple(_COMMANDS))), run, material, folder / "out")

    for number in range(count):
        rng = _rng(seed, "run files", number)
        yield Case(f"run file {number}", lambda folder, rng=rng: work(folder, rng), (0, 2), 120)


def _run_entries(material: Material, count: int, seed: int) -> Iterator[Case]:
    """Files that are gone, empty, folders, pipes, links to nowhere or to endless devices."""
    names = sorted(str(path.relative_to(material.run)) for path in material.run.glob("*") if path.is_file())
    names += [f"checkpoints/{path.name}" for path in sorted((material.run / "checkpoints").iterdir())]

    def work(folder: Path, rng: random.Random) -> list[str]:
        run = _copy(material, folder)
        path = run / rng.choice(names)
        path.unlink()
        kind = rng.randrange(6)
        if kind == 0:
            path.mkdir()
        elif kind == 1:
            os.mkfifo(path)
        elif kind == 2:
            path.symlink_to(rng.choice(["nowhere", "/dev/zero", "/dev/null", str(path.name)]))
        elif kind == 3:
            path.write_bytes(b"")
        return command(rng.choice(list(_COMMANDS)), run, material, folder / "out")

    for number in range(count):
        rng = _rng(seed, "entries", number)
        yield Case(f"run entry {number}", lambda folder, rng=rng: work(folder, rng), (0, 2), 120)


def _words(material: Material, count: int, seed: int) -> Iterator[Case]:
    fields = ("seed", "data.classes", "data.image_size", "data.images_per_class", "model.heads", "model.head_dim")
    fields += ("runtime.workers", "runtime.devices", "schedule.0.epochs", "schedule.0.batch_size", "schedule.9.x")
    fields += ("schedule.².epochs", "model.backbone.name", "model.backbone.stages", "loss.cluster", "runtime.precision")
    options = ("--tau", "--percentile", "--metrics", "--split", "--region", "--radius", "--attack-images", "--control")
    texts = sorted(
        {str(value).replace("\x00", "") for value in NASTY if not isinstance(value, str) or value.isprintable()}
    )

    def work(folder: Path, rng: random.Random) -> list[str]:
        value = rng.choice([text for text in texts if len(text) < 6000])
        absurd = rng.choice([value, "1000000000", "-1", "1e999", "nan", "99999999999999999999999"])
        if rng.random() < 0.6:
            words = ["train", str(material.config), "--out", str(folder / "out")]
            return [*words, "--schedule.0.epochs", "1", f"--{rng.choice(fields)}={absurd}"]
        if rng.random() < 0.5:
            return ["evaluate", str(material.run), "--no-chance", f"{rng.choice(options)}={absurd}"]
        return [rng.choice(["explain", "report", "serve", "export", "compare", "chance"]), absurd or "x", absurd or "x"]

    for number in range(count):
        rng = _rng(seed, "words", number)
        yield Case(f"words {number}", lambda folder, rng=rng: work(folder, rng), (0, 1, 2), 180)
