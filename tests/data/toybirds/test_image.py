import numpy as np
import pytest

from dapl.data.toybirds import ToyBirds
from dapl.data.toybirds.image import PERCHES, Painting, ToyScene, scene_of_class
from dapl.data.toybirds.scenes import EMBLEMS, KINDS, SEASONS
from dapl.data.toybirds.species import PARTS, STYLES, THEMES, Species


def draw(species: Species, scene: ToyScene, seed: int = 0, size: int = 48) -> tuple[np.ndarray, np.ndarray]:
    scenery, bird = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
    drawing = Painting(species, scene, scenery, bird, size, size).draw()
    return drawing.image, drawing.parts


@pytest.mark.parametrize("theme", range(THEMES))
def test_every_look_can_be_drawn(theme):
    species = Species("Theme", {part: STYLES[part][theme] for part in PARTS}, plumpness=1.0, head_size=1.0)
    image, parts = draw(species, ToyScene(kind=theme % len(KINDS), season=theme % 4, emblem=theme % len(EMBLEMS)))
    assert image.shape == (48, 48, 3)
    assert image.std() > 10
    assert 0.1 < (parts > 0).mean() < 0.6


def test_every_kind_of_place_has_a_perch():
    assert len(PERCHES) == len(KINDS)


def test_no_two_classes_are_betrayed_by_the_same_scene():
    assert len({scene_of_class(label) for label in range(200)}) == 200
    places = {(scene.kind, scene.season) for scene in map(scene_of_class, range(32))}
    assert len(places) == len(KINDS) * len(SEASONS)


def test_a_look_shows_in_its_own_part_only():
    styles = {part: STYLES[part][2] for part in PARTS}
    other = styles | {"belly": STYLES["belly"][4]}
    scene = ToyScene(0, 0, 0)
    first, parts = draw(Species("First", styles, 1.0, 1.0), scene, size=96)
    second, same_parts = draw(Species("Second", other, 1.0, 1.0), scene, size=96)
    assert np.array_equal(parts, same_parts)
    changed = np.abs(first.astype(int) - second).max(axis=2) > 24
    belly = parts == PARTS.index("belly") + 1
    assert changed[belly].mean() > 0.9
    grown = belly.copy()
    for axis in (0, 1):
        grown |= np.roll(grown, 1, axis) | np.roll(grown, -1, axis)
    assert not changed[~grown].any()


def _background_features(birds: ToyBirds) -> np.ndarray:
    """N×27: mean colour of what is not bird in each field of a 3×3 grid."""
    rows = []
    for index in range(len(birds)):
        sample = birds[index]
        colour, ground = sample.image.numpy().astype(float), sample.mask.numpy() == 0
        fields = [np.array_split(thirds, 3, axis=2) for thirds in np.array_split(colour * ground, 3, axis=1)]
        areas = [np.array_split(thirds, 3, axis=1) for thirds in np.array_split(ground, 3, axis=0)]
        rows.append(
            [
                field.sum(axis=(1, 2)) / max(area.sum(), 1)
                for field_row, area_row in zip(fields, areas, strict=True)
                for field, area in zip(field_row, area_row, strict=True)
            ]
        )
    return np.array(rows).reshape(len(rows), -1)


def _accuracy_from_background(cue: float, classes: int = 10, images: int = 4) -> float:
    train = ToyBirds(classes, images, 40, background_cue=cue)
    test = ToyBirds(classes, images, 40, background_cue=cue, split="test")
    centroids = _background_features(train).reshape(classes, images, -1).mean(axis=1)
    distances = np.square(_background_features(test)[:, None] - centroids).sum(axis=2)
    return float((distances.argmin(axis=1) == np.array(test.labels)).mean())


def test_the_background_tells_the_class_with_the_cue_and_not_without():
    assert _accuracy_from_background(cue=1.0) > 0.8
    assert _accuracy_from_background(cue=0.0) < 0.2  # chance: 0.1
