from itertools import combinations

import pytest

from dapl.data.toybirds.species import PARTS, STYLES, THEMES, differing_parts, species_of


@pytest.mark.parametrize("seed", [0, 7])
def test_any_two_classes_differ_in_three_parts_or_more(seed):
    species = species_of(seed, 200)
    assert min(differing_parts(first, second) for first, second in combinations(species, 2)) >= 3


def test_no_single_part_decides_among_ten_classes():
    species = species_of(0, 10)
    for part in PARTS:
        styles = [one.styles[part] for one in species]
        assert 1 < len(set(styles)) < len(styles), part


def test_a_class_is_the_same_whatever_the_number_of_classes():
    many = species_of(3, 60)
    assert species_of(3, 1) == many[:1]
    assert species_of(3, 25) == many[:25]
    assert species_of(4, 25) != many[:25]


def test_names_are_unique_and_tell_what_is_seen():
    species = species_of(0, 200)
    assert len({one.name for one in species}) == 200
    for one in species:
        assert one.name.endswith(one.styles["beak"].word)
        first_word = one.name.split("-")[0]
        assert first_word in {style.word for style in one.styles.values()}


def test_every_part_has_a_look_for_every_theme():
    assert tuple(STYLES) == PARTS
    assert len(PARTS) >= 10
    assert {len(styles) for styles in STYLES.values()} == {THEMES}
