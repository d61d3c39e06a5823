"""Caches keep within their limit: the least recently used go, and what cannot fit is read without them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dapl.batches.cache import GB, entries, make_room, mark_used
from dapl.batches.pixels import CompactPixels, Pixels, compact_bytes, pixels_bytes, pixels_key
from dapl.batches.run_data import RunData
from dapl.batches.sources import ImageSource, in_order
from dapl.cli import main
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.data.toybirds import ToyBirds
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import SingleProcess


def _cache(folder: Path, letter: str, size: int, used: int) -> str:
    key = letter * 24
    for name in ("images.npy", "annotations.npz"):
        (folder / f"{key}-{name}").write_bytes(b"0" * (size // 2))
        os.utime(folder / f"{key}-{name}", (used, used))
    return key


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    old, middle, new = (_cache(tmp_path, letter, 100, used) for used, letter in enumerate("abc", 1))
    (tmp_path / "notes.txt").write_text("not ours")
    assert [(entry.key, entry.kind, entry.size) for entry in entries(tmp_path)] == [
        (key, "images", 100) for key in (old, middle, new)
    ]
    mark_used(tmp_path, old)
    fits, removed = make_room(tmp_path, needed=50, limit=250)
    assert fits
    assert [entry.key for entry in removed] == [middle]
    assert [entry.key for entry in entries(tmp_path)] == [new, old]
    assert make_room(tmp_path, needed=200, limit=250, keep={new}) == (False, []), "nothing goes where it would not help"
    assert len(entries(tmp_path)) == 2
    assert (tmp_path / "notes.txt").exists()


def test_the_command_shows_and_clears(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _cache(tmp_path, "a", GB // 100, 1)
    _cache(tmp_path, "b", GB // 50, 2)
    flags = ["cache", "--folder", str(tmp_path)]
    assert main(flags) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in said[:2]] == ["b" * 24, "a" * 24]
    assert said[2] == f"in all       2 caches, 0.03 GB in {tmp_path}"
    assert main([*flags, "--keep", "0.02"]) == 0
    assert "removed      1 caches, 0.01 GB" in capsys.readouterr().out
    assert main([*flags, "--keep", "-1"]) == 2
    assert main([*flags, "--clear"]) == 0
    assert f"in all       0 caches, 0.00 GB in {tmp_path}" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


class Lines(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def line(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def birds() -> ToyBirds:
    """The images that the training and validation images of the tiny config are taken from."""
    return ToyBirds(classes=3, images_per_class=6, size=64)


def test_images_that_do_not_fit_as_pixels_are_kept_as_jpeg_or_not_at_all(
    configured: Callable[..., Config], birds: ToyBirds, tmp_path: Path
) -> None:
    pixels, compact = pixels_bytes(birds, 64, "stretch"), compact_bytes(birds, 64, "stretch")
    assert compact < pixels / 2
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, limit in (("pixels", 2 * pixels), ("compact", 1.2 * compact), ("none", 0.5 * compact)):
        folder, lines = tmp_path / name, Lines()
        config = configured({"cache.folder": str(folder), "cache.total_gb": limit / GB})
        data = RunData(config, SingleProcess(), lines)
        source = data.images("train")
        assert type(source.pixels) is {"pixels": Pixels, "compact": CompactPixels, "none": type(None)}[name]
        (batch,) = source.batches(in_order(len(source), 100))
        assert batch.images is not None
        assert batch.masks is not None
        found[name] = batch.images, batch.masks
        assert len(lines.said) == (name != "pixels"), lines.said
        if name != "pixels":
            assert lines.said[0].startswith("images: 0.0 GB of pixels do not fit into cache.total_gb")
            assert ("kept as JPEG" in lines.said[0]) == (name == "compact")
        kept = sum(entry.size for entry in entries(folder) if entry.kind.startswith("images"))
        assert (kept > 0) == (name != "none")
        again = RunData(config, SingleProcess(), Lines()).images("train")
        assert type(again.pixels) is type(source.pixels)
    for form in ("compact", "none"):
        assert torch.equal(found[form][1], found["pixels"][1])
    assert torch.equal(found["none"][0], found["pixels"][0])
    difference = (found["compact"][0].float() - found["pixels"][0].float()).abs().mean()
    assert 0 < difference < 3  # of 255


def test_features_that_do_not_fit_beside_the_images_are_not_kept(
    configured: Callable[..., Config], birds: ToyBirds, model: PrototypeModel, tmp_path: Path
) -> None:
    config = configured({"cache.total_gb": pixels_bytes(birds, 64, "stretch") * 1.05 / GB})
    lines = Lines()
    data = RunData(config, SingleProcess(), lines)
    data.share(model.extractor)
    data.images("train")
    assert isinstance(data.source("train", model), ImageSource)
    assert isinstance(data.source("train", model), ImageSource)
    assert len(lines.said) == 1
    assert lines.said[0].startswith("features: 0.0 GB do not fit beside the other caches of this run")


def test_old_caches_make_room(configured: Callable[..., Config], birds: ToyBirds, tmp_path: Path) -> None:
    pixels = pixels_bytes(birds, 64, "stretch")
    folder = tmp_path / "cache"
    folder.mkdir()
    _cache(folder, "a", int(pixels), used=1)
    lines = Lines()
    RunData(configured({"cache.total_gb": pixels * 1.5 / GB}), SingleProcess(), lines).images("train")
    assert [entry.key for entry in entries(folder)] == [pixels_key(birds, 64, "stretch")]
    assert lines.said == ["cache: 0.0 GB that were not used for the longest time made room for more"]
