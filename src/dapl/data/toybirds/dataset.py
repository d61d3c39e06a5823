"""The data set: pictures drawn on demand, each a pure function of the arguments and of its class and number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

import dapl._torchvision  # noqa: F401  (before torchvision)  # isort: skip
from torchvision import tv_tensors

from dapl.data.sample import Sample
from dapl.data.toybirds.looks import PARTS
from dapl.data.toybirds.picture import draw_picture, random_scene, scene_of_class
from dapl.data.toybirds.species import species_of
from dapl.errors import DaplError

DRAWING_VERSION = 1  # raise it whenever a picture or a mask would change: caches go by the fingerprint
SMALLEST_SIDE = 32
_STREAMS = {"train": 3, "validation": 4, "test": 5}  # random streams; species.py has those of the classes


class ToyBirds:
    """Drawn birds of ``classes`` species, ``images_per_class`` pictures each, class after class.

    A species depends on ``seed`` and its index alone, a picture on these, ``split``, its number and ``size``: more
    classes or more pictures leave the others as they are. ``background_cue`` is the probability that a picture's
    background is the one that betrays its class; otherwise it is drawn independently of the class. It changes nothing
    but the background: the same bird stands there in the same pose.
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
        """``size`` is the side of square pictures or (height, width)."""
        self.height, self.width = (size, size) if isinstance(size, int) else size
        _check(classes, images_per_class, (self.height, self.width), seed, background_cue, split)
        self.images_per_class, self.seed, self.background_cue, self.split = (
            images_per_class,
            seed,
            background_cue,
            split,
        )
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

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        label, number = divmod(index, self.images_per_class)
        position = np.random.SeedSequence((self.seed, _STREAMS[self.split], label, number))
        cue_rng, scenery_rng, bird_rng = (np.random.default_rng(child) for child in position.spawn(3))
        betrayed = cue_rng.random() < self.background_cue
        scene = scene_of_class(label) if betrayed else random_scene(cue_rng)
        picture, parts = draw_picture(self.species[label], scene, scenery_rng, bird_rng, self.height, self.width)
        return _sample(picture, parts, label, self.names[index])


def _sample(picture: NDArray[np.uint8], parts: NDArray[np.uint8], label: int, name: str) -> Sample:
    """``picture`` is H×W×3, ``parts`` H×W with k + 1 where part k is seen."""
    keypoints, visible = _keypoints(parts)
    rows, columns = (np.flatnonzero((parts > 0).any(axis=axis)) for axis in (1, 0))
    box = [[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]]
    numbers = np.arange(1, len(PARTS) + 1, dtype=np.uint8)[:, None, None]
    return Sample(
        image=tv_tensors.Image(torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))),
        label=label,
        name=name,
        mask=tv_tensors.Mask(torch.from_numpy((parts > 0).astype(np.uint8))),
        keypoints=tv_tensors.KeyPoints(torch.from_numpy(keypoints), canvas_size=parts.shape),
        visible=torch.from_numpy(visible),
        part_masks=tv_tensors.Mask(torch.from_numpy((parts == numbers).astype(np.uint8))),
        box=tv_tensors.BoundingBoxes(torch.tensor(box, dtype=torch.float32), format="XYXY", canvas_size=parts.shape),
    )


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
