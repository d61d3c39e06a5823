"""The images of the page: some of the evaluated split per class, and those that prototypes came from.

Every image goes through the model once, with all prototypes that are to be shown on it. The page gets them as two files
per class, a sheet of photographs and a sheet of heat maps to lay over them: a file for each would be thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from dapl.batches.run_data import RunData, Split
from dapl.batches.sources import Batch, run_model
from dapl.common.progress import Reporter
from dapl.evaluation.ground_truth import GroundTruth, SplitGroundTruth
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.explain.draw import HEAT, TileSheet, encoded, levels_of, palette, to_pil
from dapl.explain.parts import ImageFacts, heat_of, locate_in_images, squares_of
from dapl.explain.patches import Box, close_up_of
from dapl.models.contract import Output, PrototypeModel
from dapl.report.facts import rounded
from dapl.runs.schemas import PrototypeRecord

_COLUMNS = 8
_GUARD = 1
"""Cells around a heat map that repeat its edge, so that a browser that smooths does not mix in the neighbour."""
_LEVELS = 48
"""Shades of a heat map: nobody sees more, and a third of the bytes is saved."""
_QUALITY = 80
_TOGETHER = 128
"""Maps that are drawn together, at most: to begin takes longer than to go on, but each takes the memory of an image."""
HEAT_SIDE = 28
"""Cells per side of a heat map; the browser smooths them, as the model's own grid is coarser still."""


def tile_side(prototypes: int) -> int:
    """Pixels per side of a photograph: the more there are, the smaller. Multiples of 16, JPEG's blocks, so that tiles
    do not run into each other."""
    return 176 if prototypes <= 400 else 160 if prototypes <= 2400 else 96


def photo_sheet(images: Sequence[Tensor]) -> tuple[bytes, dict[str, Any]]:
    """uint8 3×T×T each → JPEG, and where its tiles are."""
    side = images[0].shape[-1]
    sheet = TileSheet(len(images), side, _COLUMNS)
    for number, image in enumerate(images):
        sheet.paste(number, to_pil(image))
    return encoded(sheet.image, "JPEG", optimize=True, quality=_QUALITY), _layout(sheet, side, 0)


def heat_sheet(heats: Sequence[Tensor]) -> tuple[bytes, dict[str, Any]]:
    """uint8 h×h each → PNG to lay over photographs, and where its tiles are."""
    side = heats[0].shape[-1]
    sheet = TileSheet(len(heats), side + 2 * _GUARD, _COLUMNS, mode="P", ground=0)
    shades = np.rint(torch.stack(list(heats)).numpy() * ((_LEVELS - 1) / 255)).astype(np.uint8)
    shades = np.pad(shades, ((0, -len(heats) % sheet.columns), (0, 0), (0, 0)))  # the last row may have empty places
    shades = np.pad(shades, ((0, 0), (_GUARD, _GUARD), (_GUARD, _GUARD)), mode="edge")
    rows = shades.reshape(-1, sheet.columns, *shades.shape[1:]).swapaxes(1, 2)
    sheet.image.paste(Image.fromarray(np.ascontiguousarray(rows).reshape(sheet.image.size[::-1])))
    colours = palette(HEAT)[np.rint(np.linspace(0, 255, _LEVELS)).astype(int)]
    sheet.image.putpalette(colours[:, :3].tobytes())
    transparency = colours[:, 3].tobytes()
    return encoded(sheet.image, "PNG", compress_level=6, transparency=transparency), _layout(sheet, side, _GUARD)


def _layout(sheet: TileSheet, side: int, guard: int) -> dict[str, int]:
    """For the script of the page, which cuts the tiles out again."""
    width, height = sheet.image.size
    return {"columns": sheet.columns, "side": side, "guard": guard, "width": width, "height": height}


@dataclass(frozen=True)
class ShownImage:
    """One image, and the prototypes that are shown on it."""

    name: str
    image: Tensor
    """uint8 3×T×T."""
    predicted: int
    probability: float
    heats: dict[int, Tensor]
    """By prototype, uint8 HEAT_SIDE×HEAT_SIDE: its map on the image, scaled to its own range."""
    values: dict[int, dict[str, Any]]
    """By prototype, what the page says: ``score``, the part ``here``, ``foreground``, the ``outline`` of the region and
    the ``view`` of a close-up, both in pixels of the image that the model sees, None where there is no region."""


def spread_images(labels: Sequence[int], classes: int, count: int) -> list[list[int]]:
    """For each class up to ``count`` images, spread evenly over those there are: not the best, not the worst."""
    own: list[list[int]] = [[] for _ in range(classes)]
    for index, label in enumerate(labels):
        own[label].append(index)
    return [
        [rows[(2 * n + 1) * len(rows) // (2 * count)] for n in range(count)] if len(rows) > count else rows
        for rows in own
    ]


def source_rows(records: Sequence[PrototypeRecord], names: Sequence[str]) -> dict[int, list[int]]:
    """Index of each training image that prototypes came from, with these; images not at hand are left out."""
    position = {name: index for index, name in enumerate(names)}
    found: dict[int, list[int]] = {}
    for record in records:
        if record.image in position:
            found.setdefault(position[record.image], []).append(record.index)
    return dict(sorted(found.items()))


@torch.no_grad()
def show_images(
    model: PrototypeModel,
    run_data: RunData,
    split: Split,
    prototypes: Mapping[int, Sequence[int]],
    protocol: EvaluationProtocol,
    side: int,
    reporter: Reporter,
) -> dict[int, ShownImage]:
    """Images of the split by index; ``prototypes``: those shown on each; ``side``: T."""
    truth = SplitGroundTruth(run_data, split, protocol)
    rows = list(prototypes)
    order = list(torch.tensor(rows, dtype=torch.long).split(run_data.config.runtime.evaluation_batch)) if rows else []
    shown: dict[int, ShownImage] = {}
    with reporter.track(f"images of {split}", len(rows)) as advance:
        for batch in run_data.shown(split, model).batches(order):
            shown |= _show_batch(model, run_data, batch, prototypes, truth, side)
            advance(len(batch))
    return shown


def _show_batch(
    model: PrototypeModel,
    run_data: RunData,
    batch: Batch,
    prototypes: Mapping[int, Sequence[int]],
    truth: SplitGroundTruth,
    side: int,
) -> dict[int, ShownImage]:
    with run_data.processes.autocast():
        output = run_model(model, batch.to(run_data.processes.device))
    known = truth.of(batch, torch.device("cpu"))
    dataset = run_data.dataset(truth.split)
    assert batch.images is not None
    size = int(batch.images.shape[-1])
    small = F.interpolate(batch.images.float(), size=(side, side), mode="bilinear", antialias=True)
    small = small.round().clamp(0, 255).byte()
    confidence, predicted = output.logits.float().softmax(1).cpu().max(1)
    shown = {}
    for rows in _groups([len(prototypes[index]) for index in batch.indices.tolist()]):
        named = {row: list(prototypes[int(batch.indices[row])]) for row in rows}
        facts = {row: _facts(known, row, dataset.parts) for row in rows}
        for row, (heats, values) in _prototypes_on(model, output, named, facts, size).items():
            index, share = int(batch.indices[row]), float(confidence[row])
            shown[index] = ShownImage(dataset.names[index], small[row], int(predicted[row]), share, heats, values)
    return shown


def _groups(counts: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of images, in order, in groups with no more maps than are drawn together; one by one if need be.

    >>> list(_groups([100, 28, 1, 500, 3]))
    [[0, 1], [2], [3], [4]]
    """
    group: list[int] = []
    for row, count in enumerate(counts):
        if group and sum(counts[other] for other in group) + count > _TOGETHER:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _prototypes_on(
    model: PrototypeModel,
    output: Output,
    named: Mapping[int, Sequence[int]],
    facts: Mapping[int, ImageFacts],
    size: int,
) -> dict[int, tuple[dict[int, Tensor], dict[int, dict[str, Any]]]]:
    """``heats`` and ``values`` of `ShownImage` for rows of a batch, each with the prototypes that are shown on it."""
    embedding = output.embedding.float()
    found: dict[int, tuple[dict[int, Tensor], dict[int, dict[str, Any]]]] = {row: ({}, {}) for row in named}
    with_some = [row for row, own in named.items() if own]
    if not with_some:
        return found
    listed = [torch.tensor(named[row], device=embedding.values.device) for row in with_some]
    pairs = list(zip(with_some, listed, strict=True))
    maps = [model.maps(embedding[row : row + 1], own)[0] for row, own in pairs]
    squares = [squares_of(model, embedding, row, own) for row, own in pairs]
    located = locate_in_images(model, maps, size, [facts[row] for row in with_some], squares)
    cells = F.adaptive_avg_pool2d(heat_of(model, torch.cat(maps), size).unsqueeze(1), HEAT_SIDE).squeeze(1)
    levels = torch.from_numpy(levels_of(cells)).split([len(own) for own in listed])
    for (row, own), place, seen, heats in zip(pairs, located, squares, levels, strict=True):
        scores = output.scores[row, own].tolist()
        for m, j in enumerate(named[row]):
            outline, box = place.outlines[m], place.boxes[m]
            near = box if seen is not None else None if outline is None else outline.main
            found[row][0][j] = heats[m]
            found[row][1][j] = {
                "outline": None if outline is None else outline.path,
                "view": squared(near, size, seen is not None),
                "score": rounded(scores[m]),
                "here": place.parts[m],
                "foreground": rounded(place.foreground[m]),
            }
    return found


def squared(box: Box | None, size: int, exact: bool) -> Box | None:
    """The square of a close-up in an image of size × size pixels: of a head that sees a crop the crop, filled up where
    the image ends.

    >>> squared((10, 0, 30, 16), 100, exact=True)
    (10, 0, 30, 20)
    """
    if box is None or not exact:
        return None if box is None else close_up_of(box, size)
    left, top, right, bottom = box
    side = min(size, max(right - left, bottom - top))
    left, top = (min(edge, size - side) for edge in (left, top))
    return left, top, left + side, top + side


def _facts(known: GroundTruth, row: int, names: Sequence[str]) -> ImageFacts:
    parts, visible, masks = (None if t is None else t[row] for t in (known.parts, known.visible, known.masks))
    return ImageFacts(None if masks is None else masks.bool(), parts, visible, names)
