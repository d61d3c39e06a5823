"""The validation split: stratified, seeded, and nobody else's business. A class by what a person types."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapl.common.errors import DaplError
from dapl.data.cub import read_cub
from dapl.data.sample import Dataset, class_index, stratified_split, train_validation

LABELS = st.lists(st.integers(0, 5), max_size=80)


@settings(deadline=None)
@given(LABELS, st.floats(0, 0.999), st.integers(-5, 2**70))
def test_partition_and_counts(labels: list[int], share: float, seed: int) -> None:
    kept, held = stratified_split(labels, share, seed)
    assert sorted(kept + held) == list(range(len(labels)))
    assert kept == sorted(kept)
    assert held == sorted(held)
    held_out = Counter(labels[index] for index in held)
    for label, n in Counter(labels).items():
        expected = 0 if share == 0 or n == 1 else min(max(int(share * n + 0.5), 1), n - 1)
        assert held_out[label] == expected
    assert (kept, held) == stratified_split(labels, share, seed)


def test_half_is_rounded_up() -> None:
    assert len(stratified_split([0] * 15, 0.1, 0)[1]) == 2
    assert len(stratified_split([0] * 14, 0.1, 0)[1]) == 1


def test_seeds_differ_and_each_sample_can_be_held_out() -> None:
    draws = [stratified_split([0] * 10 + [1] * 10, 0.1, seed)[1] for seed in range(200)]
    counts = Counter(index for held in draws for index in held)
    assert len(counts) == 20
    assert all(5 <= count <= 40 for count in counts.values())
    # classes are drawn apart: not always the same position in both
    assert any(held[1] - held[0] != 10 for held in draws)


def test_a_class_does_not_depend_on_the_others() -> None:
    alone = stratified_split([3] * 30, 0.2, 7)[1]
    together = stratified_split([3] * 30 + [1] * 30, 0.2, 7)[1]
    assert alone == [index for index in together if index < 30]


def test_global_generators_are_left_alone() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    first = stratified_split([0, 1] * 20, 0.2, 0)
    assert before == (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    assert first == stratified_split([0, 1] * 20, 0.2, 0)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_bad_share(share: float) -> None:
    with pytest.raises(DaplError, match="share to hold out"):
        stratified_split([0, 0], share, 0)


def test_train_validation(tiny_cub: Path) -> None:
    dataset = read_cub(tiny_cub).dataset()
    train, validation = train_validation(dataset, share=0.25, seed=3)
    assert isinstance(train, Dataset)
    assert Counter(train.labels) == dict.fromkeys(range(4), 3)
    assert Counter(validation.labels) == dict.fromkeys(range(4), 1)
    assert set(train.names) | set(validation.names) == set(dataset.names)
    assert validation[0].name == validation.names[0]


def test_real_cub_validation(cub_root: Path) -> None:
    train, validation = train_validation(read_cub(cub_root).dataset())
    assert len(train) + len(validation) == 5994
    assert set(Counter(validation.labels)) == set(range(200))
    assert set(Counter(validation.labels).values()) == {3}


# --- classes ----------------------------------------------------------------------------------------------------------


BIRDS = ["001.Black_footed_Albatross", "002.Finch", "003.Red_Finch", "10"]


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ("001.Black_footed_Albatross", 0),
        ("black_footed_albatross", 0),
        ("Albatross", 0),
        ("finch", 1),  # a whole name goes before a part of another one
        ("red", 2),
        ("2", 2),
        (2, 2),
        ("10", 3),  # a name goes before an index
    ],
)
def test_by_name_number_or_part_of_the_name(asked: str | int, index: int) -> None:
    assert class_index(BIRDS, asked) == index


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("Fin", "is in the names of several classes: 002.Finch, 003.Red_Finch; say which"),
        ("003.Red_Finsh", r"there is no class '003\.Red_Finsh'; did you mean '003\.Red_Finch'"),
        ("", "there is no class ''"),
        ("7", "there is no class 7; there are 4"),
        (-1, "there is no class -1"),
    ],
)
def test_what_is_none(asked: str | int, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        class_index(BIRDS, asked)
