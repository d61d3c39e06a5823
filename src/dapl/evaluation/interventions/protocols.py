"""The protocols of FunnyBirds on toy birds: what is changed in each image, and the scores that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dapl.common.seeds import generator
from dapl.data.toybirds import PARTS, ToyBirds
from dapl.evaluation.interventions.subjects import PIECES, BirdImage, Subject, Variant, looks
from dapl.evaluation.statistics import Number, Statistic, with_intervals
from dapl.metrics import functional as F

THRESHOLDS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.2, 0.35)
"""Shares of the relevance of an image from which on a piece counts as important; the best of them is taken."""
IRRELEVANT = 0.05
"""Share of what the whole bird is worth, below which a loss does not count."""
BACKGROUNDS = 2
"""Other places that each bird is put at."""

AT_THRESHOLDS = ("csdc", "preservation", "deletion", "distractibility")
WHOLE = ("single_deletion", "target_sensitivity")
OF_THE_MODEL = ("accuracy", "background_independence", "scene_independence")


@dataclass(frozen=True)
class ImageScores:
    """What one image says. T thresholds; NaN where a protocol does not apply."""

    at_thresholds: Mapping[str, Tensor]
    """For each explanation 4×T, in the order of `AT_THRESHOLDS`."""
    whole: Mapping[str, Tensor]
    """For each explanation 2, in the order of `WHOLE`."""
    of_model: Tensor
    """3, in the order of `OF_THE_MODEL`."""


class Protocols:
    """All protocols, on one image after the other.

    Beside the explanations of the subject there are three that any explanation should be held against: ``drops``, what
    the logits really lose without each piece (a measurement, which no explanation beats in SD), ``shuffled``, the first
    explanation with its importances dealt out anew, and ``even``, the same relevance on every pixel.
    """

    def __init__(
        self, birds: ToyBirds, subject: Subject, thresholds: Sequence[float] = THRESHOLDS, seed: int = 0
    ) -> None:
        self.birds, self.subject, self.seed = birds, subject, seed
        self.thresholds = torch.tensor(thresholds, dtype=torch.float64)
        self.looks = looks(birds)
        self._sufficient = lru_cache(maxsize=4096)(self._sufficient_sets)

    @property
    def names(self) -> list[str]:
        """The names of all explanations that get scores."""
        return [*self.subject.names, "drops", "shuffled", "even"]

    def of_image(self, index: int) -> ImageScores:
        image = BirdImage(self.birds, index)
        rivals = self._rivals(image)
        asked = _Asked(self.subject, image)
        singles = [frozenset({piece}) for piece in PIECES]
        sets = [frozenset(), frozenset(PARTS), *(image.named(parts) for parts in rivals.parts), *singles]
        asked.need([Variant(without & image.named(image.visible)) for without in sets])
        asked.need([Variant(background=number) for number in range(BACKGROUNDS)])
        logits = asked.logits(Variant())
        predicted = int(logits.argmax())
        explainable = predicted if predicted < len(self.looks) else image.label  # 'none of them' has no explanation
        classes = torch.tensor([image.label, explainable, *rivals.classes])
        losses = torch.stack([logits - asked.logits(Variant(one & image.named(image.visible))) for one in singles])
        worth = logits - asked.logits(Variant(image.named(torch.ones(len(PARTS), dtype=torch.bool))))
        explained = self._explanations(image, classes, losses)
        important = {
            name: F.important_pieces(values[:2], self.thresholds)[..., :-1] for name, values in explained.items()
        }
        parts = {name: found[1, :, : len(PARTS)] for name, found in important.items()}
        asked.need([Variant(image.named(flags)) for rows in parts.values() for row in rows for flags in (row, ~row)])
        drops, worth = losses[:, image.label], worth[image.label]
        irrelevant = F.irrelevant_pieces(drops, worth, IRRELEVANT) & image.visible
        valid = self._reacts(image, asked, rivals)

        at_thresholds, whole = {}, {}
        for name, values in explained.items():
            csdc = F.controlled_data_check(important[name][0, :, : len(PARTS)], self._sufficient_of(image))
            if predicted != image.label:
                csdc = torch.full_like(csdc, torch.nan)
            stays = torch.tensor([asked.label(Variant(image.named(~row))) == predicted for row in parts[name]])
            changes = torch.tensor([asked.label(Variant(image.named(row))) != predicted for row in parts[name]])
            distracted = F.distractibility(important[name][0], irrelevant.expand_as(important[name][0]))
            at_thresholds[name] = torch.stack([csdc, stays.float(), changes.float(), distracted]).double()
            part_values, seen = values[:, : len(PARTS)], image.visible[: len(PARTS)]
            deletion = F.single_deletion(part_values[0], drops[: len(PARTS)], seen)
            sensitive = torch.tensor(torch.nan)
            if valid:
                sensitive = F.target_sensitivity(part_values[2], part_values[3], *rivals.parts)
            whole[name] = torch.stack([deletion, sensitive.double()])
        things = slice(len(PARTS), len(PIECES))
        independent = F.background_independence(drops[things], worth, image.visible[things], IRRELEVANT)
        kept = [asked.label(Variant(background=number)) == predicted for number in range(BACKGROUNDS)]
        of_model = [float(predicted == image.label), float(independent), sum(kept) / len(kept)]
        return ImageScores(at_thresholds, whole, torch.tensor(of_model, dtype=torch.float64))

    def _explanations(self, image: BirdImage, classes: Tensor, losses: Tensor) -> dict[str, Tensor]:
        """For each explanation M×J: importances of all pieces for each of the classes. losses: (J − 1)×C."""
        found = {name: values.double() for name, values in self.subject.importances(image, classes).items()}
        first = next(iter(found.values()))
        seen = torch.cat([image.visible, torch.ones(1, dtype=torch.bool)]).nonzero().flatten()
        shuffled = torch.zeros_like(first)
        for row, (label, values) in enumerate(zip(classes.tolist(), first, strict=True)):
            # one order for a class, also where it is asked for twice: label and prediction may be the same
            order = torch.randperm(len(seen), generator=generator(self.seed, "shuffled", image.index, label))
            shuffled[row, seen] = values[seen[order]]
        rest = torch.zeros(len(classes), 1, dtype=torch.float64)
        even = F.part_importance(torch.ones(image.masks.shape[-2:]), image.masks).expand_as(first)
        return {**found, "drops": torch.cat([losses.T[classes], rest], dim=1), "shuffled": shuffled, "even": even}

    def _sufficient_of(self, image: BirdImage) -> Tensor:
        return self._sufficient(image.label, tuple(image.visible[: len(PARTS)].tolist()))

    def _sufficient_sets(self, label: int, visible: tuple[bool, ...]) -> Tensor:
        return F.sufficient_sets(self.looks, label, torch.tensor(visible))

    def _rivals(self, image: BirdImage) -> _Rivals:
        """Two other classes, each of which shares visible parts with the image that the other does not share.

        Of all such pairs one is drawn among those in which the class with fewer such parts has most.
        """
        same = (self.looks == self.looks[image.label]) & image.visible[: len(PARTS)]
        same[image.label] = False
        own = same.unsqueeze(1) & ~same.unsqueeze(0)  # [a, b]: the parts that a shares with the image and b does not
        fewer = torch.minimum(own.sum(-1), own.sum(-1).T).triu(1)
        if not int(fewer.max()):
            return _Rivals((image.label, image.label), (same[image.label], same[image.label]))
        pairs = (fewer == fewer.max()).nonzero()
        chosen = int(torch.randint(len(pairs), (), generator=generator(self.seed, "rivals", image.index)))
        a, b = pairs[chosen].tolist()
        return _Rivals((a, b), (own[a, b], own[b, a]))

    def _reacts(self, image: BirdImage, asked: _Asked, rivals: _Rivals) -> bool:
        """Whether each of the two classes loses more without its own parts than without the other's, as it should.

        Only then can an explanation be asked to tell the two apart (the paper leaves the other images out too).
        """
        (a, b), (of_a, of_b) = rivals.classes, rivals.parts
        if a == b:
            return False
        without_a, without_b = (asked.logits(Variant(image.named(parts))) for parts in (of_a, of_b))
        return bool(without_a[a] < without_b[a]) and bool(without_b[b] < without_a[b])


@dataclass(frozen=True)
class _Rivals:
    classes: tuple[int, int]
    parts: tuple[Tensor, Tensor]
    """bool K each."""


class _Asked:
    """The logits of the variants of one image; each is asked for once."""

    def __init__(self, subject: Subject, image: BirdImage) -> None:
        self.subject, self.image = subject, image
        self.found: dict[Variant, Tensor] = {}

    def need(self, variants: Sequence[Variant]) -> None:
        new = [variant for variant in dict.fromkeys(variants) if variant not in self.found]
        if new:
            self.found |= dict(zip(new, self.subject.logits(self.image, new), strict=True))

    def logits(self, variant: Variant) -> Tensor:
        """C."""
        self.need([variant])
        return self.found[variant]

    def label(self, variant: Variant) -> int:
        return int(self.logits(variant).argmax())


def summarise_scores(
    at_thresholds: Tensor, whole: Tensor, resamples: int = 1000, seed: int = 0
) -> tuple[dict[str, Number], int]:
    """The numbers of one explanation with their intervals, and the place of the threshold that is best for it.

    As in the paper the threshold is the one at which completeness is highest, here in every resample anew, so that the
    intervals know of the choice.

    Args:
        at_thresholds: n×4×T, `ImageScores.at_thresholds`.
        whole: n×2, `ImageScores.whole`.
        resamples: of the bootstrap over images.
        seed: of the resamples.
    """
    values = torch.cat([at_thresholds.flatten(1), whole], dim=1)
    columns = torch.cat([values.nan_to_num(0.0), (~values.isnan()).double()], dim=1)
    thresholds = at_thresholds.shape[2]

    def means(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, number = sums.chunk(2, dim=1)
        mean = total / number
        four = mean[:, : 4 * thresholds].unflatten(1, (4, thresholds))
        complete = F.completeness(*four.unbind(1))
        return four, complete, mean[:, 4 * thresholds :]

    def best(complete: Tensor) -> Tensor:
        return complete.nan_to_num(-1.0).argmax(1)

    def finish(sums: Tensor) -> dict[str, Tensor]:
        four, complete, two = means(sums)
        place = best(complete).unsqueeze(1)
        found = dict(
            zip(AT_THRESHOLDS, four.gather(2, place[..., None].expand(-1, 4, -1))[..., 0].unbind(1), strict=True)
        )
        found |= dict(zip(WHOLE, two.unbind(1), strict=True))
        found["completeness"] = complete.gather(1, place)[:, 0]
        found["correctness"], found["contrastivity"] = two.unbind(1)
        return found | {"mean": (found["completeness"] + found["correctness"] + found["contrastivity"]) / 3}

    numbers = with_intervals([Statistic(columns, finish, biased=True)], resamples, seed)
    _, complete, _ = means(columns.sum(0, keepdim=True))
    return numbers, int(best(complete))
