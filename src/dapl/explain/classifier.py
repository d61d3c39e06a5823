"""A trained model in three lines: load, predict, explain. Works on a run and on an exported folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors

from dapl.common.errors import DaplError
from dapl.config import DataSection
from dapl.data.build import build_splits
from dapl.data.images import read_image, rgb_of, upright
from dapl.data.sample import Sample, class_index
from dapl.data.transforms import Fit, fit
from dapl.explain.evidence import Known, explanations, logits_of, see
from dapl.explain.local import LocalExplanation, localise
from dapl.explain.parts import facts_of
from dapl.explain.patches import NoPatches, PatchSource, RunPatches
from dapl.models.contract import PrototypeModel
from dapl.runs.loading import LoadedRun

ImageLike: TypeAlias = "str | Path | Image.Image | np.ndarray | Tensor"
"""A file; a PIL image; an array H×W×3 or H×W; a tensor 3×H×W. Numbers are uint8, or floats from 0 to 1."""


@dataclass(frozen=True)
class Prediction:
    """What a model says of an image."""

    class_name: str
    class_index: int
    probability: float
    probabilities: Mapping[str, float]
    """Of every class, the highest first."""


class Classifier:
    """A trained model with all that is needed to ask it, and to ask why."""

    def __init__(
        self,
        model: PrototypeModel,
        known: Known,
        image_size: int,
        fit: Fit,
        about: str = "",
        patches: PatchSource | None = None,
        data: DataSection | None = None,
    ) -> None:
        """``about`` says in a few words which model it is; ``data`` is what a run was trained on."""
        self.model, self.known, self.about, self.data = model, known, about, data
        self.classes = list(known.classes)
        self.image_size, self.fit = image_size, fit
        self.patches: PatchSource = patches or NoPatches()

    @classmethod
    def of_run(cls, loaded: LoadedRun) -> Classifier:
        model, data = loaded.config.model, loaded.config.data
        return cls(
            loaded.model,
            Known(loaded.classes, loaded.records),
            data.image_size,
            data.fit,
            about(model.system, model.backbone.name, data.name),
            RunPatches(loaded.config),
            data,
        )

    def pixels(self, image: ImageLike) -> Tensor:
        """The image as the model sees it: uint8 3×S×S."""
        return self._fitted(_sample(image)).image.as_subclass(Tensor)

    @torch.no_grad()
    def predict(self, image: ImageLike) -> Prediction:
        device = next(self.model.parameters()).device
        logits = self.model(self.pixels(image).unsqueeze(0).to(device)).logits[0]
        probabilities = logits.double().softmax(0).cpu()
        order = probabilities.argsort(descending=True, stable=True).tolist()
        named = {self.classes[c]: float(probabilities[c]) for c in order}
        return Prediction(self.classes[order[0]], order[0], float(probabilities[order[0]]), named)

    def explain(
        self,
        image: ImageLike | Sample,
        against: str | int | None = None,
        top: int = 10,
        switched_off: Collection[int] = (),
        parts: Sequence[str] = (),
    ) -> LocalExplanation:
        """Why the image got its label: the predicted class, and beside it the runner-up or the class ``against``.

        Args:
            image: an image, or a `Sample` of annotated data: ``parts`` are the names of its parts, which are then
                named, and background flagged, by where they are in this image.
            top: prototypes listed a class.
            switched_off: prototypes that are taken out of the sum.
        """
        sample = image if isinstance(image, Sample) else _sample(image)
        fitted = self._fitted(sample)
        seen = see(self.model, fitted.image.as_subclass(Tensor).unsqueeze(0))
        classes = None
        if against is not None:
            predicted = int(logits_of(self.model, seen, switched_off)[0].argmax())
            classes = [list(dict.fromkeys((predicted, self.class_index(against))))]
        facts = facts_of(fitted, parts)
        found = explanations(
            self.model, seen, self.known, classes=classes, top=top, switched_off=switched_off, facts=[facts]
        )[0]
        return localise(found, sample.name, self.about, self.patches, with_parts=facts.parts is None)

    def sample(self, name: str) -> tuple[Sample, Sequence[str]] | None:
        """An image of the run's data with its annotations, by its name, and the names of its parts."""
        if self.data is None:
            return None
        splits = build_splits(self.data)
        for dataset in (splits.test, splits.validation, splits.train):
            if name in dataset.names:
                return dataset[list(dataset.names).index(name)], dataset.parts
        return None

    def class_index(self, name: str | int) -> int:
        """The index of a class by its name or index, see `dapl.data.classes`."""
        return class_index(self.classes, name)

    def _fitted(self, sample: Sample) -> Sample:
        return fit(sample, self.image_size, self.fit)


def about(system: str, backbone: str, data: str) -> str:
    """The model in a few words."""
    return " · ".join(filter(None, (system, backbone, data)))


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
