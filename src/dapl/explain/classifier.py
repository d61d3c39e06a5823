"""A trained model in three lines: load, predict, explain. Works on a run and on an exported folder."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias, overload

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors

from dapl.common.errors import DaplError
from dapl.config import DataSection, ModelConfig
from dapl.data.build import build_splits, hand_over
from dapl.data.images import read_image, rgb_of, upright
from dapl.data.sample import Sample, Splits, class_index
from dapl.data.transforms import Fit, fit
from dapl.explain.draw import percentage
from dapl.explain.evidence import explanations, logits_of, run_pass
from dapl.explain.local import LocalExplanation, localise
from dapl.explain.parts import ModelRecords, facts_of, seen_of
from dapl.explain.patches import PatchSource, RunPatches
from dapl.models.contract import PrototypeModel
from dapl.runs.loading import LoadedRun

ImageLike: TypeAlias = "str | Path | Image.Image | np.ndarray | Tensor"
"""A file; a PIL image; an array H×W×3 or H×W; a tensor 3×H×W. Numbers are uint8, or floats from 0 to 1."""
_BATCH = 32
"""Images per model pass of a list."""
_SHOWN = 5
"""Classes that a notebook shows."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """What a model says of an image.

    >>> Prediction("auklet", 1, 0.9, {"auklet": 0.9, "albatross": 0.1})
    Prediction(auklet 90.0%, albatross 10.0%)
    """

    class_name: str
    class_index: int
    probability: float
    probabilities: Mapping[str, float]
    """By the name of the class, the highest first."""

    def __repr__(self) -> str:
        best = [f"{name} {percentage(share)}" for name, share in islice(self.probabilities.items(), 3)]
        return f"Prediction({', '.join(best)}{', …' if len(self.probabilities) > 3 else ''})"

    def _repr_html_(self) -> str:
        """A small table with a bar per class, for a notebook."""
        rows = "".join(
            f'<tr><td style="text-align:left">{html.escape(name)}</td>'
            f'<td style="text-align:left"><div style="width:160px;background:#8883">'
            f'<div style="width:{100 * share:.1f}%;height:9px;background:#c2570c"></div></div></td>'
            f"<td>{html.escape(percentage(share))}</td></tr>"
            for name, share in islice(self.probabilities.items(), _SHOWN)
        )
        return f"<table>{rows}</table>"


class Classifier:
    """A trained model with all that is needed to ask it, and to ask why.

    >>> model = dapl.load("runs/cub20")                   # doctest: +SKIP
    >>> model                                             # doctest: +SKIP
    Classifier(dapl · tf_efficientnet_lite0 · cub: 20 classes, 200 prototypes, images of 224 pixels)
    >>> model.predict("bird.jpg").class_name              # doctest: +SKIP
    '001.Black_footed_Albatross'
    >>> model.explain("bird.jpg").save("bird.html")       # doctest: +SKIP
    """

    def __init__(
        self,
        model: PrototypeModel,
        known: ModelRecords,
        image_size: int,
        fit: Fit,
        about: str = "",
        patches: PatchSource | None = None,
        data: DataSection | None = None,
        splits: Splits | None = None,
    ) -> None:
        """``about`` says in a few words which model it is; ``data`` is what a run was trained on, ``splits`` the same
        where it was handed over in Python."""
        self.model, self.known, self.about, self.data, self.splits = model, known, about, data, splits
        self.classes = list(known.classes)
        self.image_size, self.fit = image_size, fit
        self.patches = patches or PatchSource()

    @classmethod
    def of_run(cls, loaded: LoadedRun, splits: Splits | None = None) -> Classifier:
        """``splits``: the data of a run that was trained on data handed over in Python."""
        if splits is not None:
            hand_over(loaded.config.data, splits)
        config, data = loaded.config, loaded.config.data
        known = ModelRecords(loaded.classes, loaded.records, loaded.run.looks())
        words = about(config.model, data.name)
        return cls(loaded.model, known, data.image_size, data.fit, words, RunPatches(config, splits), data, splits)

    def __repr__(self) -> str:
        kept = int(self.model.prototypes.kept.sum()) if len(self.model.prototypes) else 0
        sizes = f"{len(self.classes)} classes, {kept} prototypes, images of {self.image_size} pixels"
        return f"Classifier({self.about or type(self.model).__name__}: {sizes})"

    def _repr_html_(self) -> str:
        """What model it is and which classes it knows, for a notebook."""
        names = ", ".join(self.classes[:_SHOWN]) + (", …" if len(self.classes) > _SHOWN else "")
        return f"<b>{html.escape(repr(self))}</b><br>{html.escape(names)}"

    def pixels(self, image: ImageLike) -> Tensor:
        """The image as the model sees it: uint8 3×S×S."""
        return self.fitted(_sample(image)).image.as_subclass(Tensor)

    @overload
    def predict(self, image: ImageLike) -> Prediction: ...
    @overload
    def predict(self, image: list[ImageLike] | tuple[ImageLike, ...]) -> list[Prediction]: ...
    @torch.no_grad()
    def predict(self, image: ImageLike | list[ImageLike] | tuple[ImageLike, ...]) -> Prediction | list[Prediction]:
        """Ask what an image shows, or what each of a list shows.

        >>> model.predict("bird.jpg")                                  # doctest: +SKIP
        Prediction(auklet 90.0%, albatross 10.0%)
        >>> model.predict(["bird.jpg", Image.open("other.png")])       # doctest: +SKIP
        [Prediction(auklet 90.0%, albatross 10.0%), Prediction(albatross 77.0%, auklet 23.0%)]

        Args:
            image: a file, a PIL image, an array H×W×3 or a tensor 3×H×W; or a list of them, which goes through
                the model in batches.
        """
        if isinstance(image, (list, tuple)):
            batches = (image[start : start + _BATCH] for start in range(0, len(image), _BATCH))
            return [prediction for batch in batches for prediction in self._predict(batch)]
        return self._predict([image])[0]

    def _predict(self, images: Sequence[ImageLike]) -> list[Prediction]:
        device = next(self.model.parameters()).device
        pixels = torch.stack([self.pixels(image) for image in images])
        shares = self.model(pixels.to(device)).logits.double().softmax(1).cpu()
        found = []
        for row in shares:
            order = row.argsort(descending=True, stable=True).tolist()
            named = {self.classes[c]: float(row[c]) for c in order}
            found.append(Prediction(self.classes[order[0]], order[0], float(row[order[0]]), named))
        return found

    def explain(
        self,
        image: ImageLike | Sample,
        against: str | int | None = None,
        top: int = 10,
        switched_off: Collection[int] = (),
        parts: Sequence[str] = (),
    ) -> LocalExplanation:
        """Ask why an image gets its label: the predicted class, and beside it the runner-up or the class ``against``.

        >>> why = model.explain("bird.jpg", against="albatross")       # doctest: +SKIP
        >>> why.classes[0].rows[0]                                     # doctest: +SKIP

        Args:
            image: an image, or a `Sample` of annotated data: ``parts`` are the names of its parts, which are then
                named, and background flagged, by where they are in this image.
            against: name or index of a class.
            top: prototypes listed per class.
            switched_off: prototypes that are taken out of the sum.
            parts: names of the parts that a `Sample` has annotated.
        """
        sample = image if isinstance(image, Sample) else _sample(image)
        fitted = self.fitted(sample)
        done = run_pass(self.model, fitted.image.as_subclass(Tensor).unsqueeze(0))
        classes = None
        if against is not None:
            predicted = int(logits_of(self.model, done, switched_off)[0].argmax())
            classes = [list(dict.fromkeys((predicted, self.class_index(against))))]
        facts = facts_of(fitted, parts)
        found = explanations(
            self.model, done, self.known, classes=classes, top=top, switched_off=switched_off, facts=[facts]
        )[0]
        return localise(found, sample.name, self.about, self.patches, seen_of(sample, self.fit))

    def sample(self, name: str) -> tuple[Sample, Sequence[str]] | None:
        """An image of the run's data with its annotations, by its name, and the names of its parts."""
        if self.data is None:
            return None
        splits = self.splits or build_splits(self.data)
        for dataset in (splits.test, splits.validation, splits.train):
            if name in dataset.names:
                return dataset[list(dataset.names).index(name)], dataset.parts
        return None

    def class_index(self, name: str | int) -> int:
        """The index of a class by its name or index, see `dapl.data.classes`."""
        return class_index(self.classes, name)

    def fitted(self, sample: Sample) -> Sample:
        """A sample with its annotations at the size that the model sees."""
        return fit(sample, self.image_size, self.fit)


def about(model: ModelConfig, data: str) -> str:
    """The model in a few words.

    >>> from dapl.config import load_config
    >>> about(load_config().model, "cub")
    'dapl · tf_efficientnet_lite0 · cub'
    """
    return " · ".join(filter(None, (model.system, model.backbone.name, data)))


def _sample(image: ImageLike) -> Sample:
    """Without label and annotations; the name is that of the file."""
    if isinstance(image, (str, Path)):
        return Sample(read_image(image), -1, Path(image).name)
    if isinstance(image, Image.Image):
        name = Path(str(getattr(image, "filename", "") or "image")).name
        return Sample(rgb_of(upright(image), name), -1, name)
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(np.ascontiguousarray(image))
        image = image.expand(3, -1, -1) if image.ndim == 2 else image.permute(2, 0, 1) if image.ndim == 3 else image
        return Sample(tv_tensors.Image(_in_bytes(image, "an array is H×W×3 or H×W")), -1, "image")
    if isinstance(image, Tensor):
        return Sample(tv_tensors.Image(_in_bytes(image.detach().cpu(), "a tensor is 3×H×W")), -1, "image")
    raise DaplError(f"an image is a path, a PIL image, an array or a tensor, not a {type(image).__name__}.")


def _in_bytes(image: Tensor, shape: str) -> Tensor:
    """uint8 3×H×W from uint8, or from floats between 0 and 1."""
    if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise DaplError(f"the image has the shape {tuple(image.shape)}; {shape}.")
    image = image.as_subclass(Tensor)
    if image.dtype == torch.uint8:
        return image.contiguous()
    if not image.is_floating_point() or not bool(((image >= 0) & (image <= 1)).all()):
        raise DaplError(f"pixels of type {image.dtype} must lie between 0 and 1; give uint8, or divide by the largest.")
    return (image * 255).round().to(torch.uint8).contiguous()
