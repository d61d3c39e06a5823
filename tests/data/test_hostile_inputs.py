"""Files that would hang, fill the memory or be trained on silently: each is named in one sentence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.data.coco import read_coco
from dapl.data.folder import read_folder
from dapl.data.images import read_image
from dapl.data.listing import refuse_unusable
from dapl.models.backbone import create_backbone
from dapl.models.build import build_model
from dapl.processes.launch import make_processes

from ..forked import Forked


def test_pipes_and_devices_are_no_images(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "zero.png"):
        with pytest.raises(DaplError, match=f"{name}: is a pipe or device and not a file"):
            read_image(tmp_path / name)
    with pytest.raises(DaplError, match="cannot be read"):
        read_image(tmp_path / ("x" * 300 + ".png"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("finch", "owl"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (40, 40), (number, 9, 9)).save(tmp_path / "data" / name / f"{number}.png")
    return tmp_path / "data"


def test_names_that_are_not_utf8_are_left_out_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = Path(os.fsdecode(os.fsencode(folder / "owl") + b"/\xff\xfe.png"))
    odd.write_bytes((folder / "owl" / "0.png").read_bytes())
    listing = read_folder(folder)
    assert len(listing) == 6
    assert [fault.text for fault in listing.faults] == [
        f"{folder}/owl/\\xff\\xfe.png: left out, its name is not text in UTF-8; rename it."
    ]
    assert main(["prepare", "check", str(folder), "--out", str(folder.parent / "check"), "--quiet"]) == 1
    assert "rename it" in capsys.readouterr().out


def test_a_mask_whose_name_is_not_utf8_belongs_to_no_image(folder: Path) -> None:
    """Its image is left out for the same reason; all others keep theirs, and the name is printed nowhere."""
    (folder / "masks" / "owl").mkdir(parents=True)
    for number in range(3):
        Image.new("L", (40, 40), 255).save(folder / "masks" / "owl" / f"{number}.png")
    odd = Path(os.fsdecode(os.fsencode(folder / "masks" / "owl") + b"/\xff\xfe.png"))
    odd.write_bytes((folder / "masks" / "owl" / "0.png").read_bytes())
    listing = read_folder(folder)
    assert sum(record.mask is not None for record in listing) == 3
    for line in (*listing.notes, *(fault.text for fault in listing.faults)):
        line.encode("utf-8")
    assert main(["prepare", "check", str(folder), "--out", str(folder.parent / "check"), "--quiet"]) in (0, 1)


ODD = os.fsdecode(b"k\xf6ln")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "{odd}", "--out", "{there}/run"],
        ["train", "{there}/data", "--out", "{odd}"],
        ["init", "{odd}", "--out", "{there}/birds.yaml"],
        ["prepare", "check", "{there}/data", "--data.keypoints", "{odd}", "--quiet"],
        ["evaluate", "{odd}", "--cache.folder", "{there}"],
        ["evaluate", "{there}/run", "--cache.folder={odd}"],
        ["explain", "{there}/run", "{odd}/owl/0.png"],
        ["sweep", "{there}/tiny.yaml", "--grid", "seed=1,2", "--out", "{odd}"],
    ],
)
def test_a_path_that_is_not_utf8_is_named_and_nothing_is_written(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    odd = folder.with_name(ODD)
    folder.rename(odd)
    assert main([word.format(odd=odd, there=folder.parent) for word in words]) == 2
    assert capsys.readouterr().err.endswith(
        f"{folder.parent}/k\\xf6ln{'/owl/0.png' if words[0] == 'explain' else ''}: this name is not text in UTF-8; "
        "rename the file or folder.\n"
    )
    assert os.listdir(folder.parent) == [ODD]


def test_a_current_folder_that_is_not_utf8(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.rename(folder.with_name(ODD))
    monkeypatch.chdir(folder.with_name(ODD))
    assert main(["train", "."]) == 2
    assert "k\\xf6ln: this name is not text in UTF-8" in capsys.readouterr().err


def test_a_class_folder_or_loose_image_that_is_not_utf8(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copyfile(folder / "owl" / "0.png", folder / f"{ODD}.png")
    check = ["prepare", "check", str(folder), "--out", str(folder.parent / "check"), "--quiet"]
    assert main(check) == 1
    assert "k\\xf6ln.png; put them into the folder of their class" in capsys.readouterr().out
    (folder / f"{ODD}.png").unlink()
    (folder / "owl").rename(folder / ODD)
    for command in (check, ["train", str(folder), "--out", str(folder.parent / "run")]):
        assert main(command) == 2
        assert "k\\xf6ln: the name of this folder is not text in UTF-8; rename it." in capsys.readouterr().err


PIPES: dict[str, Callable[[Path, Path], list[str]]] = {
    "config": lambda pipe, folder: ["train", str(pipe), "--out", str(folder / "out")],
    "base of a config": lambda pipe, folder: ["train", str(based_on(pipe)), "--out", str(folder / "out")],
    "COCO file": lambda pipe, folder: ["prepare", "check", str(pipe), "--data.name", "coco", "--quiet"],
    "table of keypoints": lambda pipe, folder: ["prepare", "check", str(folder), "--data.keypoints", str(pipe)],
    "table of CUB": lambda pipe, folder: ["prepare", "check", str(cub_of(pipe)), "--data.name", "cub", "--quiet"],
    "shard": lambda pipe, folder: ["prepare", "check", str(shards_of(pipe)), "--data.name", "webdataset", "--quiet"],
    "space of a sweep": lambda pipe, folder: ["sweep", str(pipe), "--search", str(pipe), "--out", str(folder / "out")],
}


def based_on(pipe: Path) -> Path:
    (pipe.parent / "above.yaml").write_text(f"base: {pipe.name}\n")
    return pipe.parent / "above.yaml"


def cub_of(pipe: Path) -> Path:
    (pipe.parent / "cub" / "images").mkdir(parents=True)
    (pipe.parent / "cub" / "classes.txt").symlink_to(pipe)
    (pipe.parent / "cub" / "images.txt").symlink_to(pipe)
    return pipe.parent / "cub"


def shards_of(pipe: Path) -> Path:
    (pipe.parent / "shards").mkdir()
    (pipe.parent / "shards" / "train-0.tar").symlink_to(pipe)
    return pipe.parent / "shards"


@pytest.mark.parametrize("kind", PIPES)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(
    kind: str, folder: Path, tmp_path: Path, said: Callable[[list[str]], str]
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    text = said(PIPES[kind](tmp_path / "pipe.yaml", folder))
    assert text.count("\n") == 1
    assert ("base: no such file" if kind == "base of a config" else "is a pipe or device and not a file") in text


@pytest.fixture
def said(tmp_path: Path) -> Callable[[list[str]], str]:
    """What a command that is refused says, in a process that may be ended where it waits for ever."""

    def run(words: list[str]) -> str:
        command = Forked(tmp_path / "said", main, words)
        command.process.join(60)
        return command.finish(2)

    return run


def test_class_names_have_to_be_text(folder: Path) -> None:
    listing = read_folder(folder)
    listing.classes[0] = "\udcff"
    with pytest.raises(DaplError, match=r"the name of the class \\xff is not text in UTF-8"):
        refuse_unusable(listing)
    listing.classes[0] = "x" * 5000
    with pytest.raises(DaplError, match="a class has a name of 5,000 characters"):
        refuse_unusable(listing)


def test_fields_of_megabytes_in_a_table(folder: Path) -> None:
    (folder / "keypoints.csv").write_text(f"image,part,x,y\nowl/0.png,{'x' * 2_000_000},1,2\n")
    with pytest.raises(DaplError, match=r"keypoints\.csv, line \d: not a row of a table"):
        read_folder(folder)


def coco(folder: Path, **changes: Any) -> Path:
    """Six images; ``changes`` are made to the first annotation, or to the categories."""
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.png"))
    annotations = [
        {"id": n, "image_id": n, "category_id": n // 3, "bbox": [5, 5, 20, 20], "area": 400} for n in range(6)
    ]
    categories: list[dict[str, Any]] = [{"id": 0, "name": "finch"}, {"id": 1, "name": "owl"}]
    categories[0] |= changes.pop("category", {})
    annotations[0] |= changes
    path = folder / "coco.json"
    content = {"images": [{"id": n, "file_name": name} for n, name in enumerate(names)], "annotations": annotations}
    path.write_text(json.dumps(content | {"categories": categories}))
    return path


@pytest.mark.parametrize(
    "box",
    [[5, 5, -20, 20], [5, 5, 0, 0], [float("nan"), 5, 20, 20], [0, 0, 1e9, 1e9], ["a", 1, 2, 3], 7, [10**400] * 4],
)
def test_boxes_that_are_none_are_named(box: Any, folder: Path) -> None:
    path = coco(folder, bbox=box)
    listing = read_coco({"train": path}, {"train": None})
    assert "its box is left out" in listing.faults[0].text
    assert listing.records["train"][0].box is None


@pytest.mark.parametrize("box", [[100_000, 5, 20, 20], [5, 5, 5000, 5000], [-300, 5, 320, 20]])
def test_boxes_far_outside_their_image_are_refused(box: list[float], folder: Path) -> None:
    listing = read_coco({"train": coco(folder, bbox=box)}, {"train": None})
    with pytest.raises(DaplError, match=r"(lies|reaches far) outside"):
        listing.dataset("train")[0]


def test_keypoints_and_ids_of_the_wrong_type(folder: Path) -> None:
    for keypoints in (7, "beak", {"a": 1}):
        listing = read_coco({"train": coco(folder, category={"keypoints": keypoints})}, {"train": None})
        assert listing.parts == []
    listing = read_coco({"train": coco(folder, category={"id": [1]})}, {"train": None})
    assert "there is no category 0" in listing.faults[0].text


@pytest.mark.parametrize("what", ["text", "image", "nan", "numbers"])
def test_any_file_may_be_named_as_weights(what: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    if what == "text":
        path.write_text("root:x:0:0:root:/root:/bin/bash\n" * 20)
    elif what == "image":
        Image.new("RGB", (40, 40)).save(path, "PNG")
    elif what == "nan":
        torch.save({"a": torch.tensor([float("nan")])}, path)
    else:
        torch.save({1: torch.zeros(1)}, path)
    with pytest.raises(DaplError, match=r"weights\.pth: "):
        create_backbone("test_efficientnet", weights=str(path))


def test_a_transformer_of_one_size_says_which() -> None:
    backbone = create_backbone("swin_tiny_patch4_window7_224", weights="random").eval()
    with pytest.raises(DaplError, match=r"made for images of 224×224 pixels and does not take 64×64; set it to 224"):
        backbone(torch.zeros(1, 3, 64, 64))
    with pytest.raises(DaplError, match="coat_tiny gives no feature maps"):
        create_backbone("coat_tiny", weights="random")


def test_what_does_not_fit_is_said_before_it_is_allocated(configured: Callable[..., Config]) -> None:
    config = configured({"model": {"system": "protopnet", "prototypes_per_class": 1024, "width": 16_384}})
    with pytest.raises(DaplError, match="102,400,000 prototypes of 100,000 classes take"):
        build_model(config.model, 100_000)
    with pytest.raises(DaplError, match=r"runtime\.devices: 256 processes are more than 4 per core"):
        make_processes(configured({"runtime.devices": 256}))
