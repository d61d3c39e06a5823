"""Data sets of the library `datasets`: Parquet files, folders of ``save_to_disk``, and names of the Hub."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError, nearest, needing, reason_of
from dapl.data.images import Encoded, read_image, read_mask
from dapl.data.sample import SPLIT_OF, Sample, refuse_one_class


class TableImages:
    """A table of the library `datasets` with a column of images and one of labels: a `Dataset` without parts.

    Rows are mapped into memory by that library and decoded one by one.

    >>> TableImages(table, "image", "label", ["owl", "finch"])                           # doctest: +SKIP
    TableImages(50000 images of 2 classes)
    """

    parts: Sequence[str] = ()

    def __init__(self, table: Any, image: str, label: str, classes: Sequence[str], mask: str | None = None) -> None:
        import datasets

        self.table = table
        for column in (image, *([mask] if mask else [])):  # files as they are, for our reader
            self.table = self.table.cast_column(column, datasets.Image(decode=False))
        self.image, self.mask = image, mask
        self.classes: Sequence[str] = list(classes)
        self.labels: Sequence[int] = _labels(table, label, self.classes)
        self.names: Sequence[str] = [f"{number:08d}" for number in range(len(table))]
        self.has_masks = mask is not None
        text = f"{table._fingerprint}/{image}/{label}/{mask}/{self.classes}"
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"TableImages({len(self)} images of {len(self.classes)} classes)"

    def __getitem__(self, index: int) -> Sample:
        row = self.table[index]
        image = read_image(self._file(row[self.image], index))
        mask = None
        if self.mask is not None:
            mask = read_mask(self._file(row[self.mask], index), tuple(image.shape[-2:]), self.names[index])
        return Sample(image, self.labels[index], self.names[index], mask)

    def _file(self, cell: dict[str, Any] | None, index: int) -> Encoded | Path:
        if cell is None or (cell["bytes"] is None and cell["path"] is None):
            raise DaplError(f"row {index} of the table has no image; take it out of the data set.")
        return Path(cell["path"]) if cell["bytes"] is None else Encoded(f"row {index} of the table", cell["bytes"])


def read_tables(root: str, image: str, label: str, mask: str | None) -> dict[str, TableImages]:
    """The data sets of a folder of Parquet files, of a folder that `datasets` saved, or of a name of the Hub, by split.

    >>> read_tables("cifar10", "img", "label", None)["test"]                             # doctest: +SKIP
    TableImages(10000 images of 10 classes)
    """
    tables = _open(root)
    columns = tables["train"].column_names
    for field, name in (("image", image), ("label", label), ("mask", mask)):
        if name is not None and name not in columns:
            raise DaplError(f"data.{field}: the table has no column {name!r}{nearest(name, columns)}")
    classes = _classes(tables["train"], label)
    refuse_one_class(root, classes)
    return {split: TableImages(table, image, label, classes, mask) for split, table in tables.items()}


def _open(root: str) -> dict[str, Any]:
    with needing("data.name: huggingface needs the library datasets", "huggingface"):
        import datasets
    folder = Path(root)
    saved = any((folder / name).exists() for name in ("dataset_dict.json", "dataset_info.json", "state.json"))
    try:
        found = datasets.load_from_disk(root) if saved else datasets.load_dataset(root)
    except Exception as error:  # the library has no exception of its own for what it cannot read
        raise DaplError(f"data.root: {root} could not be read by datasets ({reason_of(error)}).") from error
    tables = found if isinstance(found, dict) else {"train": found}
    named = {SPLIT_OF[split]: table for split, table in tables.items() if split in SPLIT_OF}
    if "train" not in named:
        raise DaplError(f"data.root: {root} has no split named train, only {', '.join(tables)}; rename one.")
    return named


def _classes(table: Any, label: str) -> list[str]:
    """The names that the table itself gives to the numbers, else what occurs."""
    names = getattr(table.features[label], "names", None)
    return list(names) if names is not None else [str(value) for value in sorted(set(table[label]))]


def _labels(table: Any, label: str, classes: Sequence[str]) -> list[int]:
    values = list(table[label])
    if getattr(table.features[label], "names", None) is not None:
        labels = values
    else:
        number = {name: index for index, name in enumerate(classes)}
        labels = [number.get(str(value), -1) for value in values]
    wrong = next((row for row, value in enumerate(labels) if not 0 <= value < len(classes)), None)
    if wrong is not None:
        raise DaplError(f"row {wrong} of the table: label {values[wrong]!r} has no training image; take it out.")
    return labels
