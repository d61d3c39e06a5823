"""The protocols: an explanation that is right by construction is at the top of every score, a shuffled one is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from dapl.data.toybirds import PARTS, THINGS, ToyBirds
from dapl.evaluation.interventions.protocols import (
    AT_THRESHOLDS,
    THRESHOLDS,
    WHOLE,
    ImageScores,
    Protocols,
    summarise_scores,
)
from dapl.evaluation.interventions.result import HEADINGS
from dapl.evaluation.interventions.subjects import PIECES, BirdImage, Oracle, Variant, looks
from dapl.evaluation.statistics import Number

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


@pytest.mark.parametrize("score", SCORES)
def test_shuffled_it_is_at_the_bottom(of_oracle, score):
    """Below the oracle's 1 by more than chance explains; ranking and contrast, whose chance is one half, no better."""
    shuffled = numbers(of_oracle, "shuffled")[score]
    assert shuffled.high < 1.0
    assert shuffled.value < 0.96
    if score in WHOLE:
        assert shuffled.low <= 0.5 <= shuffled.high or shuffled.high < 0.5  # no better than a coin


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
