"""The contact sheet of a run: every prototype as the training patch that it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dapl.batches.run_data import RunData
from dapl.batches.sources import features_of
from dapl.common.files import replacing
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.data.build import hand_over
from dapl.data.sample import Splits
from dapl.explain.draw import TileSheet, draw_outline, fitting_text, head_colour, is_dashed, to_pil
from dapl.explain.parts import ImageFacts, ModelRecords, locate_in_images, slots_of
from dapl.metrics.naming import share_text
from dapl.processes.interface import SingleProcess
from dapl.runs.loading import LoadedRun, load_run
from dapl.runs.outlines import moved
from dapl.runs.schemas import PrototypeRecord

_INK, _QUIET, _WARN = "#1d1c1a", "#6a6761", "#a3200d"


def prototype_sheet(loaded: LoadedRun, run_data: RunData, classes: int = 20, tile: int = 112) -> Image.Image:
    """One row per class, one tile per prototype: its source image, outlined where the prototype is active.

    The outline has the colour of its head. Below stand the name of the prototype, how much of the outlined region lies
    on the object, and whether the prototype is background or was removed. Only the first ``classes``.
    """
    groups: dict[str, list[PrototypeRecord]] = {}
    for record in loaded.records:
        groups.setdefault(record.classes[0], []).append(record)
    shown = dict(list(groups.items())[:classes])
    tiles = render_sources(loaded, run_data, [record for records in shown.values() for record in records], tile)
    columns = max(len(records) for records in shown.values())
    sheet = TileSheet(len(shown) * columns, tile, columns, margin=8, above=22, below=40)
    bold, small = ImageFont.load_default(14), ImageFont.load_default(10)
    for row, (name, records) in enumerate(shown.items()):
        left, top = sheet.place(row * columns)
        sheet.draw.text((left, top - 22), name, fill="black", font=bold)
        for column, record in enumerate(records):
            made = tiles[record.index]
            left, top = sheet.paste(row * columns + column, made.image)
            for line, (text, ink) in enumerate(made.lines):
                text = fitting_text(text, small, tile)
                sheet.draw.text((left, top + tile + 1 + 12 * line), text, fill=ink, font=small)
    return sheet.image


@dataclass(frozen=True)
class SourceTile:
    """A prototype on the image that it came from, and what is said of it below."""

    image: Image.Image
    lines: list[tuple[str, str]]
    """Text and colour."""


def render_sources(
    loaded: LoadedRun, run_data: RunData, records: Sequence[PrototypeRecord], tile: int
) -> dict[int, SourceTile]:
    """A tile for each prototype, by index. One backbone pass per *image*, however many prototypes came from it."""
    dataset = run_data.dataset("train")
    known, slots = ModelRecords(loaded.classes, loaded.records, loaded.run.looks()), slots_of(loaded.model)
    heads = loaded.model.prototypes.groups > 1
    position = {name: index for index, name in enumerate(dataset.names)}
    by_image: dict[int, list[PrototypeRecord]] = {}
    tiles = {}
    for record in records:
        if record.image is None or record.image not in position:
            blank = Image.new("RGB", (tile, tile), (235, 235, 235))
            tiles[record.index] = SourceTile(blank, _lines(record, known, heads, None))
        else:
            by_image.setdefault(position[record.image], []).append(record)
    order = torch.tensor(sorted(by_image)).split(loaded.config.runtime.evaluation_batch) if by_image else ()
    for batch in run_data.shown("train", loaded.model).batches(order):
        assert batch.images is not None
        with torch.inference_mode():
            device = loaded.model.prototypes.vectors.device
            embedding = loaded.model.embed(features_of(loaded.model, batch.to(device)))
            shown = [by_image[index] for index in batch.indices.tolist()]
            named = [torch.tensor([record.index for record in own], device=device) for own in shown]
            maps = [loaded.model.maps(embedding[row : row + 1], own)[0] for row, own in enumerate(named)]
        facts = [None] * len(shown) if batch.masks is None else [ImageFacts(mask.bool()) for mask in batch.masks]
        located = locate_in_images(loaded.model, maps, batch.images.shape[-1], facts, [None] * len(shown))
        for image, own, found in zip(batch.images, shown, located, strict=True):
            for record, outline, share in zip(own, found.outlines, found.foreground, strict=True):
                path = None if outline is None else outline.path
                drawn = draw_tile(image, path, record, slots[record.index], tile)
                tiles[record.index] = SourceTile(drawn, _lines(record, known, heads, share))
    return tiles


def _lines(record: PrototypeRecord, known: ModelRecords, heads: bool, share: float | None) -> list[tuple[str, str]]:
    """``share``: of the outlined region, what lies on the object; said only where images have not been measured.

    A number that was measured decides whether a prototype is background, so it is the one that stands below each.
    """
    said = known.described(record.index)
    share = share if said.on_object is None else said.on_object
    lines = [(f"head {record.head}" if heads else f"prototype {record.index}", _INK)]
    if said.name is not None:
        lines.append((said.name, _INK))
    if not record.kept:
        return [*lines, ("removed", _QUIET)]
    if said.background:
        lines[0] = (f"{lines[0][0]} · background", _WARN)
    colour = _WARN if said.background else _QUIET
    return lines if share is None else [*lines, (f"{share_text(share)} on the object", colour)]


def draw_tile(image: Tensor, path: str | None, record: PrototypeRecord, slot: int, tile: int) -> Image.Image:
    """image uint8 3×S×S with the outline of a region in the colour of its head; grey where it was removed."""
    drawn = to_pil(image).resize((tile, tile), Image.Resampling.LANCZOS)
    if not record.kept:
        drawn = drawn.convert("L").convert("RGB")
    if path is not None:
        scaled = moved(path, 0, 0, tile / image.shape[-1])
        draw_outline(ImageDraw.Draw(drawn), scaled, head_colour(slot), is_dashed(slot), width=2)
    return drawn


def write_sheet(folder: Path, config: Config | None = None, splits: Splits | None = None) -> Path:
    """Draw prototypes.png of a finished run; ``splits``: its data, where that was handed over in Python."""
    loaded = load_run(folder, config=config)
    hand_over(loaded.config.data, splits)
    run_data = RunData(loaded.config, SingleProcess(), Reporter(quiet=True), splits)
    sheet = prototype_sheet(loaded, run_data)
    with replacing(loaded.run.sheet_file) as temporary:
        sheet.save(temporary, format="PNG", compress_level=4)  # 9 takes five times as long for 4 % of the file
    return loaded.run.sheet_file
