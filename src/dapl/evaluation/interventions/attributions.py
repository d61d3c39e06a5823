"""Explanations as relevance of pixels: what each pixel adds to the logit of a class.

A prototype model explains itself: its logit is a sum over prototypes, and each prototype shows where it looks. Grad-CAM
and integrated gradients (Captum) explain any model with a backbone, the black box included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.data.transforms import FILL
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
    try:
        import captum.attr
    except ImportError as error:
        raise DaplError(
            "attribution: gradcam and integrated_gradients need Captum; pip install 'dapl[attribution]'."
        ) from error
    return captum.attr
