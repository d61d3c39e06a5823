"""`make bench-peers`: dapl beside CaBRNet on the same images, backbone and 2,000 prototypes, command by command.

    python -m benchmarks.peers build/peers/bin/python build/peers/work 10

The first argument is the Python that has CaBRNet, the second a folder to work in, the third how many training images a
class has. Commands that were measured in that folder are not run again. Both train a ProtoPNet on a frozen ResNet-18
(its third stage, 6×6 places at 96 px) with the same weights, losses and epochs, in one thread each. Seconds are those
of the processor, so that others on the machine do not count. Where the two are not quite the same, CaBRNet has the
advantage: Graphviz, which draws its pages, is left out, and its part alone is counted where dapl's whole stage or
command is.

Both train a second time with more epochs: an epoch costs CaBRNet a pass of the backbone and dapl none, so that the
ratio of the two depends on their number. ``epochs`` of build/peers.json has what one more costs, and what all costs
with as many as CaBRNet's own configuration has, computed from the two lengths.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLASSES, PROTOTYPES = 100, 2000
EPOCHS, LAST_LAYER_EPOCHS, BATCH = 5, 10, 80
MORE_EPOCHS = 10
"""Of the second training. From the eleventh on CaBRNet also projects now and then, and trains the last layer again."""
PUBLISHED_EPOCHS = 100
"""``num_epochs`` of configs/protopnet/cub200/training.yml in CaBRNet's repository. It trains the backbone from
the tenth on, where an epoch costs more than here."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

GENERIC, PROTOPNET = "cabrnet.archs.generic.model:CaBRNet", "cabrnet.archs.protopnet.model:ProtoPNet"
TRAINER = "dapl.training.trainer:Trainer"
COMMANDS: dict[str, dict[str, Any]] = {
    "train": {
        "cabrnet": "train -c cabrnet -o theirs --device cpu",
        "timed of cabrnet": f"{GENERIC}._train_epoch,{GENERIC}.project,{PROTOPNET}.prune",
        "dapl": "train dapl.yaml --out ours",
        "timed of dapl": f"{TRAINER}._fit,{TRAINER}._project,{TRAINER}._prune_impure,{TRAINER}._last_layer",
    },
    "evaluate": {
        "cabrnet": "evaluate -c theirs/final --device cpu",
        "dapl": "evaluate ours",
    },
    "render": {
        "cabrnet": "explain_global -c theirs/final -z cabrnet/visualization.yml -o theirs/global --device cpu",
        "timed of cabrnet": f"{GENERIC}.extract_prototypes",
        "dapl": "report ours",
    },
    "explain": {
        "cabrnet": "explain_local -c theirs/final -z cabrnet/visualization.yml -o theirs/local "
        "-y theirs/global/prototypes -i image.jpg --device cpu",
        "dapl": "explain ours image.jpg",
    },
}
TRAIN_LONGER = {
    "cabrnet": "train -c cabrnet-longer -o theirs-longer --device cpu",
    "dapl": "train dapl-longer.yaml --out ours-longer --cache.folder cache-longer",  # whose caches are empty too
}
MAIN = {"cabrnet": "cabrnet.main:main", "dapl": "dapl.cli:main"}
LEFT_OUT = {"cabrnet": "graphviz:Graph.render,graphviz:Digraph.render", "dapl": "-"}


def prepare(cub: Path, folder: Path, per_class: int) -> None:
    """The same images for both, linked out of CUB into folders of classes; one file of weights that both can read."""
    import torch

    import dapl
    from dapl.common.operators import timm

    listed = [line.split() for line in (cub / "images.txt").read_text().splitlines()]
    every = 200 // CLASSES  # of the classes, as `data.classes` takes them
    trains = {
        line.split()[0]: line.split()[1] == "1" for line in (cub / "train_test_split.txt").read_text().splitlines()
    }
    by_class = {name: list(group) for name, group in groupby(listed, key=lambda row: row[1].partition("/")[0])}
    for name, files in list(by_class.items())[::every]:
        of_training = [path for number, path in files if trains[number]]
        chosen = {
            "train": of_training[:per_class],
            "val": of_training[per_class : per_class + 1],
            "test": [path for number, path in files if not trains[number]][:2],
        }
        for split, paths in chosen.items():
            target = folder / "data" / split / name
            target.mkdir(parents=True, exist_ok=True)
            for path in paths:
                (target / Path(path).name).symlink_to((cub / "images" / path).resolve())
    first = next(iter(sorted((folder / "data" / "test").glob("*/*"))))
    shutil.copyfile(first, folder / "image.jpg")
    shutil.copytree(HERE / "cabrnet", folder / "cabrnet")
    shutil.copy(HERE / "dapl.yaml", folder)
    compileall.compile_dir(Path(dapl.__file__).parent, quiet=1)  # as pip does with what it installs, CaBRNet too
    write_longer(folder)
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet18", num_classes=1000).state_dict(), folder / "backbone.pth")


def write_longer(folder: Path) -> None:
    """The configurations of both with more epochs."""
    import yaml

    shutil.copytree(folder / "cabrnet", folder / "cabrnet-longer")
    theirs = yaml.safe_load((folder / "cabrnet" / "training.yml").read_text(encoding="utf-8"))
    theirs["num_epochs"] = MORE_EPOCHS
    theirs["periods"]["warmup"]["epoch_range"] = [0, MORE_EPOCHS - 1]
    (folder / "cabrnet-longer" / "training.yml").write_text(yaml.safe_dump(theirs), encoding="utf-8")
    ours = yaml.safe_load((folder / "dapl.yaml").read_text(encoding="utf-8"))
    ours["schedule"][0]["epochs"] = MORE_EPOCHS
    (folder / "dapl-longer.yaml").write_text(yaml.safe_dump(ours), encoding="utf-8")


def measure(folder: Path, python: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What `timed` reports of each command, ``"train dapl"``; the two programs take turns."""
    found = {}
    for name, command in {**COMMANDS, "train longer": TRAIN_LONGER}.items():
        for program in ("cabrnet", "dapl"):
            report = folder / f"{name.replace(' ', '-')}-{program}.json"
            if not report.exists():
                timed = command.get(f"timed of {program}", "-")
                arguments = [str(HERE / "timed.py"), str(report), MAIN[program], LEFT_OUT[program], timed, "--"]
                with open(report.with_suffix(".log"), "w", encoding="utf-8") as log:
                    done = subprocess.run(
                        [python[program], *arguments, *command[program].split()],
                        cwd=folder,
                        env=_environment(),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                if done.returncode:
                    lines = Path(log.name).read_text(encoding="utf-8").splitlines()
                    sys.exit(
                        f"{program} {command[program]}: exit code {done.returncode}; the end of {log.name}:\n"
                        + "\n".join(lines[-20:])
                    )
            found[f"{name} {program}"] = json.loads(report.read_text(encoding="utf-8"))
            print(f"{name:13s}{program:8s}{found[f'{name} {program}']['total']:9.1f} s", file=sys.stderr, flush=True)
    return found


def _environment() -> dict[str, str]:
    """One thread, and the C library's memory as users have it: to set it here would speed up both."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | ENVIRONMENT


def rows(found: dict[str, dict[str, Any]], images: int) -> list[dict[str, Any]]:
    """What was measured, for both: seconds of the processor, memory, and what a user has to write."""

    def calls(of: str, ending: str) -> list[float]:
        (taken,) = [value for name, value in found[of]["seconds"].items() if name.endswith(ending)]
        return taken

    steps = EPOCHS * -(-images // BATCH)
    epochs = calls("train cabrnet", "_train_epoch")
    theirs, ours = ([found[f"{name} {program}"] for name in COMMANDS] for program in ("cabrnet", "dapl"))
    table = [
        ("training step", "s", sum(epochs[:EPOCHS]) / steps, sum(calls("train dapl", "_fit")) / steps),
        ("projection", "s", calls("train cabrnet", "project")[0], calls("train dapl", "_project")[0]),
        ("pruning", "s", sum(calls("train cabrnet", "prune")), sum(calls("train dapl", "_prune_impure"))),
        (f"last layer, {LAST_LAYER_EPOCHS} epochs", "s", sum(epochs[EPOCHS:]), sum(calls("train dapl", "_last_layer"))),
        ("training, the whole command", "s", theirs[0]["total"], ours[0]["total"]),
        ("evaluation", "s", found["evaluate cabrnet"]["total"], found["evaluate dapl"]["total"]),
        (
            "rendering all prototypes",
            "s",
            sum(calls("render cabrnet", "extract_prototypes")),
            found["render dapl"]["total"],
        ),
        ("one explanation", "s", found["explain cabrnet"]["total"], found["explain dapl"]["total"]),
        ("end to end, the four commands", "s", _sum(theirs, "total"), _sum(ours, "total")),
        (f"the four commands with {MORE_EPOCHS} epochs", "s", *(_with_more_epochs(found, of) for of in MAIN)),
        ("peak memory", "GB", max(one["memory_gb"] for one in theirs), max(one["memory_gb"] for one in ours)),
        ("commands", "", len(COMMANDS), len(COMMANDS)),
        ("lines of YAML", "", lines_of_yaml((HERE / "cabrnet").glob("*.yml")), lines_of_yaml([HERE / "dapl.yaml"])),
    ]
    return [{"what": what, "unit": unit, "cabrnet": one, "dapl": other} for what, unit, one, other in table]


def _with_more_epochs(found: dict[str, dict[str, Any]], program: str) -> float:
    """Seconds of the longer training and of the other commands, which do not depend on the epochs."""
    return _sum([found[f"{name} {program}"] for name in COMMANDS if name != "train"], "total") + float(
        found[f"train longer {program}"]["total"]
    )


def by_epochs(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Seconds of one more epoch, and of all four commands with as many epochs as CaBRNet's configuration has.

    The training commands of two lengths give a line; the other commands do not depend on the epochs.
    """
    result: dict[str, Any] = {"measured": [EPOCHS, MORE_EPOCHS], "published": PUBLISHED_EPOCHS}
    for program in ("cabrnet", "dapl"):
        short, longer = (found[f"{name} {program}"]["total"] for name in ("train", "train longer"))
        per_epoch = (longer - short) / (MORE_EPOCHS - EPOCHS)
        fixed = _sum([found[f"{name} {program}"] for name in COMMANDS], "total") - EPOCHS * per_epoch
        result[program] = {"fixed": fixed, "per_epoch": per_epoch, "computed": fixed + PUBLISHED_EPOCHS * per_epoch}
    return result


def _sum(reports: Sequence[dict[str, Any]], name: str) -> float:
    return sum(report[name] for report in reports)


def lines_of_yaml(files: Any) -> int:
    return sum(1 for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.strip())


def shown(table: Sequence[dict[str, Any]]) -> str:
    lines = ["| what | CaBRNet | dapl | CaBRNet / dapl |", "|---|---|---|---|"]
    for row in table:
        unit = f" {row['unit']}" if row["unit"] else ""
        ratio = row["cabrnet"] / row["dapl"]
        lines.append(f"| {row['what']} | {row['cabrnet']:.3g}{unit} | {row['dapl']:.3g}{unit} | {ratio:.3g} |")
    return "\n".join(lines)


def version_of(python: str) -> str:
    """Of the CaBRNet that this Python has."""
    code = "import importlib.metadata; print(importlib.metadata.version('cabrnet'))"
    return subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    from dapl.common.files import write_json
    from dapl.runs.provenance import provenance

    peer, folder, per_class = sys.argv[1], Path(sys.argv[2]).resolve(), int(sys.argv[3])
    if "DAPL_CUB" not in os.environ:
        sys.exit("bench-peers needs CUB-200-2011: set DAPL_CUB to its folder.")
    if not folder.exists():
        prepare(Path(os.environ["DAPL_CUB"]), folder, per_class)
    found = measure(folder, {"cabrnet": str(Path(peer).absolute()), "dapl": sys.executable})
    images = {split: len(list((folder / "data" / split).glob("*/*"))) for split in ("train", "val", "test")}
    table = rows(found, images["train"])
    epochs = by_epochs(found)
    print(shown(table))
    for program in ("cabrnet", "dapl"):
        line = epochs[program]
        print(
            f"{program}: {line['fixed']:.1f} s + {line['per_epoch']:.3g} s per epoch, from trainings of {EPOCHS} and "
            f"{MORE_EPOCHS}; with {PUBLISHED_EPOCHS}, computed: {line['computed']:.0f} s"
        )
    facts = provenance([])
    facts["versions"] = {**facts["versions"], "cabrnet": version_of(peer)}
    facts["machine"] = {**facts["machine"], "threads": 1}
    command = f"make bench-peers PER_CLASS={per_class}"
    settings = {"prototypes": PROTOTYPES, "epochs": EPOCHS, "batch": BATCH}
    write_json(
        Path("build/peers.json"),
        {**facts, "command": command, "images": images, "peers": table, "epochs": epochs, "settings": settings},
    )


if __name__ == "__main__":
    main()
