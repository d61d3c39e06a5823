"""One batch of images as metrics see it: maps, regions, how these meet parts and object.

The one place where maps become what is counted: `evaluate`, `audit` and the report of a run all read a `BatchView`.
B images (or classes, in scope projection), M prototypes of each image's class, K parts, images of S×S pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from dapl.batches.run_data import RunData, Split
from dapl.batches.sources import Batch, run_model
from dapl.common.errors import DaplError
from dapl.common.seeds import generator
from dapl.evaluation.ground_truth import GroundTruth, control_of
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.metrics import functional as F
from dapl.metrics.functional.checks import has_negative
from dapl.metrics.functional.regions import map_pixels, model_regions, shown_regions
from dapl.models.contract import Output, PrototypeModel, square_pixels

PUBLISHED_SIZE = 224
"""Side of the images that published lengths in pixels (box, patch, blur) are meant for; others scale with them."""
BOX, PATCH, BLUR = 36, 32, 10
"""Half the side of Huang's box, side of PIP-Net's patch, σ of the blur: in pixels of an image of that size."""

ATTACK_MARGIN, ATTACK_PERCENTILE = 10, 90.0
"""Of the attack, as published: pixels around the box that are spared, and the region whose move is measured."""
ATTACKED_AT_ONCE = 8
"""Images per step of the attack: what a backward pass keeps of an image is a hundred times the image."""
ATTACK_COLUMNS = ("spatial_misalignment", "activation_change", "rank_change", "accuracy_change", "attacked_share")


def scaled(length: float, size: int) -> int:
    """A length that was published for images of 224 pixels, in whole pixels of this size."""
    return max(1, round(length * size / PUBLISHED_SIZE))


def attacked_images(number: int, limit: int) -> Tensor:
    """Which of the images are attacked, evenly over the data set, so that every class has its share: long, ascending.

    >>> attacked_images(10, 4), attacked_images(3, 4)
    (tensor([0, 3, 6, 9]), tensor([0, 1, 2]))
    """
    return torch.linspace(0, number - 1, min(number, limit), dtype=torch.float64).round().long()


class BatchView:
    """What metrics may ask of a batch. Each piece is made when it is first asked for, and then kept."""

    def __init__(
        self, indices: Tensor, labels: Tensor, kept: Tensor, truth: GroundTruth, protocol: EvaluationProtocol, size: int
    ) -> None:
        """indices: long B, the rows of a table that are filled; kept: bool B×M, the prototypes that count."""
        self.indices, self.labels, self.kept, self.truth = indices, labels, kept, truth
        self.protocol, self.size = protocol, size

    @cached_property
    def logits(self) -> Tensor:
        """B×C."""
        raise NotImplementedError

    @cached_property
    def maps(self) -> Tensor:
        """B×M×H×W."""
        raise NotImplementedError

    @cached_property
    def regions(self) -> Tensor:
        """bool B×M×S×S, as large as the protocol says; a flat map has none."""
        maps, size = self.drawn_maps
        if self.protocol.region == "percentile":
            regions = self._regions_and_peaks[0]
        elif self.protocol.region == "mass":
            regions = F.mass_regions(maps, size, self.protocol.share_of_region)
        else:
            regions = F.object_regions(maps, self._object_areas, size, self.protocol.share_of_region)
        flat = F.flat_maps(self.maps)
        return regions & ~flat[..., None, None] if bool(flat.any()) else regions

    @cached_property
    def _regions_and_peaks(self) -> tuple[Tensor, Tensor]:
        """By percentile: one look at the pixels gives both."""
        return F.regions_and_peaks(*self.drawn_maps, self.protocol.percentile)

    @cached_property
    def region_sets(self) -> F.PixelSets:
        """The regions, to be counted."""
        return F.PixelSets(self.regions)

    @cached_property
    def part_sets(self) -> F.PixelSets | None:
        """The masks of the parts, to be counted."""
        return None if self.truth.parts is None else F.PixelSets(self.truth.parts)

    @cached_property
    def drawn_maps(self) -> tuple[Tensor, int | None]:
        """Maps as they are drawn on the image, and the size to which they still have to be brought; None: they are."""
        return self.maps, self.size

    @property
    def _object_areas(self) -> Tensor:
        """Pixels of the object, for each prototype (or all) of an image: integers B×M or B×1."""
        masks = self.truth.masks
        if masks is None:
            raise DaplError("region: object needs foreground masks, which the data does not have; use percentile.")
        return masks.bool().flatten(1).sum(1, keepdim=True)

    @cached_property
    def visible(self) -> Tensor | None:
        """bool B×K: the parts that count."""
        return self.truth.visible

    @cached_property
    def overlap(self) -> Tensor | None:
        """B×M×K: the share of part k that the region of prototype m covers."""
        return self._overlap_of(self.region_sets)

    @cached_property
    def part_areas(self) -> Tensor | None:
        """B×K: the share of the image that each part takes up."""
        return None if self.part_sets is None else self.part_sets.sizes() / self.part_sets.sets.shape[-2:].numel()

    @cached_property
    def ious(self) -> Tensor:
        """B×M×M, of every two regions."""
        return self._ious_of(self.region_sets)

    @cached_property
    def islands(self) -> F.Islands:
        """How many islands each region has, and the largest of them."""
        return F.islands(self.regions)

    @cached_property
    def island_numbers(self) -> Tensor:
        """B×M, NaN for prototypes that do not count or have no region."""
        number = self.islands.number
        return number.to(torch.float32).where(self.kept & (number > 0), torch.nan)

    @cached_property
    def _island_sets(self) -> F.PixelSets:
        return F.PixelSets(self.islands.largest)

    @cached_property
    def island_overlap(self) -> Tensor | None:
        """`overlap` of the largest islands."""
        return self._overlap_of(self._island_sets)

    @cached_property
    def island_ious(self) -> Tensor:
        """`ious` of the largest islands."""
        return self._ious_of(self._island_sets)

    def _overlap_of(self, regions: F.PixelSets) -> Tensor | None:
        return None if self.part_sets is None else F.overlap(regions, self.part_sets)

    def _ious_of(self, regions: F.PixelSets) -> Tensor:
        return F.iou(regions)

    @cached_property
    def peak_parts(self) -> Tensor | None:
        """bool B×M×K: the visible parts that hold the peak of each map."""
        if self.truth.parts is None or self.visible is None:
            return None
        at = self.peaks if self.truth.parts.shape[-2:] == (self.size, self.size) else None
        return F.peak_parts(self.maps, self.truth.parts, self.visible, at)

    @cached_property
    def peaks(self) -> Tensor:
        """long B×M×2: the highest pixel of each map."""
        if self.protocol.region == "percentile" and self.drawn_maps[0] is self.maps:
            return self._regions_and_peaks[1]
        return F.peaks(self.maps, self.size)

    @cached_property
    def foreground(self) -> Tensor | None:
        """B×H×W: the share of the object in each cell of the maps' grid."""
        return self.truth.foreground(self.maps.shape[-2:])

    @cached_property
    def has_negative(self) -> bool:
        """Whether any activation is negative: no share can be taken of it."""
        return has_negative(self.maps)

    @cached_property
    def bias(self) -> Tensor | None:
        """B×M, NaN where there is none: the background bias of the maps."""
        if self.foreground is None:
            return None
        if self.has_negative:
            return torch.full(self.kept.shape, torch.nan)
        return F.background_bias(self.maps, self.foreground, self.kept)

    @cached_property
    def region_share(self) -> Tensor | None:
        """B×M, NaN where there is none: the share of the regions that lies on background."""
        masks = self.truth.masks
        return None if masks is None else F.region_background_share(self.region_sets, masks.bool(), self.kept)

    @cached_property
    def drawn_sets(self) -> F.PixelSets | None:
        """The regions as pictures draw them, where that is only a part of them; names and flags are of these."""
        return None

    def as_drawn(self, *columns: Literal["overlap", "ious", "region_share"]) -> dict[str, Tensor | None]:
        """The same columns of the regions as they are drawn, ``drawn_ious``; none where those are the regions."""
        sets, masks = self.drawn_sets, self.truth.masks
        if sets is None:
            return {}
        made: dict[str, Callable[[], Tensor | None]] = {
            "overlap": lambda: self._overlap_of(sets),
            "ious": lambda: self._ious_of(sets),
            "region_share": lambda: None if masks is None else F.region_background_share(sets, masks.bool(), self.kept),
        }
        return {f"drawn_{name}": made[name]() for name in columns}

    @cached_property
    def drawn_peaks(self) -> Tensor:
        """long B×M×2: the highest pixel of each map as it is drawn."""
        maps, size = self.drawn_maps
        return self.peaks if maps is self.maps else F.peaks(maps, size)

    @cached_property
    def shown(self) -> Tensor:
        """bool B×M: the prototypes that an explanation of the true class shows first."""
        return F.most_active(self.maps, self.kept)

    @cached_property
    def corresponding(self) -> tuple[Tensor, Tensor] | None:
        """bool B×M×K and bool B×K: parts near the highest pixel of each map, and the parts that can be."""
        return self._parts_near(self.maps)

    def _parts_near(self, maps: Tensor) -> tuple[Tensor, Tensor] | None:
        points = self.truth.points
        if points is None:
            return None
        keypoints, visible = points.keypoints.to(maps.device), points.visible.to(maps.device)
        seen = F.visible_keypoints(keypoints, visible, points.size)
        at = self.peaks if maps is self.maps and points.size == self.size else None
        return F.corresponding_parts(maps, keypoints, seen, points.size, scaled(BOX, points.size), at), seen


class ModelView(BatchView):
    """A batch as one of our models sees it, which can also be shown other images."""

    def __init__(
        self,
        model: PrototypeModel,
        run_data: RunData,
        split: Split,
        batch: Batch,
        truth: GroundTruth,
        protocol: EvaluationProtocol,
    ) -> None:
        self.model, self.run_data, self.split, self.batch = model, run_data, split, batch.to(run_data.processes.device)
        table, kept = model.prototypes.by_class()
        labels = self.batch.labels
        self.named = table[labels]
        """long B×M: the prototypes of each image's class."""
        super().__init__(batch.indices, labels, kept[labels], truth, protocol, run_data.config.data.image_size)

    @cached_property
    def output(self) -> Output:
        with self.run_data.processes.autocast():
            return run_model(self.model, self.batch)

    @cached_property
    def logits(self) -> Tensor:
        return self.output.logits

    @cached_property
    def maps(self) -> Tensor:
        return self.model.maps(self.output.embedding.float(), self.named)

    @cached_property
    def drawn_maps(self) -> tuple[Tensor, int | None]:
        return map_pixels(self.model, self.maps, self.size)

    @cached_property
    def drawn_sets(self) -> F.PixelSets | None:
        squares = self._squares
        if squares is None:
            return None
        of_image = zip(self.maps.cpu(), squares.cpu(), strict=True)
        drawn = torch.stack([shown_regions(self.model, maps, self.size, own) for maps, own in of_image])
        return F.PixelSets(drawn.to(self.maps.device))

    @property
    def _squares(self) -> Tensor | None:
        """B×M×3: what each prototype's head saw, of a system whose heads see crops."""
        squares = self.output.embedding.squares
        if squares is None:
            return None
        rows = torch.arange(len(squares), device=squares.device).unsqueeze(1)
        return squares[rows, self.model.prototypes.group_of[self.named]]

    @cached_property
    def _evidence(self) -> Tensor:
        """bool B×M×S×S: the pixels that an explanation shows, the region or the square that the head saw alone."""
        squares = self._squares
        if squares is None:
            return self.regions
        boxes = square_pixels(squares, self.size)
        place = torch.arange(self.size, device=boxes.device)
        left, top, right, bottom = (edge.unsqueeze(-1) for edge in boxes.unbind(-1))
        across, down = (place >= left) & (place < right), (place >= top) & (place < bottom)
        return down.unsqueeze(-1) & across.unsqueeze(-2)

    @cached_property
    def contributions(self) -> Tensor:
        """B×P: the terms of the logit of the predicted class."""
        return self.output.scores.float() * self.model.weights_of_classes(self.logits.argmax(1)).T

    @cached_property
    def corresponding_with_noise(self) -> Tensor | None:
        """bool B×M×K: `corresponding` of the same images with noise. One pass."""
        noise = [generator(self.protocol.seed, "noise", index) for index in self.indices.tolist()]
        noisy = F.perturb(self.pixels, F.PUBLISHED_STD, noise)
        with self.run_data.processes.autocast():
            embedding = self.model.embed(self.model.extractor(noisy)).float()
        near = self._parts_near(self.model.maps(embedding, self.named))
        return None if near is None else near[0]

    @cached_property
    def similarity_losses(self) -> dict[str, Tensor]:
        """What the prototype that contributes most to the true class loses: B×6, `dapl.metrics.functional.loss_counts`.

        And bool B, whether its control region is what the name of the control says. Four passes.
        """
        everyone = torch.arange(len(self.labels), device=self.named.device).unsqueeze(1)
        weights = self.model.weights_of_classes(self.labels)[self.named, everyone]
        own_terms = (self.output.scores.gather(1, self.named) * weights).where(self.kept, -torch.inf)
        most = own_terms.argmax(1, keepdim=True)
        rows = torch.arange(len(most), device=most.device)
        region = self._evidence[rows, most.squeeze(1)]
        prototype = self.named.gather(1, most)
        control, matched = self._controls(region)
        before = self.output.scores.float().gather(1, prototype)
        hidden = (region, control, ~region, torch.ones_like(region))
        without_region, without_control, alone, nothing = (self._scores_without(each, prototype) for each in hidden)
        measured = self.kept.gather(1, most) & region.flatten(1).any(1, keepdim=True)
        losses = F.loss_counts(before, without_region, without_control, measured, alone, nothing).squeeze(1)
        return {"similarity_losses": losses, "control_matched": matched & measured.squeeze(1)}

    def _controls(self, region: Tensor) -> F.ControlRegions:
        """For one region per image, bool B×S×S."""
        masks = self.truth.masks
        control = control_of(self.protocol, masks is not None)
        places = [generator(self.protocol.seed, "region", index) for index in self.indices.tolist()]
        return F.control_regions(control, region, None if masks is None else masks.bool(), places)

    def _scores_without(self, hidden: Tensor, prototype: Tensor) -> Tensor:
        """B×1: the scores of one prototype per image (long B×1) with a region (bool B×S×S) blurred out. One pass."""
        images = F.blur_out(self.pixels, hidden, float(scaled(BLUR, self.size)))
        with self.run_data.processes.autocast():
            found = self.model(images).scores
        return found.float().gather(1, prototype)

    @cached_property
    def misalignment(self) -> dict[str, Tensor]:
        """What an attack on the pixels outside a region changes: one value per image for each of `ATTACK_COLUMNS`.

        NaN for images that are not attacked.
        """
        number = len(self.run_data.dataset(self.split))
        mine = torch.isin(self.indices, attacked_images(number, self.protocol.attack_images)).nonzero().flatten()
        found = torch.full((len(self.indices), len(ATTACK_COLUMNS)), torch.nan, dtype=torch.float64)
        for rows in mine.split(ATTACKED_AT_ONCE) if len(mine) else ():
            found[rows] = self._attacked(rows)
        return dict(zip(ATTACK_COLUMNS, found.unbind(1), strict=True))

    def _attacked(self, rows: Tensor) -> Tensor:
        """n×5, of some rows of the batch. The prototype is the one that is most similar to the image, as published."""
        model, protocol = self.model, self.protocol
        images, labels = self.pixels[rows.to(self.labels.device)], self.labels[rows.to(self.labels.device)]
        before = model(images)  # anew and without autocast, so that before and after differ by the attack alone
        kept = model.prototypes.kept
        prototype = before.scores.masked_fill(~kept, -torch.inf).argmax(1)
        allowed = F.outside(self._region(before, prototype, protocol.percentile), scaled(ATTACK_MARGIN, self.size))
        changed = F.attack(
            lambda changed: model(changed).scores.gather(1, prototype.unsqueeze(1)),
            images,
            allowed,
            protocol.attack_epsilon * torch.tensor(F.PUBLISHED_STD, device=images.device),
            protocol.attack_steps,
            [generator(protocol.seed, "attack", index) for index in self.indices[rows].tolist()],
        )
        after = model(changed)
        terms = F.misalignment_terms(
            self._region(before, prototype, ATTACK_PERCENTILE),
            self._region(after, prototype, ATTACK_PERCENTILE),
            before.scores,
            after.scores,
            prototype,
            kept & ~model.prototypes.of_images(labels),
            before.logits.argmax(1) == labels,
            after.logits.argmax(1) == labels,
        )
        return torch.stack([*terms, allowed.float().mean((-2, -1))], dim=1).double().cpu()

    def _region(self, output: Output, prototype: Tensor, percentile: float) -> Tensor:
        """bool n×S×S."""
        maps = self.model.maps(output.embedding.float(), prototype.unsqueeze(1))
        return model_regions(self.model, maps, self.size, percentile).squeeze(1)

    @cached_property
    def pixels(self) -> Tensor:
        """uint8 B×3×S×S, where the batch may be one of features."""
        if self.batch.images is not None:
            return self.batch.images
        source = self.run_data.images(self.split)
        images = [source[index, 0][0] for index in self.indices.tolist()]
        return torch.stack(images).to(self.run_data.processes.device)
