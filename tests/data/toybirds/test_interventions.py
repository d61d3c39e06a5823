"""Drawn birds without parts, with parts of others and on other backgrounds: all the rest stays, pixel by pixel."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import torch

from dapl.common.errors import DaplError
from dapl.data.toybirds import PARTS, THINGS, ToyBirds
from dapl.data.toybirds.bird import NUMBER
from dapl.data.toybirds.drawing import Canvas, Frame
from dapl.data.toybirds.image import THING_NUMBER, Change, Drawing, Painting, ToyScene
from dapl.data.toybirds.species import STYLES, species_of

SIZE = 64
SEEDS = (1, 2)
"""Two birds of two species, in two poses and places."""


@cache
def painting(seed: int) -> Painting:
    scene = ToyScene(kind=seed % 8, season=seed % 4, emblem=seed % 7)
    rngs = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
    return Painting(species_of(0, 6)[seed], scene, *rngs, SIZE, SIZE)


@cache
def usual(seed: int) -> Drawing:
    return painting(seed).draw()


def canvas(seed: int, change: Change | None = None) -> Canvas:
    return painting(seed)._changed(change or Change()).canvas


@cache
def on_bird(seed: int) -> np.ndarray:
    return canvas(seed).shows(NUMBER.values())


def unlike(first: Drawing, second: Drawing) -> np.ndarray:
    return (first.image != second.image).any(axis=-1)


@pytest.mark.parametrize("part", PARTS)
def test_without_a_part_all_other_pixels_of_bird_and_backdrop_are_identical(part):
    for seed in SEEDS:
        before, after = usual(seed), painting(seed).draw(Change(frozenset({part})))
        touched = canvas(seed).shows([NUMBER[part]])  # any of a pixel's nine samples: its edges are smooth
        on_things = canvas(seed).shows(THING_NUMBER.values()) & ~on_bird(seed)
        assert not (unlike(before, after) & ~touched & ~on_things).any()
        assert not (after.parts == NUMBER[part]).any()
        assert ((before.parts == NUMBER[part]) | (before.parts == after.parts)).all()
        assert np.array_equal(before.things[before.things > 0], after.things[before.things > 0])


def test_only_the_shadow_beside_the_bird_follows_what_is_left_out():
    """The light on scenery is 0.7 + 0.3 · s with s from 0.62 to 1.22 and some noise: a shadow moves it by a fifth."""
    changes = 0
    for seed in SEEDS:
        before, after = usual(seed), painting(seed).draw(Change(frozenset(PARTS)))
        shadow = unlike(before, after) & ~on_bird(seed)
        changes += shadow.sum()
        assert (canvas(seed).shows(THING_NUMBER.values()) | ~shadow).all()
        moved = after.image[shadow].astype(float) - before.image[shadow]
        assert np.abs(moved).max(initial=0) < 0.2 * 255 * 1.2  # times gain and contrast of the film
    assert changes > 0


def test_what_was_behind_a_part_appears():
    seen: set[str] = set()
    for seed in SEEDS:
        after = painting(seed).draw(Change(frozenset({"wing"})))
        uncovered = after.parts[usual(seed).parts == NUMBER["wing"]]
        seen |= {PARTS[number - 1] for number in np.unique(uncovered) if number}
    assert {"back", "belly"} <= seen


def test_a_canvas_shows_what_lies_behind_and_keeps_what_lies_within():
    """An eye within a face: without the face, the eye stays where it was and the wall shows around it."""
    pixels = Frame(np.eye(2), np.zeros(2))
    made = Canvas(9, 9)
    for piece, (left, top, right, bottom), within in (
        (1, (0, 0, 9, 9), ()),
        (2, (2, 2, 7, 7), ()),
        (3, (4, 4, 12, 6), (2,)),
    ):
        corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)], float)
        made.fill(pixels, [corners], (10 * piece, 0, 0), piece, within)
    eye = made.parts() == 3
    assert eye.any()
    assert not eye[:, 8:].any()  # beyond the face
    for without, expected in (((2,), {1, 3}), ((2, 3), {1}), ((1,), {0, 2, 3}), ((), {1, 2, 3})):
        bare = made.without(without)
        assert set(np.unique(bare.parts())) == expected
        assert 3 in without or np.array_equal(bare.parts() == 3, eye)
        assert np.array_equal(bare.differs(made).any(), bool(without))
    assert set(np.unique(made.parts())) == {1, 2, 3}  # as it was


def test_the_whole_bird_can_be_left_out():
    birds = ToyBirds(classes=2, images_per_class=2, size=64)
    empty = birds.draw(1, without=PARTS)
    assert not empty.mask.any()
    assert not empty.visible.any()
    assert empty.box is None
    assert empty.image.float().std() > 5


def test_several_sets_at_once_are_drawn_as_each_alone():
    birds = ToyBirds(classes=2, images_per_class=2, size=48)
    sets = [(), ("beak",), ("wing", "perch")]
    for without, sample in zip(sets, birds.draw_without(3, sets), strict=True):
        alone = birds.draw(3, without)
        assert torch.equal(alone.image, sample.image)
        assert torch.equal(alone.part_masks, sample.part_masks)
    assert torch.equal(birds.draw(3).image, birds[3].image)


def test_things_are_left_out_and_have_masks():
    birds = ToyBirds(classes=4, images_per_class=3, size=64, split="test")
    gone = torch.zeros(len(THINGS), dtype=torch.bool)
    for index in range(len(birds)):
        masks, before = birds.thing_masks(index).bool(), birds[index]
        assert not (masks & before.mask.bool()).any()
        for number, after in enumerate(birds.draw_without(index, [[thing] for thing in THINGS])):
            changed = (after.image != before.image).any(dim=0)
            others = masks.clone()
            others[number] = False
            assert not changed[others.any(0) & (masks[number] == 0)].float().mean() > 0.2  # but for smooth edges
            gone[number] |= bool(masks[number].any() and changed[masks[number]].float().mean() > 0.8)
    assert gone.all()


def test_another_background_leaves_the_bird():
    birds = ToyBirds(classes=3, images_per_class=1, size=64)
    for index in range(len(birds)):
        before, after, other = birds[index], birds.draw(index, background=0), birds.draw(index, background=1)
        assert torch.equal(before.part_masks, after.part_masks)
        inside = torch.nn.functional.avg_pool2d(before.mask.float()[None, None], 3, 1, 1)[0, 0] == 1
        for one in (after, other):
            same = (one.image == before.image).all(dim=0)
            assert same[inside].float().mean() > 0.97  # gaps between feathers, and the sprig, are background
            assert same[before.mask == 0].float().mean() < 0.2
        assert not torch.equal(after.image, other.image)


@pytest.mark.parametrize("part", PARTS)
def test_an_exchanged_part_looks_otherwise_and_all_else_stays(part):
    for seed, style in zip(SEEDS, STYLES[part][3:], strict=False):
        change = Change(styles={part: style})
        before, after = usual(seed), painting(seed).draw(change)
        touched = canvas(seed, change).differs(canvas(seed))
        on_things = ~on_bird(seed) & ~canvas(seed, change).shows(NUMBER.values())
        assert not (unlike(before, after) & ~touched & ~on_things).any()
        here = canvas(seed).shows([NUMBER[part]]) | canvas(seed, change).shows([NUMBER[part]])
        if part == "crown":  # the nape lies on what of the back the crest leaves free
            here |= canvas(seed).shows([NUMBER["nape"]]) | canvas(seed, change).shows([NUMBER["nape"]])
        assert not (touched & ~here).any()
        own = species_of(0, 6)[seed].styles[part]
        assert touched.any() == (style != own and here.any())


def test_an_exchanged_pattern_leaves_the_random_numbers_of_all_that_follows():
    """A speckled throat takes random numbers that a plain one does not; light, film and wing come after it."""
    forms = {style.form: style for style in STYLES["throat"]}
    drawings = [painting(1).draw(Change(styles={"throat": forms[form]})) for form in ("plain", "speckled")]
    elsewhere = (drawings[0].parts != NUMBER["throat"]) & (usual(1).parts == drawings[0].parts)
    assert (unlike(*drawings) & elsewhere).mean() < 0.02  # the smooth edge of the throat


def test_changes_go_together():
    birds = ToyBirds(classes=3, images_per_class=1, size=64)
    both = birds.draw(0, without={"tail"}, exchanged={"belly": 2}, background=3)
    tail, belly = PARTS.index("tail"), both.part_masks[PARTS.index("belly")].bool()
    assert not both.part_masks[tail].any()
    inner = torch.nn.functional.avg_pool2d(belly.float()[None, None], 3, 1, 1)[0, 0] == 1  # its edges are smooth
    lent = birds.draw(0, exchanged={"belly": 2}).image[:, inner]
    assert torch.equal(both.image[:, inner], lent)
    assert not torch.equal(birds[0].image[:, inner], lent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"without": ["beek"]}, "without: there is no 'beek'; did you mean 'beak'?"),
        ({"exchanged": {"perch": 0}}, "exchanged: there is no part 'perch'; known: beak, eye,"),
        ({"exchanged": {"beak": 3}}, "exchanged: there is no class 3; there are 2, counted from 0."),
        ({"background": -1}, "background is -1; give 0 or a positive whole number."),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(DaplError, match=re.escape(message)):
        ToyBirds(classes=2, images_per_class=1, size=40).draw(0, **arguments)
