"""Data handed over in Python: looked over before anything is trained on it, and carried to other processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from dapl.common.errors import DaplError
from dapl.config import DataSection, GivenData
from dapl.data.sample import Dataset, Sample, Splits

_ATTRIBUTES = ("classes", "parts", "labels", "names", "has_masks", "fingerprint", "__len__", "__getitem__")
_CALL = "train(config, out, splits=Splits(train, validation, test)) and evaluate(run, splits=…)"


class InMemorySplits:
    """Splits on their way through `launch`: Fabric takes dataclasses apart and refuses frozen ones."""

    def __init__(self, splits: Splits) -> None:
        self._splits = (splits.train, splits.validation, splits.test)

    def splits(self) -> Splits:
        return Splits(*self._splits)


def hand_over(config: DataSection, splits: Splits | None) -> InMemorySplits | None:
    """None where the config itself says which data; an error where it does not fit what was handed over."""
    if splits is None:
        if isinstance(config, GivenData):
            raise not_by_name()
        return None
    if not isinstance(config, GivenData):
        name = getattr(config, "name", "?")
        raise DaplError(
            f"data.name: is {name}, but splits were handed over, and a run must not say that it saw other data than it "
            f"did; set config.data = GivenData(…), or leave splits away."
        )
    for which in ("train", "validation", "test"):
        check_dataset(getattr(splits, which), which)
        for what in ("classes", "parts"):
            if list(getattr(getattr(splits, which), what)) != list(getattr(splits.train, what)):
                raise DaplError(f"splits.{which}.{what}: not those of splits.train; they must be, and in that order.")
    return InMemorySplits(splits)


def not_by_name() -> DaplError:
    """For whoever asks for such data by its name alone."""
    return DaplError(f"data.name: given stands for data handed over in Python: {_CALL}; see docs/own-data.md.")


def check_dataset(dataset: Dataset, which: str = "train") -> None:
    """Refuse what is not a `Dataset`; only the first image is read."""
    field = f"splits.{which}"
    missing = next((name for name in _ATTRIBUTES if not hasattr(dataset, name)), None)
    if missing is not None:
        raise DaplError(f"{field}: has no {missing}; a data set has {', '.join(_ATTRIBUTES)}, see docs/own-data.md.")
    count = len(dataset)
    if not count:
        raise DaplError(f"{field}: is empty; hand over one image or more.")
    for name in ("labels", "names"):
        if len(getattr(dataset, name)) != count:
            raise DaplError(f"{field}.{name}: {len(getattr(dataset, name))} of them for {count} images.")
    wrong = next((label for label in dataset.labels if not 0 <= label < len(dataset.classes)), None)
    if wrong is not None:
        raise DaplError(f"{field}.labels: {wrong} is no index of the {len(dataset.classes)} classes.")
    name, times = Counter(dataset.names).most_common(1)[0]
    if times > 1:
        raise DaplError(f"{field}.names: {name!r} stands there {times} times; the name of an image is its own.")
    _check_sample(dataset[0], dataset, f"{field}[0]")


def _check_sample(sample: Sample, dataset: Dataset, field: str) -> None:
    if not isinstance(sample, Sample):
        raise DaplError(f"{field}: is a {type(sample).__name__}; a data set yields dapl.data.sample.Sample.")
    if (sample.name, sample.label) != (dataset.names[0], dataset.labels[0]):
        raise DaplError(f"{field}: its name or label is not what names and labels say.")
    frame, parts = tuple(sample.image.shape[-2:]), len(dataset.parts)
    _check_tensor(f"{field}.image", sample.image, torch.uint8, (3, *frame))
    if (sample.mask is not None) != dataset.has_masks:
        has, says = "a" if sample.mask is not None else "no", dataset.has_masks
        raise DaplError(f"{field}.mask: there is {has} mask, but has_masks is {says}; all images have one, or none.")
    _check_tensor(f"{field}.mask", sample.mask, torch.uint8, frame)
    _check_tensor(f"{field}.keypoints", sample.keypoints, torch.float32, (parts, 2))
    _check_tensor(f"{field}.visible", sample.visible, torch.bool, (parts,))
    _check_tensor(f"{field}.part_masks", sample.part_masks, torch.uint8, (parts, *frame))
    _check_tensor(f"{field}.box", sample.box, torch.float32, (1, 4))


def _check_tensor(field: str, tensor: Any, dtype: torch.dtype, shape: Sequence[int]) -> None:
    if tensor is None:
        return
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        wanted = "×".join(str(side) for side in shape)
        found = "×".join(str(side) for side in tensor.shape)
        raise DaplError(f"{field}: is {tensor.dtype} {found}; it must be {dtype} {wanted}.")
