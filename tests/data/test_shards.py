"""Tar shards and tables: the same images, masks and labels as the files that they were made from, in any order."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from PIL import Image

from dapl.batches.sources import ImageSource, in_order
from dapl.common.errors import DaplError
from dapl.config.data import ShardData, TableData
from dapl.data.build import build_splits, check_dataset
from dapl.data.sample import Dataset, Sample
from dapl.data.shards import read_shards
from dapl.data.toybirds import ToyBirds

Files = Iterable[tuple[str, bytes]]


@pytest.fixture(scope="module")
def birds() -> list[Sample]:
    dataset = ToyBirds(classes=2, images_per_class=4, size=40)
    return [dataset[index] for index in range(len(dataset))]


def png(pixels: torch.Tensor) -> bytes:
    """3×H×W in colour, H×W in {0, 1}."""
    stream = io.BytesIO()
    image = pixels.permute(1, 2, 0).numpy() if pixels.dim() == 3 else (pixels * 255).numpy()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def write_shard(path: Path, files: Files) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))


def sample_files(name: str, bird: Sample, label: bytes | None = None) -> Files:
    assert bird.mask is not None
    yield f"{name}.png", png(bird.image.as_subclass(torch.Tensor))
    yield f"{name}.mask.png", png(bird.mask.as_subclass(torch.Tensor))
    yield (f"{name}.cls", label) if label else (f"{name}.json", json.dumps({"class": f"{bird.label}"}).encode())


@pytest.fixture
def shards(tmp_path: Path, birds: list[Sample]) -> Path:
    """Two shards for training, one for test; classes as numbers, in .cls and in .json."""
    for shard in range(2):
        files = [file for row in range(shard, 8, 2) for file in sample_files(f"a/{row:04d}", birds[row])]
        write_shard(tmp_path / "shards" / f"train-{shard:03d}.tar", files)
    tested = [file for row in (5, 1) for file in sample_files(f"{row}", birds[row], b"%d\n" % birds[row].label)]
    write_shard(tmp_path / "shards" / "test" / "0.tar", tested)
    return tmp_path / "shards"


def check_same(dataset: Dataset, rows: list[int], birds: list[Sample]) -> None:
    check_dataset(dataset)
    assert list(dataset.labels) == [birds[row].label for row in rows]
    for index in reversed(range(len(rows))):
        sample, bird = dataset[index], birds[rows[index]]
        assert torch.equal(sample.image, bird.image)
        assert sample.mask is not None
        assert bird.mask is not None
        assert torch.equal(sample.mask, bird.mask)


def test_samples_of_shards(shards: Path, birds: list[Sample]) -> None:
    found = read_shards(shards)
    check_same(found["train"], [0, 2, 4, 6, 1, 3, 5, 7], birds)
    check_same(found["test"], [5, 1], birds)
    assert found["train"].classes == ["0", "1"]
    assert repr(found["train"]) == "ShardedImages(8 images of 2 classes in 2 shards)"
    again = read_shards(shards)["train"]
    assert again.fingerprint == found["train"].fingerprint != found["test"].fingerprint


def test_a_config_takes_them_apart_and_processes_read_them(shards: Path) -> None:
    splits = build_splits(ShardData(root=str(shards), validation_share=0.25, image_size=40))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (6, 2, 2)
    batches = [
        [
            batch.images
            for batch in ImageSource(splits.train, None, 40, "stretch", workers=workers).batches(in_order(6, 2))
        ]
        for workers in (0, 2)
    ]
    for alone, together in zip(*batches, strict=True):
        assert alone is not None
        assert together is not None
        assert torch.equal(alone, together)


def test_bad_shards_are_named(tmp_path: Path, birds: list[Sample]) -> None:
    def refused(folder: str, files: Files, name: str = "train-0.tar") -> str:
        write_shard(tmp_path / folder / name, files)
        with pytest.raises(DaplError) as caught:
            read_shards(tmp_path / folder)
        return str(caught.value)

    one, other = birds[0], birds[7]
    both = [*sample_files("a", one), *sample_files("b", other)]
    assert "train-0.tar: a says no class; add a.cls" in refused("no class", list(sample_files("a", one))[:2])
    assert "a has no image" in refused("no image", [("a.cls", b"1")])
    assert "a is there twice" in refused("twice", [*both, *sample_files("a", one)])
    assert "some samples have a mask" in refused(
        "some masks", [*both, *[f for f in sample_files("c", one) if "mask" not in f[0]]]
    )
    assert "holds one class only (0)" in refused("one class", sample_files("a", one))
    assert "holds no training shard" in refused("only test", both, "test-0.tar")
    assert "folder other is no split" in refused("split", both, "other/0.tar")
    write_shard(tmp_path / "class" / "train.tar", both)
    assert "class 'owl' has no training image" in refused("class", sample_files("x", one, b"owl"), "val-0.tar")
    write_shard(tmp_path / "cut" / "train-0.tar", both)
    whole = (tmp_path / "cut" / "train-0.tar").read_bytes()
    (tmp_path / "cut" / "train-0.tar").write_bytes(whole[:700])
    with pytest.raises(DaplError, match="cut short"):
        read_shards(tmp_path / "cut")
    with pytest.raises(DaplError, match="is no folder"):
        read_shards(tmp_path / "nowhere")


def test_an_image_that_is_none_is_named_with_its_shard(tmp_path: Path, birds: list[Sample]) -> None:
    files = [("a.jpg", b"no image"), ("a.cls", b"owl"), ("b.jpg", b""), ("b.cls", b"finch")]
    write_shard(tmp_path / "train-0.tar", files)
    dataset = read_shards(tmp_path)["train"]
    assert (dataset.classes, dataset.labels) == (["finch", "owl"], [1, 0])
    with pytest.raises(DaplError, match=r"train-0.tar: a: not an image"):
        dataset[0]
    with pytest.raises(DaplError, match=r"train-0.tar: b: the file is empty"):
        dataset[1]


def test_tables(tmp_path: Path, birds: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install 'dapl[huggingface]'")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    columns = {
        "image": [{"bytes": png(bird.image.as_subclass(torch.Tensor)), "path": None} for bird in birds],
        "mask": [{"bytes": png(bird.mask.as_subclass(torch.Tensor)), "path": None} for bird in birds],  # type: ignore[union-attr]
        "label": [bird.label for bird in birds],
        "species": [("owl", "finch")[bird.label] for bird in birds],
    }
    kinds = {"image": datasets.Image(), "mask": datasets.Image(), "label": datasets.ClassLabel(names=["owl", "finch"])}
    table = datasets.Dataset.from_dict(
        columns, features=datasets.Features({**kinds, "species": datasets.Value("string")})
    )
    (tmp_path / "parquet").mkdir()
    table.to_parquet(tmp_path / "parquet" / "train-00000-of-00001.parquet")
    table.select([5, 1]).to_parquet(tmp_path / "parquet" / "test-00000-of-00001.parquet")
    table.save_to_disk(str(tmp_path / "saved"))

    by_name = build_splits(TableData(root=str(tmp_path / "parquet"), mask="mask", validation_share=0.25))
    check_same(by_name.test, [5, 1], birds)
    assert (by_name.train.classes, len(by_name.train), len(by_name.validation)) == (["owl", "finch"], 6, 2)
    saved = build_splits(TableData(root=str(tmp_path / "saved"), label="species", test_share=0.25))
    assert (saved.train.classes, len(saved.test), saved.train.has_masks) == (["finch", "owl"], 2, False)

    for fields, said in (
        ({"image": "picture"}, "data.image: the table has no column 'picture'"),
        ({"root": str(tmp_path / "nothing")}, "could not be read by datasets"),
    ):
        with pytest.raises(DaplError, match=said):
            build_splits(TableData(**{"root": str(tmp_path / "saved")} | fields))
