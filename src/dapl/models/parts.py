"""Parts (ours): heads that share the object out among themselves, and are judged by what each of them sees.

DAPL takes a head's query from the place itself. Here a head has a *learned* query, and the softmax runs over the heads
(and the rest of the object, and background) at each place, so that they compete for places. A head has one embedding
per image, of what it looks at, and is compared with its prototypes by the cosine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapl.common.errors import DaplError
from dapl.models.backbone import Backbone
from dapl.models.contract import Embedding, Output, PrototypeModel
from dapl.models.dapl import ClassWeights
from dapl.models.prototypes import CosinePrototypes, Prototypes, one_class_each

Evidence = Literal["crop", "map"]


class Locator(nn.Module):
    """M = softmax over N heads, the rest of the object and background of Σ_s U_s f_s: what a place belongs to.

    The rest is what of the object belongs to no head, so that a head can be a small part: heads that had to share the
    whole object out among themselves would be as large as that.

    Shapes: stages of B×Ds×Hs×Ws → B×(N + 2)×H×W on the finest grid; the sum is 1.

    >>> Locator((8, 16), heads=3)((torch.rand(2, 8, 14, 14), torch.rand(2, 16, 7, 7))).sum(1).shape
    torch.Size([2, 14, 14])
    """

    def __init__(self, channels: Sequence[int], heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries = nn.ModuleList(nn.Conv2d(width, heads + 2, 1) for width in channels)

    def forward(self, stages: Sequence[Tensor]) -> Tensor:
        height, width = max((tuple(stage.shape[-2:]) for stage in stages), key=lambda grid: grid[0] * grid[1])
        # A 1×1 convolution and bilinear upsampling may change places: the small maps are scored, then enlarged.
        scored = [query(standardised(stage)) for query, stage in zip(self.queries, stages, strict=True)]
        enlarged = [F.interpolate(one, (height, width), mode="bilinear", align_corners=False) for one in scored]
        return torch.stack(enlarged).sum(0).softmax(1)


def standardised(maps: Tensor) -> Tensor:
    """Each place's channels with mean 0 and deviation 1, so that no backbone's scale decides. B×D×… → the same."""
    return F.layer_norm(maps.movedim(1, -1), maps.shape[1:2]).movedim(-1, 1)


def spread(maps: Tensor) -> Tensor:
    """q_h = M_h / Σ_l M_h(l): each map as a distribution over places. …×H×W → the same.

    >>> spread(torch.tensor([[[1.0, 3.0]]]))
    tensor([[[0.2500, 0.7500]]])
    """
    return maps / maps.sum((-2, -1), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)


def smoothed(maps: Tensor) -> Tensor:
    """Maps with each place averaged with its neighbours (1, 2, 1)/4 along both axes. B×N×H×W → the same.

    A head owns its places with shares near 1, so that the highest of them would be left to chance; smoothed, it is one
    amid the head's own places.

    >>> smoothed(torch.tensor([[[[0.0, 1.0, 1.0, 1.0, 0.0]]]]))
    tensor([[[[0.2500, 0.7500, 1.0000, 0.7500, 0.2500]]]])
    """
    kernel = maps.new_tensor([0.25, 0.5, 0.25]).expand(maps.shape[1], 1, 1, 3)
    padded = F.pad(maps, (1, 1, 1, 1), mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel, groups=len(kernel)), kernel.mT, groups=len(kernel))


def pooled_under(maps: Tensor, stage: Tensor) -> Tensor:
    """g_h = Σ_l q_h(l)·f(l): what stands at the places of each head. B×N×H×W, B×D×h×w → B×N×D."""
    height, width = stage.shape[-2:]
    shares = F.adaptive_avg_pool2d(spread(maps), (height, width))
    shares = shares / shares.sum((-2, -1), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
    return torch.einsum("bnl,bdl->bnd", shares.flatten(2), stage.flatten(2))


SHARPNESS = 3
"""Power of a map whose mean place is the centre of a crop: near its peak, and still differentiable."""


def crop_squares(maps: Tensor, area: Tensor, side: float) -> Tensor:
    """Where each head crops: B×N×H×W → B×N×3, centre (x, y) and side, as shares of the image.

    The centre is the mean place of the smoothed map's third power. The side is ``side``·√(area of the object), B, as
    a share of the image. A crop stays within the image.

    >>> maps = torch.zeros(1, 1, 4, 4).index_fill(3, torch.tensor([2]), 1.0)
    >>> crop_squares(maps, torch.tensor([0.25]), side=0.6)
    tensor([[[0.6250, 0.5000, 0.3000]]])
    """
    height, width = maps.shape[-2:]
    rows = (torch.arange(height, device=maps.device, dtype=maps.dtype) + 0.5) / height
    columns = (torch.arange(width, device=maps.device, dtype=maps.dtype) + 0.5) / width
    shares = spread(smoothed(maps) ** SHARPNESS)
    x, y = (shares.sum(2) * columns).sum(-1), (shares.sum(3) * rows).sum(-1)
    length = (side * area.clamp_min(1e-4).sqrt()).clamp(0.05, 1.0).unsqueeze(1).expand_as(x)
    x, y = (torch.maximum(torch.minimum(place, 1 - length / 2), length / 2) for place in (x, y))
    return torch.stack((x, y, length), dim=-1)


def crop(images: Tensor, squares: Tensor, size: int) -> Tensor:
    """Cut squares out of images and bring them to size×size, bilinear; differentiable in where they are.

    Only pixels of a square are read: at its border the samples stay half a pixel inside.
    Shapes: images B×3×H×W (uint8, or float in [0, 1]), squares B×N×3 of `crop_squares` → float (B·N)×3×size×size.
    """
    if images.dtype == torch.uint8:
        images = images.to(squares.dtype) / 255
    batch, heads = squares.shape[:2]
    steps = torch.linspace(-0.5, 0.5, size, device=squares.device, dtype=squares.dtype)
    pixel = 1 / min(images.shape[-2:])
    centre, reach = squares[..., :2], (squares[..., 2:] - pixel).clamp_min(pixel)
    x, y = (centre[..., axis : axis + 1] + steps * reach for axis in (0, 1))  # B×N×size
    x, y = x.unsqueeze(2).expand(-1, -1, size, -1), y.unsqueeze(3).expand(-1, -1, -1, size)
    grid = 2 * torch.stack((x, y), dim=-1).flatten(1, 2) - 1  # B×(N·size)×size×2: all squares of an image in one go
    cut = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return cut.unflatten(2, (heads, size)).transpose(1, 2).reshape(batch * heads, -1, size, size)


def blurred(images: Tensor, deviation: float) -> Tensor:
    """Images smoothed by a Gaussian of this deviation in pixels; borders are continued. B×3×H×W → the same, float.

    >>> blurred(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]).expand(1, 3, 2, 5), 0.5)[0, 0].round(decimals=2)
    tensor([[0.0000, 0.1100, 0.7900, 0.1100, 0.0000],
            [0.0000, 0.1100, 0.7900, 0.1100, 0.0000]])
    """
    if images.dtype == torch.uint8:
        images = images.float() / 255
    reach = math.ceil(3 * deviation)
    offsets = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-offsets.square() / (2 * deviation**2))
    kernel = (kernel / kernel.sum()).expand(images.shape[1], 1, 1, -1)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel, groups=len(kernel)), kernel.mT, groups=len(kernel))


def enlarged(images: Tensor, factor: float, multiple: int) -> Tensor:
    """Images enlarged by a factor, bilinear, to the nearest multiple of so many pixels. B×3×H×W → float B×3×H1×W1.

    >>> enlarged(torch.zeros(1, 3, 224, 224, dtype=torch.uint8), 1.43, multiple=16).shape
    torch.Size([1, 3, 320, 320])
    """
    if images.dtype == torch.uint8:
        images = images.float() / 255
    size = [max(1, round(side * factor / multiple)) * multiple for side in images.shape[-2:]]
    return F.interpolate(images, size, mode="bilinear", align_corners=False)


class Overview(nn.Module):
    """What the heads locate by: the stages of the backbone, of the image smoothed by a Gaussian of ``blur`` pixels.

    Noise of single pixels moves what is found in the sharp image by half a cell of the grid, and in the smoothed one
    by a quarter (docs/parts.md). With ``magnify`` above 1 the earliest stage of the image enlarged by that factor comes
    first: its places are finer.
    """

    def __init__(self, backbone: Backbone, blur: float, magnify: float) -> None:
        super().__init__()
        self.backbone, self.blur, self.magnify = backbone, blur, magnify

    def extra_repr(self) -> str:
        return f"blur={self.blur}" + (f", magnify={self.magnify}" if self.magnify > 1 else "")

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.blur:
            images = blurred(images, self.blur)
        stages = self.backbone(images)
        if self.magnify == 1:
            return stages
        multiple = self.backbone.patch or self.backbone.reduction
        return self.backbone.earliest(enlarged(images, self.magnify, multiple)), *stages


class Looker(nn.Module):
    """Images in; what each head sees and where it looks out.

    ``map``: the features of the deepest stage, pooled where the head looks. Their cells have seen the whole image.
    ``crop``: the maps only locate; each head sees its own crop through the same backbone, so that no pixel outside of
    the crop can have a say in it.

    Shapes: images B×3×H0×W0 → seen B×N×D, where B×N×H×W, which is 1 at its highest place, and for ``crop`` the squares
    B×N×3 of `crop_squares`. ``stages``: what the overview gave of these images, where that is known.
    """

    def __init__(
        self,
        backbone: Backbone,
        locator: Locator,
        evidence: Evidence,
        crop_size: int,
        crop_side: float,
        blur: float = 0.0,
        magnify: float = 1.0,
    ) -> None:
        super().__init__()
        self.backbone, self.locator = backbone, locator
        self.evidence, self.crop_size, self.crop_side = evidence, crop_size, crop_side
        self.blur, self.magnify = blur, magnify

    def extra_repr(self) -> str:
        said = f"evidence={self.evidence}, crop_size={self.crop_size}, crop_side={self.crop_side}"
        said += f", blur={self.blur}" if self.blur else ""
        return said + (f", magnify={self.magnify}" if self.magnify > 1 else "")

    @property
    def overview(self) -> nn.Module:
        """Images in, the stages that the heads locate by out. Made anew, so that no weight is registered twice."""
        if self.blur or self.magnify > 1:
            return Overview(self.backbone, self.blur, self.magnify)
        return self.backbone

    def forward(self, images: Tensor, stages: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        if stages is None:
            stages = self.overview(images)
        owned = self.locator(stages)
        maps = owned[:, : self.locator.heads]
        where = smoothed(maps)
        where = where / where.amax((-2, -1), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
        if self.evidence == "map":
            return pooled_under(maps, stages[-1]), where
        squares = crop_squares(maps, 1 - owned[:, -1].mean((1, 2)), self.crop_side)
        if not any(parameter.requires_grad for parameter in self.locator.parameters()):
            squares = squares.detach()  # places that are settled are not moved by what a backbone learns to see there
        return self.seen_in(images, squares), where, squares

    def seen_in(self, images: Tensor, squares: Tensor) -> Tensor:
        """The deepest features of crops, pooled: images B×3×H×W, squares B×N×3 → B×N×D."""
        deepest = self.backbone(crop(images, squares, self.crop_size))[-1]
        return deepest.mean((2, 3)).unflatten(0, squares.shape[:2])


class HeadLayers(nn.Module):
    """z_h = W_h·ĝ_h: a linear layer of its own for each head, on what it sees, standardised. B×N×D → B×N×D1."""

    def __init__(self, heads: int, channels: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, channels, head_dim) / channels**0.5)

    def forward(self, seen: Tensor) -> Tensor:
        return torch.einsum("bnd,nde->bne", F.layer_norm(seen, seen.shape[-1:]), self.weight)


class Scout(nn.Module):
    """A small classifier per head on what the maps pool, with which the locator learns; not used afterwards.

    cos(V_h·ĝ_h, c_{c,h}) of each class and head. Shapes: B×N×D → B×C×N.
    """

    def __init__(self, classes: int, heads: int, channels: int, head_dim: int) -> None:
        super().__init__()
        self.layers = HeadLayers(heads, channels, head_dim)
        self.centres = nn.Parameter(torch.randn(classes, heads, head_dim))
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, seen: Tensor) -> Tensor:
        return torch.einsum("bnd,cnd->bcn", F.normalize(self.layers(seen), dim=-1), F.normalize(self.centres, dim=-1))


class Parts(PrototypeModel):
    """Heads that are parts: one learned query, one embedding and, per class, one prototype for each.

    While it learns, each head's term is left out of the logits with probability ``head_dropout``, so that every head
    has to know the class. After projection a prototype points at (image, head), and may be embedded again as the
    heads' layers change: ``sources`` holds what the head saw there.

    >>> import torch
    >>> from dapl.models import Parts, create_backbone
    >>> backbone = create_backbone("test_efficientnet", [-2, -1], weights="random", fuse=False)
    >>> model = Parts(backbone, classes=3, heads=4, head_dim=8, crop_size=32).eval()
    >>> output = model(torch.rand(2, 3, 64, 64))
    >>> output.logits.shape, output.embedding.where.shape
    (torch.Size([2, 3]), torch.Size([2, 4, 4, 4]))
    """

    sources: Tensor
    pointing: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        heads: int = 10,
        head_dim: int = 64,
        evidence: Evidence = "crop",
        crop_size: int = 96,
        crop_side: float = 0.75,
        blur: float = 0.0,
        magnify: float = 1.0,
        head_dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.heads, self.head_dropout = heads, head_dropout
        locator = Locator((*backbone.stage_channels[: magnify > 1], *backbone.stage_channels), heads)
        self.looker = Looker(backbone, locator, evidence, crop_size, crop_side, blur, magnify)
        channels = backbone.stage_channels[-1]
        self.scout = Scout(classes, heads, channels, head_dim)
        self.layers = HeadLayers(heads, channels, head_dim)
        self.prototypes: Prototypes = CosinePrototypes(one_class_each(classes, heads), groups=heads, width=head_dim)
        self.classifier = ClassWeights(classes, heads)
        self.register_buffer("sources", torch.zeros(classes * heads, channels))
        self.register_buffer("pointing", torch.tensor(False))

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        return self.looker.backbone

    @property
    def locator(self) -> Locator:
        return self.looker.locator

    @property
    def extractor(self) -> nn.Module:
        return self.looker

    @property
    def overview(self) -> nn.Module:
        return self.looker.overview

    def components(self) -> dict[str, nn.Module]:
        names = ("backbone", "locator", "scout", "layers", "prototypes", "classifier")
        return {name: getattr(self, name) for name in names}

    def embed(self, features: tuple[Tensor, ...]) -> Embedding:
        seen, where, *squares = features
        return Embedding(F.normalize(self.layers(seen), dim=-1)[..., None, None], where, seen, *squares)

    def from_features(self, features: tuple[Tensor, ...]) -> Output:
        if self.training and self.pointing:
            self.prototypes.stand_in = self._embedded_sources()
        return super().from_features(features)

    def classify(self, scores: Tensor) -> Tensor:
        """logit_c = Σ_h w[c,h]·s[c,h], while training without the heads that are dropped, scaled up for the rest."""
        scores = (scores * self.prototypes.kept).unflatten(1, (-1, self.heads))
        if self.training and self.head_dropout:
            stays = (torch.rand(len(scores), 1, self.heads, device=scores.device) >= self.head_dropout).to(scores)
            scores = scores * stays * (self.heads / stays.sum(2, keepdim=True).clamp_min(1))
        return self.classifier(scores)

    def class_weights(self) -> Tensor:
        return self.weights_of_classes(torch.arange(self.classes, device=self.prototypes.kept.device))

    def weights_of_classes(self, classes: Tensor) -> Tensor:
        weights = (self.classifier.weight.flatten() * self.prototypes.kept).unsqueeze(1)
        return weights * self.prototypes.of_images(classes).T

    def field_share(self, image_size: int) -> float:
        """1 for maps, as deep cells see the whole image; a head that sees a crop sees another share of every image."""
        if self.looker.evidence == "crop":
            raise DaplError("what a head of parts sees is its crop, whose share of the image depends on the image.")
        return 1.0

    def point_at(self, seen: Tensor, found: Tensor) -> None:
        self.sources.copy_(torch.where(found.unsqueeze(1), seen, self.sources))

    def follow_sources(self, follow: bool) -> None:
        if follow and not bool(self.sources.any()):
            raise DaplError("schedule: pointers need prototypes that were projected; put a project stage before.")
        self.pointing.fill_(follow)
        if follow:  # they are not looked at: no process may wait for a gradient of theirs
            self.prototypes.vectors.requires_grad_(False)

    def train(self, mode: bool = True) -> Parts:
        """As usual; when training ends, the prototypes are what their sources are embedded as now."""
        super().train(mode)
        self.prototypes.stand_in = None
        if not mode and self.pointing:
            with torch.no_grad():
                self.prototypes.vectors.copy_(self._embedded_sources())
        return self

    def _embedded_sources(self) -> Tensor:
        """P×D1: prototype j = c·N + h is what head h makes of its source."""
        return F.normalize(self.layers(self.sources.unflatten(0, (-1, self.heads))), dim=-1).flatten(0, 1)
