"""What `dapl train FOLDER` gets from photographs without masks, beside a black box: on groups of six CUB classes.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.own_data --groups 4,5,6
    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.own_data --groups 1,2,3 --model.heads 6     # another choice

36 classes that are none of those of tests/test_new_user.py, shuffled once, are six groups of six. A folder has 20
of CUB's training images per class, and no masks; up to 10 other training images per class are measured on, with CUB's
true masks. Choices are compared on groups 1 to 3, and what was chosen is measured on 4 to 6; images of CUB's test split
are not looked at. Further flags are fields of the config, laid over what was chosen; a value is read as YAML.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from dapl.config import FolderData, parse_config
from dapl.data.cub import read_cub
from dapl.evaluation import evaluate
from dapl.prepare.own_data import prepare_own_data
from dapl.runs.run import Run
from dapl.training.trainer import train

LEFT_OUT = ("013", "017", "046", "070", "100", "188")
"""Numbers of the classes of tests/test_new_user.py."""
GROUPS, CLASSES, IMAGES, NEW = 6, 6, 20, 10
BLACK_BOX: dict[str, Any] = {
    "model": {"system": "blackbox", "backbone": {"stages": ["head"]}},
    "schedule": [
        {"stage": "warm_up", "epochs": 30, "batch_size": 32, "decay": "cosine", "learning_rates": {"classifier": 3e-3}}
    ],
}


def class_groups(names: list[str]) -> list[list[str]]:
    """The six groups of six classes."""
    left = [name for name in names if not name.startswith(LEFT_OUT)]
    random.Random(13).shuffle(left)
    return [left[number * CLASSES : (number + 1) * CLASSES] for number in range(GROUPS)]


def write_group(cub: Path, classes: list[str], folder: Path) -> None:
    """birds/<class>/…, as a user has them, and new/test/… with CUB's masks."""
    listing = read_cub(cub, classes)
    taken = dict.fromkeys(classes, 0)
    for record in listing.records["train"]:
        name = record.path.parent.name
        number, below = taken[name], Path(name, record.path.name)
        taken[name] += 1
        places = (
            [Path("birds", below)] if number < IMAGES else [Path("new/test", below)] if number < IMAGES + NEW else []
        )
        places += [Path("new/train", below)] if number < 2 else []  # a folder has training images
        for place in places:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(record.path, folder / place)
            if place.parts[0] == "new":
                mask = folder / Path("new/masks", *place.parts[1:]).with_suffix(".png")
                mask.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(cub / "segmentations" / name / f"{record.path.stem}.png", mask)


def measure(folder: Path, fields: Mapping[str, Any], black_box: bool) -> dict[str, float]:
    """Share of the regions on the object, accuracy, and the accuracy of the black box, on the images of ``new``."""
    own = prepare_own_data(FolderData(root=str(folder / "birds")), masks="features", quiet=True)
    for name in ("run", "box"):
        shutil.rmtree(folder / name, ignore_errors=True)
    cache = {"cache.folder": str(folder / "cache"), "runtime.accelerator": "cpu"}
    config = own.choice.config({**cache, **fields})
    found = _on_new_images(train(config, folder / "run", quiet=True).folder, folder, "accuracy,region_background_share")
    row = {"on the object": 1 - found["region_background_share"], "accuracy": found["accuracy"]}
    if black_box:
        data = {"name": "folder", "root": str(folder / "birds"), "fit": config.data.fit}
        box = parse_config({**BLACK_BOX, "data": data, "cache": {"folder": str(folder / "cache")}}, "the black box")
        run = train(box, folder / "box", quiet=True).folder
        row["black box"] = _on_new_images(run, folder, "accuracy")["accuracy"]
    return row


def _on_new_images(run: Path, folder: Path, metrics: str) -> Any:
    config = Run.open(run).config({"data.root": str(folder / "new")})
    return evaluate(run, metrics=metrics, config=config, quiet=True, chance=False)


def rows(
    cub: Path, groups: list[int], keep: Path | None, fields: Mapping[str, Any], black_box: bool
) -> Iterator[dict[str, float]]:
    every = class_groups(list(read_cub(cub).classes))
    for number in groups:
        with TemporaryDirectory() as temporary:
            folder = Path(temporary) if keep is None else keep / f"group-{number}"
            if not (folder / "birds").exists():
                write_group(cub, every[number - 1], folder)
            yield {"group": number, **measure(folder, fields, black_box)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default="4,5,6")
    parser.add_argument("--no-black-box", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder in which images, masks and features stay for the next choice")
    arguments, further = parser.parse_known_args()
    fields = {
        flag.removeprefix("--"): yaml.safe_load(text) for flag, text in zip(further[::2], further[1::2], strict=True)
    }
    groups, cub = [int(number) for number in arguments.groups.split(",")], Path(os.environ["DAPL_CUB"])
    found = []
    for row in rows(cub, groups, arguments.keep, fields, not arguments.no_black_box):
        found.append(row)
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    for name in list(found[0])[1:]:
        print(f"mean {name} {statistics.fmean(row[name] for row in found):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
