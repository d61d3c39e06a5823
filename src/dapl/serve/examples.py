"""Test pictures of a run's data, where the data is at hand."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from torch import Tensor

from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.sample import Dataset, Sample
from dapl.data.transforms import fit
from dapl.errors import DaplError
from dapl.serve.encode import jpeg
from dapl.serve.refusal import Refusal

_KEPT = 512
"""Pictures that are kept encoded."""
log = logging.getLogger("dapl.serve")


class Examples:
    """The test split, or nothing where it cannot be opened: the page then takes uploads only."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.dataset: Dataset | None = None
        self._encoded: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()
        try:
            self.dataset = build_splits(config.data).test
        except DaplError as error:
            log.warning("no examples: %s", error)

    def __len__(self) -> int:
        return 0 if self.dataset is None else len(self.dataset)

    def find(self, label: int | None, start: int, count: int) -> tuple[int, list[int]]:
        """How many there are of a class (None: of all, one of each class in turn), and ``count`` of them."""
        if self.dataset is None:
            return 0, []
        if label is None:
            found = _in_turn(self.dataset)
        else:
            found = [index for index, own in enumerate(self.dataset.labels) if own == label]
        return len(found), found[start : start + count]

    def sample(self, index: int) -> Sample:
        """At the size that the model sees."""
        if self.dataset is None or not 0 <= index < len(self.dataset):
            raise Refusal(404, f"There is no example {index}; there are {len(self)}, counted from 0.")
        data = self.config.data
        try:
            with self._lock:  # one picture is decoded at a time, so that memory stays bounded
                return fit(self.dataset[index], data.image_size, data.fit)
        except DaplError as error:
            log.warning("example %d: %s", index, error)
            raise Refusal(404, "The picture of this example is not at hand; choose another one.") from None

    def image(self, index: int) -> bytes:
        """JPEG."""
        found = self._encoded.get(index)
        if found is None:
            found = jpeg(self.sample(index).image.as_subclass(Tensor))
            with self._lock:
                self._encoded[index] = found
                while len(self._encoded) > _KEPT:
                    self._encoded.popitem(last=False)
        return found


def _in_turn(dataset: Dataset) -> list[int]:
    """The first of each class, then the second of each, and so on."""
    seen = [0] * len(dataset.classes)
    ranked = []
    for index, label in enumerate(dataset.labels):
        ranked.append((seen[label], label, index))
        seen[label] += 1
    return [index for _, _, index in sorted(ranked)]
