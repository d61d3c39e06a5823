"""Tar shards in the layout of WebDataset: files of one name without extensions are one sample, images beside labels.

    train-000.tar:  finch/0001.jpg  finch/0001.cls  finch/0001.mask.png  finch/0002.jpg  finch/0002.cls …

Nothing is unpacked. The headers are read once, for where each file starts; an image is then read from its place, in any
order and by any process, so that each host reads its own share.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError
from dapl.common.reading import open_regular
from dapl.data.images import Encoded, read_image, read_mask
from dapl.data.listing import file_stamp
from dapl.data.sample import SPLIT_OF, Sample, refuse_one_class

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "tif", "tiff")
_MASKS = tuple(f"mask.{ending}" for ending in ("png", "jpg", "webp"))
_SPLIT_OF = SPLIT_OF | {"training": "train"}


class ShardedImages:
    """The samples of some tar files: a `Dataset` without parts.

    >>> shards = [Path("train-000.tar")]                                                 # doctest: +SKIP
    >>> ShardedImages(shards, ShardIndex(shards), ["owl", "finch"])                      # doctest: +SKIP
    ShardedImages(12800 images of 2 classes in 1 shards)
    """

    parts: Sequence[str] = ()

    def __init__(self, shards: Sequence[Path], index: ShardIndex, classes: Sequence[str]) -> None:
        """``classes`` in the order of their numbers; ``index`` of these shards."""
        self.shards, self.index = list(shards), index
        self.classes: Sequence[str] = list(classes)
        number = {name: label for label, name in enumerate(self.classes)}
        missing = next((name for name in index.classes if name not in number), None)
        if missing is not None:
            raise DaplError(f"{self.shards[0]}: class {missing!r} has no training image; add some, or take it out.")
        self.labels: Sequence[int] = [number[name] for name in index.classes]
        self.names: Sequence[str] = index.names
        self.has_masks = index.has_masks
        stamps = json.dumps([[file_stamp(shard) for shard in self.shards], self.classes])
        self.fingerprint = hashlib.blake2b(stamps.encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ShardedImages({len(self)} images of {len(self.classes)} classes in {len(self.shards)} shards)"

    def __getitem__(self, index: int) -> Sample:
        image = read_image(self._file(self.index.images, index))
        mask = None
        if self.has_masks:
            mask = read_mask(self._file(self.index.masks, index), tuple(image.shape[-2:]), self.names[index])
        return Sample(image, self.labels[index], self.names[index], mask)

    def _file(self, places: array[int], index: int) -> Encoded:
        shard, start, size = places[3 * index : 3 * index + 3]
        with open_regular(self.shards[shard], "put it back") as stream:
            stream.seek(start)
            return Encoded(f"{self.shards[shard]}: {self.names[index]}", stream.read(size))


class ShardIndex:
    """Where the files of each sample are, and its class by name."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self.names: list[str] = []
        self.classes: list[str] = []
        self.images, self.masks = array("q"), array("q")
        """Number of the shard, first byte and number of bytes, for each sample."""
        for number, shard in enumerate(shards):
            self._read(number, shard)
        if self.masks and len(self.masks) < len(self.images):
            raise DaplError(f"{shards[0].parent}: some samples have a mask and others have none; give all or none.")
        self.has_masks = bool(self.masks)
        if len(set(self.names)) < len(self.names):
            seen: set[str] = set()
            twice = next(name for name in self.names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise DaplError(f"{shards[0].parent}: {twice} is there twice; the name of a sample is its own.")

    def _read(self, number: int, shard: Path) -> None:
        sample: dict[str, Any] = {}
        try:
            with open_regular(shard, "take it out") as stream, tarfile.open(fileobj=stream, mode="r:") as file:
                for member in file:
                    if not member.isfile():
                        continue
                    folder, _, base = member.name.rpartition("/")
                    stem, _, ending = base.partition(".")
                    name = f"{folder}/{stem}" if folder else stem
                    if sample and sample["name"] != name:
                        self._add(number, shard, sample)
                        sample = {}
                    sample["name"] = name
                    ending = ending.lower()
                    if ending in ("cls", "txt", "json"):
                        content = file.extractfile(member)
                        assert content is not None
                        sample[ending] = content.read()
                    elif ending in _IMAGES or ending in _MASKS:
                        sample["mask" if ending in _MASKS else "image"] = (member.offset_data, member.size)
                if sample:
                    self._add(number, shard, sample)
        except (tarfile.TarError, OSError) as error:
            raise DaplError(f"{shard}: not a tar file, or cut short ({error}); replace it.") from error

    def _add(self, number: int, shard: Path, sample: dict[str, Any]) -> None:
        if "image" not in sample:
            raise DaplError(f"{shard}: {sample['name']} has no image ({', '.join(_IMAGES)}); add it.")
        self.classes.append(_class_of(shard, sample))
        self.names.append(sample["name"])
        self.images.extend((number, *sample["image"]))
        if "mask" in sample:
            self.masks.extend((number, *sample["mask"]))


def _class_of(shard: Path, sample: dict[str, Any]) -> str:
    """From NAME.cls, a number or a name; or from ``class``, ``label`` or ``cls`` of NAME.json."""
    try:
        if "cls" in sample:
            return sample["cls"].decode().strip()
        found = json.loads(sample["json"]) if "json" in sample else {}
        return str(next(found[key] for key in ("class", "label", "cls") if key in found)).strip()
    except (StopIteration, ValueError, TypeError):
        name = sample["name"]
        raise DaplError(f"{shard}: {name} says no class; add {name}.cls, or a field `class` in {name}.json.") from None


def find_shards(root: Path) -> dict[str, list[Path]]:
    """The shards of each split, told by their folder (``train/000.tar``) or the start of their name.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("train-000.tar", "train-001.tar", "test-000.tar"): (folder / name).touch()
    >>> {split: len(files) for split, files in find_shards(folder).items()}
    {'test': 1, 'train': 2}
    """
    if not root.is_dir():
        raise DaplError(f"data.root: {root} is no folder; name the one that holds the .tar files.")
    found: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.tar")):
        relative = path.relative_to(root)
        word = relative.parts[0] if len(relative.parts) > 1 else re.split(r"[^a-z]", path.name.lower())[0]
        split = _SPLIT_OF.get(word.lower(), "train" if len(relative.parts) == 1 else None)
        if split is None:
            raise DaplError(f"{path}: folder {word} is no split; use train, validation and test.")
        found.setdefault(split, []).append(path)
    if "train" not in found:
        raise DaplError(f"data.root: {root} holds no training shard (train-….tar, or train/….tar).")
    return found


def read_shards(root: Path) -> dict[str, ShardedImages]:
    """The data sets of a folder of shards, by split. Numbers as classes are in the order of numbers.

    >>> read_shards(Path("imagenet"))["train"]                                           # doctest: +SKIP
    ShardedImages(1281167 images of 1000 classes in 1282 shards)
    """
    shards = find_shards(root)
    indices = {split: ShardIndex(files) for split, files in shards.items()}
    names = set(indices["train"].classes)
    classes = sorted(names, key=lambda name: (0, int(name), "") if name.isdigit() else (1, 0, name))
    refuse_one_class(root, classes)
    return {split: ShardedImages(shards[split], index, classes) for split, index in indices.items()}
