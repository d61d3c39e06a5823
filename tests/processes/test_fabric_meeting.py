"""Processes that torchrun starts again find each other, whatever the dead ones have left in its store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from dapl.common.errors import DaplError
from dapl.processes.fabric import agree_on_attempt, any_restarted

PATIENCE = timedelta(seconds=20)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_each_attempt_has_a_name_of_its_own_whoever_comes_first(first: int) -> None:
    store, names = HashStore(), []
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            waiting = [pool.submit(agree_on_attempt, store, rank % 3, 3, PATIENCE) for rank in range(first, first + 3)]
            (name,) = {each.result() for each in waiting}
            names.append(name)
    assert len(set(names)) == 3


def test_an_attempt_in_which_the_first_process_died_is_not_joined() -> None:
    store = HashStore()
    store.set("dapl/attempt", "dead")  # proposed, and never confirmed
    with pytest.raises(DaplError, match="process 1 of 2 has waited"):
        agree_on_attempt(store, 1, 2, timedelta(seconds=0.2))
    with ThreadPoolExecutor(2) as pool:
        late, first = (pool.submit(agree_on_attempt, store, rank, 2, PATIENCE) for rank in (1, 0))
        assert late.result() == first.result() != "dapl/dead"


def test_a_restart_that_one_host_counts_is_one_for_all() -> None:
    """torchrun's c10d rendezvous: the host whose processes live is not the one that counts."""
    store = HashStore()
    for counts, expected in (((0, 0), False), ((0, 1), True), ((1, 0), True), ((0, 0), False)):
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(any_restarted, store, rank, 2, counts[rank], PATIENCE) for rank in (0, 1)]
            assert [each.result() for each in asked] == [expected] * 2
