"""The data set: images drawn on demand, each a pure function of the arguments and of its class and number.

`write` puts them into files, for programs that read folders of images.
"""

from __future__ import annotations

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import tv_tensors

from dapl.common.errors import DaplError, nearest
from dapl.common.files import replacing
from dapl.common.reading import read_text
from dapl.data.sample import Dataset, Sample
from dapl.data.toybirds.image import THINGS, Change, Drawing, Painting, another_scene, random_scene, scene_of_class
from dapl.data.toybirds.species import PARTS, species_of

DRAWING_VERSION = 1  # raise it whenever an image or a mask would change: caches go by the fingerprint
SMALLEST_SIDE = 32
_STREAMS = {"train": 3, "validation": 4, "test": 5}  # random streams; species.py has those of the classes


class ToyBirds:
    """Drawn birds of ``classes`` species, ``images_per_class`` images each, class after class.

    A species depends on ``seed`` and its index alone, an image on these, ``split``, its number and ``size``: more
    classes or more images leave the others as they are. ``background_cue`` is the probability that an image's
    background is the one that betrays its class; otherwise it is drawn independently of the class. It changes nothing
    but the background: the same bird stands there in the same pose.

    >>> ToyBirds(classes=3, images_per_class=2, size=48, split="test")
    ToyBirds(test: 6 images, 3 classes)
    """

    has_masks = True

    def __init__(
        self,
        classes: int = 10,
        images_per_class: int = 40,
        size: int | tuple[int, int] = 224,
        seed: int = 0,
        background_cue: float = 0.0,
        split: str = "train",
    ) -> None:
        """``size`` is the side of square images or (height, width)."""
        self.height, self.width = (size, size) if isinstance(size, int) else size
        _check(classes, images_per_class, (self.height, self.width), seed, background_cue, split)
        self.images_per_class, self.seed = images_per_class, seed
        self.background_cue, self.split = background_cue, split
        self._last: tuple[tuple[int, ...], Painting] | None = None
        self.species = species_of(seed, classes)
        self.classes: Sequence[str] = [species.name for species in self.species]
        self.parts: Sequence[str] = list(PARTS)
        self.labels: Sequence[int] = [label for label in range(classes) for _ in range(images_per_class)]
        self.names: Sequence[str] = [
            f"{split}/{label:03}/{n:04}" for label in range(classes) for n in range(images_per_class)
        ]
        self.fingerprint = (
            f"toybirds-v{DRAWING_VERSION}-{split}-{classes}x{images_per_class}-{self.height}x{self.width}"
            f"-seed{seed}-cue{background_cue!r}"
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ToyBirds({self.split}: {len(self)} images, {len(self.classes)} classes)"

    def __getitem__(self, index: int) -> Sample:
        return self._sample(index, self._painting(index).draw())

    def draw(
        self,
        index: int,
        without: Collection[str] = (),
        exchanged: Mapping[str, int] | None = None,
        background: int | None = None,
    ) -> Sample:
        """Image ``index`` with something changed and all the rest equal, pixel by pixel.

        >>> birds = ToyBirds(classes=3, images_per_class=2, size=64)
        >>> beakless, bird = birds.draw(0, without={"beak"}), birds[0]
        >>> bool(beakless.part_masks[0].any()), bool((beakless.image != bird.image).any())
        (False, True)
        >>> birds.draw(0, exchanged={"wing": 2}, background=7)      # the wing of class 2, somewhere else
        Sample(image=...)

        Args:
            without: parts (`PARTS`) and things around the bird (`THINGS`) that are left out: what is behind them shows.
            exchanged: parts that look as those of another class do, by the index of that class.
            background: the number of another background, from 0 up: another kind of place, whatever the class.
        """
        styles = {}
        for part, label in (exchanged or {}).items():
            if part not in PARTS:
                raise DaplError(f"exchanged: there is no part '{part}'{nearest(part, PARTS)}")
            if not 0 <= label < len(self.classes):
                raise DaplError(f"exchanged: there is no class {label}; there are {len(self.classes)}, counted from 0.")
            styles[part] = self.species[label].styles[part]
        painting, scene, rng = self._painting(index), None, None
        if background is not None:
            if background < 0:
                raise DaplError(f"background is {background}; give 0 or a positive whole number.")
            position = (*self._position(index), background)
            scene_rng, rng = map(np.random.default_rng, np.random.SeedSequence(position).spawn(2))
            scene = another_scene(painting.scene, scene_rng)
        change = Change(_known(without), styles, scene, rng)
        return self._sample(index, painting.draw(change))

    def draw_without(self, index: int, sets: Iterable[Collection[str]]) -> list[Sample]:
        """Image ``index`` without each of these sets of parts and things, as `draw` draws it; painted only once.

        >>> birds = ToyBirds(classes=3, images_per_class=2, size=64)
        >>> [int(sample.visible.sum()) for sample in birds.draw_without(0, [(), ["beak"], ["beak", "eye"]])]
        [11, 10, 9]
        """
        painting = self._painting(index)
        return [self._sample(index, painting.draw(Change(_known(without)))) for without in sets]

    def thing_masks(self, index: int) -> tv_tensors.Mask:
        """Where each of `THINGS` is seen in image ``index``: uint8 T×H×W, as ``part_masks`` of a `Sample` are."""
        return _masks(self._painting(index).draw().things, len(THINGS))

    def _position(self, index: int) -> tuple[int, ...]:
        """Where the image is among all that can be drawn: its random numbers follow from it."""
        label, number = divmod(range(len(self))[index], self.images_per_class)
        return self.seed, _STREAMS[self.split], label, number

    def _painting(self, index: int) -> Painting:
        """The last one is kept: who draws an image without something mostly draws it more than once."""
        position = self._position(index)
        if self._last is not None and self._last[0] == position:
            return self._last[1]
        children = np.random.SeedSequence(position).spawn(3)
        cue_rng, scenery_rng, bird_rng = map(np.random.default_rng, children)
        label = position[2]
        betrayed = cue_rng.random() < self.background_cue
        scene = scene_of_class(label) if betrayed else random_scene(cue_rng)
        painting = Painting(self.species[label], scene, scenery_rng, bird_rng, self.height, self.width)
        self._last = position, painting
        return painting

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": None}  # it can be painted anew wherever this goes

    def _sample(self, index: int, drawing: Drawing) -> Sample:
        return _sample(drawing.image, drawing.parts, self.labels[index], self.names[index])


def _known(without: Collection[str]) -> frozenset[str]:
    pieces = (*PARTS, *THINGS)
    for name in without:
        if name not in pieces:
            raise DaplError(f"without: there is no '{name}'{nearest(name, pieces)}")
    return frozenset(without)


def _sample(image: NDArray[np.uint8], parts: NDArray[np.uint8], label: int, name: str) -> Sample:
    """``image`` is H×W×3, ``parts`` H×W with k + 1 where part k is seen."""
    keypoints, visible = _keypoints(parts)
    return Sample(
        image=tv_tensors.Image(torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))),
        label=label,
        name=name,
        mask=tv_tensors.Mask(torch.from_numpy((parts > 0).astype(np.uint8))),
        keypoints=tv_tensors.KeyPoints(torch.from_numpy(keypoints), canvas_size=parts.shape),
        visible=torch.from_numpy(visible),
        part_masks=_masks(parts, len(PARTS)),
        box=_box(parts),
    )


def _masks(numbers: NDArray[np.uint8], count: int) -> tv_tensors.Mask:
    """H×W with k + 1 where thing k is seen → uint8 count×H×W."""
    each = np.arange(1, count + 1, dtype=np.uint8)[:, None, None]
    return tv_tensors.Mask(torch.from_numpy((numbers == each).astype(np.uint8)))


def _box(parts: NDArray[np.uint8]) -> tv_tensors.BoundingBoxes | None:
    """Around all that is seen of the bird; None where it has been left out altogether."""
    if not parts.any():
        return None
    rows, columns = (np.flatnonzero((parts > 0).any(axis=axis)) for axis in (1, 0))
    box = torch.tensor([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], dtype=torch.float32)
    return tv_tensors.BoundingBoxes(box, format="XYXY", canvas_size=parts.shape)


def _keypoints(parts: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """K×2 (x, y), the centre of the pixel of each part nearest to its centroid, and K whether it is seen at all."""
    keypoints, visible = np.zeros((len(PARTS), 2), np.float32), np.zeros(len(PARTS), bool)
    rows, columns = np.nonzero(parts)
    numbers = parts[rows, columns]
    for part in range(len(PARTS)):
        here = numbers == part + 1
        if here.any():
            pixels = np.stack([columns[here], rows[here]], axis=1)
            nearest = np.square(pixels - pixels.mean(axis=0)).sum(axis=1).argmin()
            keypoints[part], visible[part] = pixels[nearest] + 0.5, True
    return keypoints, visible


def _check(
    classes: int, images_per_class: int, size: tuple[int, int], seed: int, background_cue: float, split: str
) -> None:
    if classes < 1:
        raise DaplError(f"classes is {classes}; give at least 1.")
    if images_per_class < 1:
        raise DaplError(f"images_per_class is {images_per_class}; give at least 1.")
    if min(size) < SMALLEST_SIDE:
        raise DaplError(f"size is {size[0]}×{size[1]} pixels; give at least {SMALLEST_SIDE} for each side.")
    if seed < 0:
        raise DaplError(f"seed is {seed}; give 0 or a positive whole number.")
    if not 0 <= background_cue <= 1:
        raise DaplError(f"background_cue is {background_cue}; give a probability from 0 to 1.")
    if split not in _STREAMS:
        raise DaplError(f"split is {split!r}; give one of {', '.join(_STREAMS)}.")


_COLUMNS = ("image", "part", "x", "y", "visible")
_PART_COLOURS = bytes.fromhex(
    "000000 e63c3c fafafa fadc3c 4696dc f08c3c 9646be 50dcdc e65ad2 50be64 aa783c 4646aa 96963c"
)
"""RGB, the background first."""


def write(dataset: Dataset, folder: str | Path) -> None:
    """Write a `ToyBirds` (or a subset of one) below ``folder``; several splits may share it.

    - ``<split>/<class>/<number>.png``: the image, the class folder named ``003.Slate-crowned_Robin``;
    - ``masks/<split>/<class>/<number>.png``: 255 on the bird;
    - ``parts/<split>/<class>/<number>.png``: indexed, k + 1 where part k of ``dataset.parts`` is seen;
    - ``keypoints.csv``: one row per image and part, for all splits in the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(ToyBirds(classes=1, images_per_class=2, size=40), folder)
    ...     print(sorted(path.name for path in Path(folder).iterdir()))
    ['keypoints.csv', 'masks', 'parts', 'train']
    """
    folder = Path(folder)
    rows: list[tuple[str, ...]] = []
    for index in range(len(dataset)):
        sample = dataset[index]
        split, number_of_class, number = sample.name.split("/")
        class_folder = f"{number_of_class}.{dataset.classes[sample.label].replace(' ', '_')}"
        path = f"{split}/{class_folder}/{number}.png"
        _write_images(sample, folder, path)
        points, visible = sample.keypoints.tolist(), sample.visible.int().tolist()  # type: ignore[union-attr]
        parts = zip(dataset.parts, points, visible, strict=True)
        rows += [(path, part, str(x), str(y), str(seen)) for part, (x, y), seen in parts]
    _write_keypoints(folder / "keypoints.csv", rows)


def _write_images(sample: Sample, folder: Path, path: str) -> None:
    assert sample.mask is not None
    assert sample.part_masks is not None
    _save(Image.fromarray(sample.image.permute(1, 2, 0).numpy()), folder / path)
    _save(Image.fromarray(sample.mask.numpy() * np.uint8(255)), folder / "masks" / path)
    numbers = np.arange(1, len(sample.part_masks) + 1, dtype=np.uint8)[:, None, None]
    parts = Image.fromarray((sample.part_masks.numpy() * numbers).max(axis=0))
    parts.putpalette(_PART_COLOURS)
    _save(parts, folder / "parts" / path)


def _save(image: Image.Image, path: Path) -> None:
    with replacing(path) as temporary:
        image.save(temporary, format="PNG")


def _write_keypoints(path: Path, rows: list[tuple[str, ...]]) -> None:
    """Rows of other images that are in the file already stay, so that splits can be written one after the other."""
    written = {row[0] for row in rows}
    if path.exists():
        before = io.StringIO(read_text(path, "delete it"), newline="")
        others = [tuple(row) for row in csv.reader(before) if row]
        rows = rows + [row for row in others if row != _COLUMNS and row[0] not in written]
    rows = sorted(rows, key=lambda row: row[0])  # stable: the parts of an image keep their order
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(rows)
