"""Validation out of train: seeded and stratified, so that every class is held out in the same share (decision 8)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from dapl.data.sample import Dataset, Subset
from dapl.errors import DaplError


def stratified_split(labels: Sequence[int], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices kept and indices held out, each ascending.

    Of a class with n samples, share × n rounded half up are held out: at least one when n ≥ 2 and share > 0, at most
    n − 1, so none of a single sample. Which ones depends on the seed, the label and n alone, not on other classes nor
    on any global generator.

    >>> stratified_split([0, 0, 0, 1, 1, 2], share=0.3, seed=0)
    ([1, 2, 3, 5], [0, 4])
    """
    if not 0 <= share < 1:
        raise DaplError(f"the share to hold out is {share}; give a number from 0 up to, but not including, 1.")
    members: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        members[int(label)].append(index)
    held: set[int] = set()
    for label, indices in members.items():
        # random.random() is one of the few generators whose numbers Python promises to keep from version to version
        generator = random.Random(f"{seed}/{label}")
        shuffled = sorted((generator.random(), index) for index in indices)
        held.update(index for _, index in shuffled[: _held_out(len(indices), share)])
    kept = [index for index in range(len(labels)) if index not in held]
    return kept, sorted(held)


def _held_out(samples: int, share: float) -> int:
    if share == 0:
        return 0
    return min(max(int(share * samples + 0.5), 1), samples - 1)


def train_validation(dataset: Dataset, share: float = 0.1, seed: int = 0) -> tuple[Subset, Subset]:
    """``dataset`` without a stratified ``share`` of it, and that share."""
    kept, held = stratified_split(dataset.labels, share, seed)
    return Subset(dataset, kept), Subset(dataset, held)
