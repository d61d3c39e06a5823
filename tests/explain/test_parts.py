"""Which part a region lies on, and what a prototype is called."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dapl.explain.parts import ImageFacts, described, foreground_shares, name_parts
from dapl.runs.schemas import PrototypeLook, PrototypeRecord


def square(top: int, left: int, side: int, size: int = 32) -> Tensor:
    mask = torch.zeros(size, size, dtype=torch.bool)
    mask[top : top + side, left : left + side] = True
    return mask


def facts(*parts: Tensor, visible: list[bool] | None = None) -> ImageFacts:
    stacked = torch.stack(parts)
    seen = torch.ones(len(parts), dtype=torch.bool) if visible is None else torch.tensor(visible)
    return ImageFacts(None, stacked, seen, [f"part {k}" for k in range(len(parts))])


def test_the_part_that_most_of_a_region_lies_on() -> None:
    region = square(0, 0, 10)[None]
    assert name_parts(region, facts(square(8, 8, 8), square(5, 5, 8))) == ["part 1"]
    sliver, back = square(0, 0, 1), square(2, 2, 12)  # all of the sliver is covered, half of the back
    assert name_parts(region, facts(sliver, back)) == ["part 1"]


def test_of_parts_with_as_much_in_common_the_nearest() -> None:
    region = square(0, 0, 11)[None]
    assert name_parts(region, facts(square(0, 0, 2), square(5, 5, 2), square(9, 9, 2))) == ["part 1"]


def test_no_part() -> None:
    region = square(0, 0, 8)[None]
    assert name_parts(region, facts(square(20, 20, 4))) == [None]
    assert name_parts(region, facts(square(0, 0, 4), visible=[False])) == [None]
    assert name_parts(region, facts(square(6, 6, 20))) == [None]  # less than a fifth of it
    assert name_parts(region, ImageFacts()) == [None]
    assert name_parts(region, None) == [None]
    assert name_parts(torch.zeros(0, 32, 32, dtype=torch.bool), facts(square(0, 0, 4))) == []


def test_foreground_shares() -> None:
    regions = torch.stack((square(0, 0, 8), square(0, 4, 8), square(20, 20, 8), square(0, 0, 0)))
    assert foreground_shares(regions, ImageFacts(square(0, 0, 8))) == [1.0, 0.5, 0.0, None]
    assert foreground_shares(regions, ImageFacts()) == [None] * 4


def test_what_a_prototype_is_called_and_when_it_is_background() -> None:
    record = PrototypeRecord(0, ["bird"], 0, foreground_share=0.2, region_foreground=0.4)
    look = PrototypeLook(0, 0.9, {"face": 0.9, "nape": 0.41, "tail": 0.1}, [3])
    said = described(record, look)
    assert said.name == "face 90 %, nape 41 %"
    assert (said.on_object, said.background, said.same_spot) == (0.9, False, (3,))
    assert described(record, PrototypeLook(0, 0.4976)).background
    assert described(record, None).on_object == 0.4, "as pruning saw it, where nothing was measured"
    assert described(replace(record, region_foreground=None), None).on_object == 0.2
    assert described(None, None).name is None
    assert described(record, PrototypeLook(0, None, {"face": 0.49})).name is None, "no part is clear"


def test_a_sliver_names_nothing() -> None:
    """A region on the back covers all of an eye, and what is left of a hidden beak, in every image."""
    shares = {"beak": 1.0, "eye": 1.0, "back": 0.8, "wing": 0.5, "nape": 0.45}
    shared = {"beak": 0.0004, "eye": 0.002, "back": 0.02, "wing": 0.012, "nape": 0.015}
    assert described(None, PrototypeLook(0, 0.9, shares, shared=shared)).name == "back 80 %, nape 45 %"
    seldom = shares | {"back": 0.3, "wing": 0.3, "nape": 0.3}
    assert described(None, PrototypeLook(0, 0.9, seldom, shared=shared)).name is None, "what it lies on is not clear"
    assert described(None, PrototypeLook(0, 0.9, shares)).name == "beak 100 %, eye 100 %", "a run measured before"
