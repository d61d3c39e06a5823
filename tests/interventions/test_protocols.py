"""The protocols: what is right by construction is at the top of every score, what is shuffled gets what chance gets."""

from __future__ import annotations

import math
import re
import typing
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dapl.data.toybirds import PARTS, THINGS, ToyBirds
from dapl.evaluation.interventions.protocols import (
    AT_THRESHOLDS,
    IRRELEVANT,
    THRESHOLDS,
    WHOLE,
    ImageScores,
    Protocols,
    summarise_scores,
)
from dapl.evaluation.interventions.result import HEADINGS
from dapl.evaluation.interventions.subjects import PIECES, BirdImage, Oracle, Variant, looks
from dapl.evaluation.statistics import Number
from dapl.metrics import functional as F

BIRDS = ToyBirds(classes=6, images_per_class=4, size=40, split="test")
ROWS = range(len(BIRDS))
SCORES = [*HEADINGS, *WHOLE]


class Inverted:
    """The oracle with an explanation that says the opposite: all that it does not use, and nothing that it uses."""

    names = ("inverted",)

    def __init__(self, birds: ToyBirds) -> None:
        self.oracle = Oracle(birds)

    def logits(self, image: BirdImage, variants: Sequence[Variant]) -> Tensor:
        return self.oracle.logits(image, variants)

    def importances(self, image: BirdImage, classes: Tensor) -> Mapping[str, Tensor]:
        values = self.oracle.importances(image, classes)["oracle"]
        seen = torch.cat([image.visible, torch.tensor([True])])
        return {"inverted": (values.amax(1, keepdim=True) - values) * seen}


def numbers(scores: list[ImageScores], name: str) -> dict[str, Number]:
    at_thresholds = torch.stack([score.at_thresholds[name] for score in scores])
    return summarise_scores(at_thresholds, torch.stack([score.whole[name] for score in scores]), resamples=100)[0]


@pytest.fixture(scope="module")
def of_oracle() -> list[ImageScores]:
    protocols = Protocols(BIRDS, Oracle(BIRDS))
    return [protocols.of_image(row) for row in ROWS]


@pytest.mark.parametrize("score", SCORES)
def test_what_is_right_by_construction_is_at_the_top(of_oracle, score):
    assert numbers(of_oracle, "oracle")[score] == Number(1.0, 1.0, 1.0)


def exact_chance(row: int) -> tuple[Tensor, Tensor]:
    """What the oracle's explanation of an image is expected to get when its importances are dealt out anew.

    By counting, with nothing drawn at random: the pieces that are named are any as many of those seen, each such set as
    likely as another, and the sum that falls on some parts is that of any values, as likely as there are places for
    them. Returns 4×T, in the order of `AT_THRESHOLDS`, and 2, in the order of `WHOLE`.
    """
    protocols, oracle, image = Protocols(BIRDS, Oracle(BIRDS)), Oracle(BIRDS), BirdImage(BIRDS, row)
    seen = torch.cat([image.visible, torch.tensor([True])]).nonzero().flatten()
    evidence = oracle._evidence(image, torch.arange(6))
    nothing = torch.full((1,), 1e-6, dtype=torch.float64)

    def labels(left: Tensor) -> Tensor:
        """The score of the image with these parts only: bool S×K → S."""
        logits = left.double() @ evidence.T
        return torch.cat([logits, nothing.expand(len(left), 1)], dim=1).argmax(1)

    values = oracle.importances(image, torch.tensor([image.label]))["oracle"][0]
    irrelevant = torch.cat([evidence[image.label] < IRRELEVANT, torch.ones(len(THINGS)).bool()]) & image.visible
    sufficient = protocols._sufficient_of(image)
    at_thresholds = []
    for threshold in THRESHOLDS:
        named = int((values > threshold * values.sum()).sum())
        sets = torch.tensor(list(combinations(seen.tolist(), named))).long()
        chosen = torch.zeros(len(sets), len(PIECES) + 1).scatter(1, sets, 1).bool()
        parts = chosen[:, : len(PARTS)]
        shares = (parts.unsqueeze(1) & sufficient).sum(2) / sufficient.sum(1)
        scores = (
            shares.amax(1),
            labels(parts) == image.label,
            labels(~parts) != image.label,
            1 - (chosen[:, :-1] & irrelevant).sum(1) / irrelevant.sum(),
        )
        at_thresholds.append(torch.stack([score.double().mean() for score in scores]))
    rivals, contrast = protocols._rivals(image), torch.nan
    if rivals.classes[0] != rivals.classes[1]:
        of_a, of_b = oracle.importances(image, torch.tensor(rivals.classes))["oracle"][:, seen]
        first, second = (int(parts.sum()) for parts in rivals.parts)
        on_first = more_likely(sums_on(first, of_a), sums_on(first, of_b))
        contrast = (on_first + more_likely(sums_on(second, of_b), sums_on(second, of_a))) / 2
    return torch.stack(at_thresholds, dim=1), torch.tensor([0.5, contrast], dtype=torch.float64)


def sums_on(places: int, values: Tensor) -> dict[float, float]:
    """The sums that so many places can get, and how likely each is, when the values are dealt out among all places."""
    found: dict[float, float] = defaultdict(float)
    given = [value for value in values.tolist() if value > 0]
    others = len(values) - places
    for chosen in product((False, True), repeat=len(given)):
        inside = sum(chosen)
        ways = math.perm(places, inside) * math.perm(others, len(given) - inside) / math.perm(len(values), len(given))
        found[round(sum(value for value, flag in zip(given, chosen, strict=True) if flag), 9)] += ways
    return found


def more_likely(sums: dict[float, float], others: dict[float, float]) -> float:
    """How likely the first is more than the second."""
    return sum(a * b for x, a in sums.items() for y, b in others.items() if x > y)


SHUFFLES = 16
"""Per image."""


class Reshuffled(Protocols):
    """Other shuffles of the same questions: ``seed`` decides nothing else."""

    def _rivals(self, image: BirdImage) -> typing.Any:
        return Protocols(BIRDS, Oracle(BIRDS))._rivals(image)


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """What chance gets of each score over all images: T values, or one."""
    at_thresholds, whole = zip(*(exact_chance(row) for row in ROWS), strict=True)
    found = dict(zip(AT_THRESHOLDS, torch.stack(at_thresholds).mean(0), strict=True))
    return found | dict(zip(WHOLE, torch.stack(whole).nanmean(0), strict=True))


@pytest.fixture(scope="module")
def shuffled() -> dict[str, Tensor]:
    """What the code makes of explanations dealt out anew: of each score SHUFFLES × images × T values, or one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dapl.evaluation.interventions.protocols.BirdImage", cache(BirdImage))  # each is drawn once
        rounds = [Reshuffled(BIRDS, Oracle(BIRDS), seed=seed) for seed in range(SHUFFLES)]
        scores = [[one.of_image(row) for row in ROWS] for one in rounds]
    at_thresholds = torch.stack([torch.stack([one.at_thresholds["shuffled"] for one in many]) for many in scores])
    whole = torch.stack([torch.stack([one.whole["shuffled"] for one in many]) for many in scores])
    found = dict(zip(AT_THRESHOLDS, at_thresholds.unbind(2), strict=True))
    return found | dict(zip(WHOLE, whole.unbind(2), strict=True))


@pytest.mark.parametrize("score", [*AT_THRESHOLDS, *WHOLE])
def test_shuffled_it_gets_what_chance_gets(shuffled: dict[str, Tensor], expected: dict[str, Tensor], score: str):
    """Four standard errors: of the 34 numbers here one in five hundred such tests would find one further off."""
    found = shuffled[score].reshape(SHUFFLES * len(ROWS), -1)
    count = (~found.isnan()).sum(0)
    mean = found.nanmean(0)
    error = ((found - mean).square().nanmean(0) / count).sqrt()
    assert ((mean - expected[score]).abs() <= 4 * error + 1e-6).all()
    assert error.max() < 0.03  # so that this says something


def test_chance_is_at_the_bottom(of_oracle: list[ImageScores], expected: dict[str, Tensor]) -> None:
    """What is right has 1 in all of it; who is right of nothing and names as much has this, as the page says."""
    place = summarise_scores(
        torch.stack([score.at_thresholds["oracle"] for score in of_oracle]),
        torch.stack([score.whole["oracle"] for score in of_oracle]),
        resamples=1,
    )[1]
    chance = {score: float(expected[score][place]) for score in AT_THRESHOLDS}
    chance |= {score: float(expected[score]) for score in WHOLE}
    chance["completeness"] = float(F.completeness(*(expected[score][place] for score in AT_THRESHOLDS)))
    page = (Path(__file__).parents[2] / "docs" / "interventions.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| ([A-Z]\w*)[^|]*\|[^|]*\| (\d\.\d\d) \|$", page, flags=re.MULTILINE)
    names = dict(
        zip(("CSDC", "PC", "DC", "D", "SD", "TS", "Com"), [*AT_THRESHOLDS, *WHOLE, "completeness"], strict=True)
    )
    assert {names[name]: number for name, number in stated} == {name: f"{one:.2f}" for name, one in chance.items()}
    seen = torch.tensor([float(BirdImage(BIRDS, row).visible.sum() + 1) for row in ROWS])
    assert chance["distractibility"] == pytest.approx(float((1 - 4 / seen).mean()), abs=0.01)  # four parts are named
    assert chance["single_deletion"] == 0.5
    assert chance["target_sensitivity"] <= 0.5


def test_a_shuffled_explanation_is_below_the_right_one_by_more_than_its_interval(of_oracle: list[ImageScores]) -> None:
    found = numbers(of_oracle, "shuffled")
    assert all(found[score].high < 1.0 for score in SCORES)


def test_who_names_nothing_is_half_complete() -> None:
    """The bottom of completeness for those who name little: nothing found, nothing distracts."""
    nothing, full = torch.tensor(0.0), torch.tensor(1.0)
    assert F.completeness(nothing, nothing, nothing, full) == 0.5


def test_without_an_explanation_in_the_model_it_is_independent_of_its_background(of_oracle):
    assert torch.stack([score.of_model for score in of_oracle]).eq(1).all()


def test_what_says_the_opposite_has_no_correctness_and_no_contrast():
    protocols = Protocols(BIRDS, Inverted(BIRDS))
    found = numbers([protocols.of_image(row) for row in range(0, len(BIRDS), 2)], "inverted")
    assert found["correctness"].value == 0.0
    assert found["contrastivity"].value == 0.0
    assert found["deletion"].value < 0.2
    assert found["completeness"].value < 0.6


def test_the_drops_of_the_model_itself_are_measured_on_what_was_taken_away():
    image, subject = BirdImage(BIRDS, 5), Oracle(BIRDS)
    told = Protocols(BIRDS, subject)
    classes = torch.tensor([image.label, 0])
    whole = subject.logits(image, [Variant()])[0]
    losses = torch.stack([whole - subject.logits(image, [Variant(frozenset({piece}))])[0] for piece in PIECES])
    drops = told._explanations(image, classes, losses)["drops"]
    assert torch.allclose(drops[0], subject.importances(image, classes)["oracle"][0])


def test_rivals_share_parts_with_the_image_that_the_other_does_not_share():
    protocols, styles = Protocols(BIRDS, Oracle(BIRDS)), looks(BIRDS)
    found = 0
    for row in range(0, len(BIRDS), 4):
        image = BirdImage(BIRDS, row)
        rivals = protocols._rivals(image)
        if rivals.classes[0] == rivals.classes[1]:
            continue
        found += 1
        assert image.label not in rivals.classes
        for own, other, parts in zip(rivals.classes, rivals.classes[::-1], rivals.parts, strict=True):
            assert parts.any()
            for part in parts.nonzero().flatten().tolist():
                assert image.visible[part]
                assert styles[own, part] == styles[image.label, part] != styles[other, part]
    assert found > len(BIRDS) / 8


def test_looks_agree_where_the_styles_of_two_classes_do():
    styles = looks(BIRDS)
    for first in range(6):
        for second in range(6):
            same = [BIRDS.species[first].styles[part] == BIRDS.species[second].styles[part] for part in PARTS]
            assert (styles[first] == styles[second]).tolist() == same


def test_masks_of_a_bird_image_are_disjoint_and_variants_are_what_the_data_set_draws():
    image = BirdImage(BIRDS, 3)
    assert image.masks.shape == (len(PARTS) + len(THINGS), 40, 40)
    assert image.masks.sum(0).max() == 1
    variants = [Variant(background=1), Variant(frozenset({"wing"})), Variant(frozenset({"eye"}), background=0)]
    drawn = image.drawn(variants)
    for one, variant in zip(drawn, variants, strict=True):
        assert torch.equal(one, BIRDS.draw(3, variant.without, None, variant.background).image)


def test_the_threshold_is_the_one_at_which_completeness_is_highest():
    generator = torch.Generator().manual_seed(1)
    at_thresholds = torch.rand(30, 4, len(THRESHOLDS), generator=generator, dtype=torch.float64)
    at_thresholds[::3, 0] = torch.nan  # no CSDC for a wrong label
    whole = torch.rand(30, 2, generator=generator, dtype=torch.float64)
    found, place = summarise_scores(at_thresholds, whole, resamples=50)
    means = at_thresholds.nanmean(0)
    complete = [
        float(((means[0, t] + means[1, t] + means[2, t]) / 3 + means[3, t]) / 2) for t in range(len(THRESHOLDS))
    ]
    assert place == complete.index(max(complete))
    assert found["completeness"].value == pytest.approx(max(complete))
    for number, name in enumerate(AT_THRESHOLDS):
        assert found[name].value == pytest.approx(float(means[number, place]))
    assert found["correctness"].value == pytest.approx(float(whole[:, 0].mean()))
    assert found["contrastivity"].value == pytest.approx(float(whole[:, 1].mean()))
    low, value, high = found["correctness"].low, found["correctness"].value, found["correctness"].high
    assert low < value < high
