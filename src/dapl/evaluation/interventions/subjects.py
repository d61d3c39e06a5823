"""Who is asked: a model with its explanations, and the oracle, whose explanation is right by construction.

An explanation is relevance of pixels: what each pixel adds to the logit of a class. A prototype model explains itself:
its logit is a sum over prototypes, and each prototype shows where it looks. Grad-CAM and integrated gradients (Captum)
explain any model with a backbone, the black box included.

A *variant* is an image of toy birds with something changed. J pieces: the parts, the things around the bird, and last
the rest of the image.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.common.errors import DaplError, needing
from dapl.common.seeds import generator
from dapl.data.sample import Sample
from dapl.data.toybirds import PARTS, THINGS, ToyBirds
from dapl.data.transforms import FILL
from dapl.metrics.functional.interventions import part_importance
from dapl.metrics.functional.regions import model_regions
from dapl.models.contract import PrototypeModel

Attribution = Callable[[Tensor, Tensor], Tensor]
"""(images uint8 B×3×S×S, classes long B) → relevance float B×S×S."""

ATTRIBUTIONS = ("own", "own_map", "gradcam", "integrated_gradients")
"""The names that the command line knows."""


def attribution_of(name: str, model: PrototypeModel) -> Attribution:
    """An attribution by its name; ``own`` and ``own_map`` are for systems that have prototypes."""
    if name in ("own", "own_map"):
        if not len(model.prototypes):
            raise DaplError(
                f"attribution: a {type(model).__name__} has no prototypes and no explanation of its own; use gradcam "
                "or integrated_gradients."
            )
        return OwnEvidence(model, "region" if name == "own" else "map")
    if name == "gradcam":
        return GradCam(model)
    if name == "integrated_gradients":
        return IntegratedGradients(model)
    raise DaplError(f"attribution: '{name}' is not known; give one of {', '.join(ATTRIBUTIONS)}.")


class OwnEvidence:
    r"""What a prototype model says itself: the contribution of each prototype of the class, laid where it looks.

    .. math:: R_c(x) = \sum_{j \in c} w_{jc} s_j \frac{m_j(x)}{\sum_y m_j(y)}

    with score :math:`s_j`, weight :math:`w_{jc}` and, as :math:`m_j`, the activation region (``region``: 1 inside, what
    is shown to people) or the map on the pixels (``map``: nothing is cut off, but the log similarity is positive
    everywhere). The relevance of an image sums to what the prototypes of the class add to its logit, but for those
    whose map is flat: they have no region.

    >>> import torch
    >>> from dapl.models import Dapl, create_backbone
    >>> model = Dapl(create_backbone("test_mambaout", weights="random"), classes=3, heads=2, head_dim=4).eval()
    >>> images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    >>> OwnEvidence(model)(images, torch.tensor([0, 2])).shape
    torch.Size([2, 64, 64])
    """

    def __init__(self, model: PrototypeModel, spread: Literal["region", "map"] = "region") -> None:
        self.model, self.spread = model, spread

    @torch.no_grad()
    def __call__(self, images: Tensor, classes: Tensor) -> Tensor:
        model, size = self.model, images.shape[-1]
        output = model(images)
        prototypes, counts = model.prototypes_of(classes)
        weights = model.class_weights()[prototypes, classes.unsqueeze(1)]
        contributions = weights * output.scores.gather(1, prototypes) * counts
        maps = model.maps(output.embedding, prototypes)
        if self.spread == "region":
            painted = model_regions(model, maps, size).float()
        else:
            painted = model.to_pixels(maps, (size, size)).clamp_min(0)
        shares = painted / painted.sum((-2, -1), keepdim=True).clamp_min(torch.finfo(painted.dtype).tiny)
        return (contributions[..., None, None] * shares).sum(1)


class GradCam:
    """Grad-CAM (Selvaraju et al., 2017) at the output of the backbone, negative values cut off, bilinear on the pixels.

    >>> GradCam(model)(images, classes).shape             # doctest: +SKIP
    torch.Size([2, 64, 64])
    """

    def __init__(self, model: PrototypeModel) -> None:
        captum = _captum()
        if model.extractor is not model.backbone:
            raise DaplError(
                f"attribution: a {type(model).__name__} has no single map of features for Grad-CAM, as it looks at an "
                "image more than once; use own or integrated_gradients."
            )
        self.explainer = captum.LayerGradCam(lambda images: model(images).logits, model.backbone)

    def __call__(self, images: Tensor, classes: Tensor) -> Tensor:
        # Captum asks for gradients of the input, which whole numbers cannot have.
        maps = self.explainer.attribute(images.float() / 255, target=classes, relu_attributions=True)
        sized = F.interpolate(maps.detach(), images.shape[-2:], mode="bilinear", align_corners=False)
        return sized.squeeze(1)


class IntegratedGradients:
    """Integrated gradients (Sundararajan et al., 2017) from an image of the mean colour, summed over channels.

    >>> IntegratedGradients(model, steps=8)(images, classes).shape     # doctest: +SKIP
    torch.Size([2, 64, 64])
    """

    def __init__(self, model: PrototypeModel, steps: int = 32, batch: int = 32) -> None:
        """``batch``: images per pass; each image takes ``steps`` of them."""
        self.explainer = _captum().IntegratedGradients(lambda images: model(images).logits)
        self.steps, self.batch = steps, batch

    def __call__(self, images: Tensor, classes: Tensor) -> Tensor:
        pixels = images.float() / 255
        grey = torch.tensor(FILL, device=images.device).view(1, 3, 1, 1) / 255
        found = self.explainer.attribute(
            pixels,
            baselines=grey.expand_as(pixels).contiguous(),
            target=classes,
            n_steps=self.steps,
            internal_batch_size=max(self.batch, len(images)),
        )
        return found.detach().sum(1).float()


def _captum():
    with needing("attribution: gradcam and integrated_gradients need Captum", "attribution"):
        import captum.attr
    return captum.attr


PIECES = (*PARTS, *THINGS)


class Variant(typing.NamedTuple):
    """How an image is changed."""

    without: frozenset[str] = frozenset()
    background: int | None = None


class BirdImage:
    """One image of toy birds with its masks, and the looks of all classes."""

    def __init__(self, birds: ToyBirds, index: int) -> None:
        self.birds, self.index, self.label = birds, index, birds.labels[index]

    @cached_property
    def sample(self) -> Sample:
        return self.birds[self.index]

    @cached_property
    def masks(self) -> Tensor:
        """bool (J − 1)×H×W."""
        assert self.sample.part_masks is not None
        parts, things = self.sample.part_masks, self.birds.thing_masks(self.index)
        return torch.cat([parts.as_subclass(Tensor), things.as_subclass(Tensor)]).bool()

    @cached_property
    def visible(self) -> Tensor:
        """bool J − 1: the pieces of which something is seen."""
        return self.masks.any(-1).any(-1)

    def named(self, flags: Tensor) -> frozenset[str]:
        """The visible pieces that are flagged (bool, K or J − 1); leaving out the others would change nothing."""
        seen = flags & self.visible[: len(flags)]
        return frozenset(PIECES[place] for place in seen.nonzero().flatten().tolist())

    def drawn(self, variants: Sequence[Variant]) -> Tensor:
        """uint8 V×3×H×W."""
        plain = [variant.without for variant in variants if variant.background is None]
        ready = iter(self.birds.draw_without(self.index, plain))
        images = [
            next(ready).image
            if v.background is None
            else self.birds.draw(self.index, v.without, None, v.background).image
            for v in variants
        ]
        return torch.stack([image.as_subclass(Tensor) for image in images])


def looks(birds: ToyBirds) -> Tensor:
    """long C×K: how each part of each class looks, two parts alike where the numbers agree."""
    numbers: dict[typing.Any, int] = {}
    rows = [[numbers.setdefault(species.styles[part], len(numbers)) for part in PARTS] for species in birds.species]
    return torch.tensor(rows)


class Subject(typing.Protocol):
    """A model and one or more explanations of it."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the explanations."""

    def logits(self, image: BirdImage, variants: Sequence[Variant]) -> Tensor:
        """V×C; beyond the classes of the data there may be others, as 'none of them'."""

    def importances(self, image: BirdImage, classes: Tensor) -> Mapping[str, Tensor]:
        """For each explanation, for the unchanged image and each of the classes (long M), of all pieces: M×J."""


@dataclass(frozen=True)
class ExplainedModel:
    """Any PyTorch model with any attributions."""

    model: Callable[[Tensor], Tensor]
    """images uint8 B×3×S×S → logits B×C."""
    attributions: Mapping[str, Attribution]
    device: torch.device | str = "cpu"
    batch: int = 64

    @property
    def names(self) -> Sequence[str]:
        return list(self.attributions)

    @torch.no_grad()
    def logits(self, image: BirdImage, variants: Sequence[Variant]) -> Tensor:
        images = image.drawn(variants).split(self.batch)
        return torch.cat([self.model(batch.to(self.device)).double().cpu() for batch in images])

    def importances(self, image: BirdImage, classes: Tensor) -> Mapping[str, Tensor]:
        pixels = image.sample.image.as_subclass(Tensor).unsqueeze(0)
        images = pixels.expand(len(classes), -1, -1, -1).contiguous().to(self.device)
        found = {}
        for name, attribution in self.attributions.items():
            relevance = attribution(images, classes.to(self.device)).cpu()
            if relevance.shape != (len(classes), *pixels.shape[-2:]):
                given, wanted = ("×".join(map(str, shape)) for shape in (relevance.shape, images[:, 0].shape))
                raise DaplError(f"attribution '{name}': gave maps of {given}; it must be {wanted}, one per image.")
            found[name] = part_importance(relevance, image.masks.expand(len(classes), -1, -1, -1))
        return found


class Oracle:
    """A model that reads the true parts, and states what it does: the top of every score.

    Every class has an order of the parts. Of those that can be seen it takes the first four, and more until they tell
    the class, and adds a weight for each of them that looks as the class has it; a further output stands for 'none of
    them'. Its explanation lays these weights on the masks of the parts.
    """

    names = ("oracle",)

    def __init__(self, birds: ToyBirds, seed: int = 0) -> None:
        self.looks, self.seed = looks(birds), seed
        self._weights = lru_cache(maxsize=4096)(self._weights_of)

    def _weights_of(self, label: int, visible: tuple[bool, ...]) -> Tensor:
        """K, adding up to 1; none of those above 0 is less than half of another."""
        order = torch.randperm(len(PARTS), generator=generator(self.seed, "oracle", label))
        order = order[torch.tensor(visible)[order]]
        differs = (self.looks != self.looks[label])[torch.arange(len(self.looks)) != label]
        number = min(4, len(order))
        while number < len(order) and not differs[:, order[:number]].any(1).all():
            number += 1
        values = torch.zeros(len(PARTS), dtype=torch.float64)
        values[order[:number]] = torch.arange(2 * number, number, -1, dtype=torch.float64)
        return values / values.sum().clamp_min(1)

    def _evidence(self, image: BirdImage, classes: Tensor) -> Tensor:
        """M×K: what each part of the unchanged image adds to each of the classes."""
        visible = tuple(image.visible[: len(PARTS)].tolist())
        weights = torch.stack([self._weights(label, visible) for label in classes.tolist()])
        return weights * (self.looks[classes] == self.looks[image.label])

    def logits(self, image: BirdImage, variants: Sequence[Variant]) -> Tensor:
        evidence = self._evidence(image, torch.arange(len(self.looks)))
        left = torch.tensor([[part not in variant.without for part in PARTS] for variant in variants])
        logits = left.double() @ evidence.T
        return torch.cat([logits, torch.full_like(logits[:, :1], 1e-6)], dim=1)  # said where nothing is seen

    def importances(self, image: BirdImage, classes: Tensor) -> Mapping[str, Tensor]:
        parts = image.masks[: len(PARTS)].double()
        shares = parts / parts.sum((-2, -1), keepdim=True).clamp_min(1)
        relevance = torch.einsum("mk,khw->mhw", self._evidence(image, classes), shares)
        return {"oracle": part_importance(relevance, image.masks.expand(len(classes), -1, -1, -1))}
