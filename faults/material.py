"""Valid things to start from: images, a folder of them with masks and keypoints, a COCO file, a config, a run."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from faults.running import Case, Crew

CONFIG: dict[str, Any] = {
    "data": {"name": "toybirds", "classes": 3, "images_per_class": 6, "test_images_per_class": 2, "image_size": 64},
    "model": {
        "backbone": {"name": "test_efficientnet", "stages": [-2], "weights": "random"},
        "heads": 2,
        "head_dim": 4,
    },
    "runtime": {"accelerator": "cpu", "workers": 0, "evaluation_batch": 4, "checkpoint_steps": 1},
    "schedule": [
        {"stage": "warm_up", "epochs": 1, "batch_size": 4},
        {"stage": "joint", "epochs": 1, "batch_size": 5},
        {"stage": "project"},
        {"stage": "last_layer", "epochs": 2},
    ],
}


@dataclass(frozen=True)
class Material:
    """Paths of what was made; nothing of it may change while a campaign runs."""

    root: Path
    run: Path
    config: Path
    folder: Path
    coco: Path
    image: Path
    cache: Path

    def files(self) -> dict[str, bytes]:
        """Of the run, by the path below it: to see whether a command lost or changed one."""
        return contents(self.run)


def contents(folder: Path) -> dict[str, bytes]:
    """Every regular file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def warm_up() -> None:
    """Import what the commands import, once; and use torch with one thread, since a fork takes no threads along."""
    import torch

    torch.set_num_threads(1)
    start_devices("fork")
    import dapl.evaluation
    import dapl.export.export
    import dapl.export.hub
    import dapl.prepare.check
    import dapl.prepare.masks
    import dapl.report.collect
    import dapl.report.page
    import dapl.serve.app
    import dapl.serve.connections
    import dapl.training.trainer  # noqa: F401


def start_devices(how: Literal["fork", "spawn"]) -> None:
    """How the processes of ``--devices 2`` are started: from the warmed one, or with an interpreter of their own, as
    dapl does it, which takes them seconds."""
    from dapl.processes import fabric

    fabric.START = how


def lay_out(root: Path) -> Material:
    """All but the run."""
    import yaml

    root.mkdir(parents=True, exist_ok=True)
    names = ("run", "tiny.yaml", "folder", "coco.json", "bird.png", "cache")
    made = Material(root, *(root / name for name in names))
    config = {**CONFIG, "cache": {"folder": str(made.cache)}}
    made.config.write_text(yaml.safe_dump(config, sort_keys=False))
    _make_folder(made.folder)
    _make_coco(made)
    shutil.copyfile(made.folder / "owl" / "0.png", made.image)
    return made


def make(root: Path, crew: Crew) -> Material:
    """The run is trained, measured and reported by the commands themselves."""
    made = lay_out(root)
    for words in (
        ["train", str(made.config), "--out", str(made.run)],
        ["evaluate", str(made.run), "--metrics", "accuracy,coverage", "--no-chance"],
        ["report", str(made.run), "--images", "1"],
    ):
        outcome = crew.one(Case(" ".join(words), lambda folder, words=words: words, (0,), 900.0), keep=False)
        if outcome.faults:
            raise SystemExit(f"faults: {words[0]} fails before anything was broken: {outcome.said}")
    return made


def picture(number: int, size: int = 48) -> Any:
    """A blob on a ground, different for each number."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (size, size), (40 * number % 256, 90, 160))
    ImageDraw.Draw(image).ellipse((8 + number, 10, 30 + number, 34), fill=(220, 30 * number % 256, 40))
    return image


def _make_folder(root: Path) -> None:
    rows = ["image,part,x,y,visible"]
    for name in ("finch", "owl"):
        (root / name).mkdir(parents=True)
        (root / "masks" / name).mkdir(parents=True)
        for number in range(5):
            image = picture(number + (7 if name == "owl" else 0))
            image.save(root / name / f"{number}.png")
            image.convert("L").point(lambda value: 255 if value > 90 else 0).save(
                root / "masks" / name / f"{number}.png"
            )
            rows += [f"{name}/{number}.png,beak,12,14,1", f"{name}/{number}.png,tail,30,30,{number % 2}"]
    (root / "keypoints.csv").write_text("\n".join(rows) + "\n")


def _make_coco(made: Material) -> None:
    names = sorted(path for path in made.folder.glob("*/*.png") if path.parent.name != "masks")
    content = {
        "images": [
            {"id": number, "file_name": str(path.relative_to(made.root)), "width": 48, "height": 48}
            for number, path in enumerate(names)
        ],
        "categories": [
            {"id": number, "name": name, "keypoints": ["beak", "tail"]} for number, name in enumerate(("finch", "owl"))
        ],
        "annotations": [
            {
                "id": number,
                "image_id": number,
                "category_id": int(path.parent.name == "owl"),
                "bbox": [5.0, 6.0, 30.0, 31.0],
                "area": 900.0,
                "iscrowd": 0,
                "segmentation": [[5, 6, 35, 6, 35, 37, 5, 37]],
                "keypoints": [10, 11, 2, 20, 21, 1],
            }
            for number, path in enumerate(names)
        ],
    }
    made.coco.write_text(json.dumps(content))


def encoded_images() -> dict[str, bytes]:
    """The same image in every format that is read, by its suffix."""
    from PIL import Image

    found = {}
    for suffix, kind, mode in (
        ("png", "PNG", "RGB"),
        ("jpg", "JPEG", "RGB"),
        ("gif", "GIF", "P"),
        ("bmp", "BMP", "RGB"),
        ("tif", "TIFF", "RGB"),
        ("webp", "WEBP", "RGB"),
        ("ppm", "PPM", "RGB"),
        ("jp2", "JPEG2000", "RGB"),
    ):
        Image.init()
        if kind in Image.SAVE:
            stream = io.BytesIO()
            picture(3).convert(mode).save(stream, kind)
            found[suffix] = stream.getvalue()
    return found
