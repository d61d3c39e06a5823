"""The attack of an evaluation: images changed outside the region of a prototype, and what that does to the model."""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.common.seeds import generator
from dapl.evaluation.views import ModelView, scaled
from dapl.metrics import functional as F
from dapl.metrics.functional.regions import model_regions
from dapl.models.contract import Output

MARGIN, PERCENTILE = 10, 90.0
"""As published: pixels (of an image of 224) around the box that are spared, and the region whose move is measured."""
AT_ONCE = 8
"""Images per step of the attack: what a backward pass keeps of an image is a hundred times the image."""
COLUMNS = ("spatial_misalignment", "activation_change", "rank_change", "accuracy_change", "attacked_share")


def attacked_images(number: int, limit: int) -> Tensor:
    """Which of the images are attacked, evenly over the data set, so that every class has its share: long, ascending.

    >>> attacked_images(10, 4), attacked_images(3, 4)
    (tensor([0, 3, 6, 9]), tensor([0, 1, 2]))
    """
    return torch.linspace(0, number - 1, min(number, limit), dtype=torch.float64).round().long()


def misalignment(view: ModelView) -> dict[str, Tensor]:
    """One value per image of the batch for each of `COLUMNS`; NaN for images that are not attacked."""
    number = len(view.run_data.dataset(view.split))
    mine = torch.isin(view.indices, attacked_images(number, view.protocol.attack_images)).nonzero().flatten()
    found = torch.full((len(view.indices), len(COLUMNS)), torch.nan, dtype=torch.float64)
    for rows in mine.split(AT_ONCE) if len(mine) else ():
        found[rows] = _attacked(view, rows)
    return dict(zip(COLUMNS, found.unbind(1), strict=True))


def _attacked(view: ModelView, rows: Tensor) -> Tensor:
    """n×5, of some rows of the batch. The prototype is the one that is most similar to the image, as published."""
    model, protocol = view.model, view.protocol
    images, labels = view.pixels[rows.to(view.labels.device)], view.labels[rows.to(view.labels.device)]
    before = model(images)  # anew and without autocast, so that before and after differ by the attack alone
    kept = model.prototypes.kept
    prototype = before.scores.masked_fill(~kept, -torch.inf).argmax(1)
    allowed = F.outside(_region(view, before, prototype, protocol.percentile), scaled(MARGIN, view.size))
    changed = F.attack(
        lambda changed: model(changed).scores.gather(1, prototype.unsqueeze(1)),
        images,
        allowed,
        protocol.attack_epsilon * model.backbone.std.flatten(),  # type: ignore[union-attr,operator]
        protocol.attack_steps,
        [generator(protocol.seed, "attack", index) for index in view.indices[rows].tolist()],
    )
    after = model(changed)
    terms = F.misalignment_terms(
        _region(view, before, prototype, PERCENTILE),
        _region(view, after, prototype, PERCENTILE),
        before.scores,
        after.scores,
        prototype,
        kept & ~model.prototypes.of_images(labels),
        before.logits.argmax(1) == labels,
        after.logits.argmax(1) == labels,
    )
    return torch.stack([*terms, allowed.float().mean((-2, -1))], dim=1).double().cpu()


def _region(view: ModelView, output: Output, prototype: Tensor, percentile: float) -> Tensor:
    """bool n×S×S."""
    maps = view.model.maps(output.embedding.float(), prototype.unsqueeze(1))
    return model_regions(view.model, maps, view.size, percentile).squeeze(1)
