"""The contact sheet of a run: every prototype as the training patch that it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFont
from torch import Tensor

from dapl.batches.run_data import RunData
from dapl.common.files import replacing
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.explain.draw import TileSheet, outline, to_pil
from dapl.metrics.functional.regions import model_regions
from dapl.processes.interface import SingleProcess
from dapl.runs.loading import LoadedRun, load_run
from dapl.runs.records import PrototypeRecord

_GREEN, _RED, _GREY = (60, 220, 90), (235, 60, 60), (150, 150, 150)


def prototype_sheet(loaded: LoadedRun, run_data: RunData, classes: int = 20, tile: int = 112) -> Image.Image:
    """One row per class, one tile per prototype: its source image, bright where the prototype is active.

    Outline green: grounded; red: no patch had enough foreground; grey: removed. Only the first ``classes``.
    """
    groups: dict[str, list[PrototypeRecord]] = {}
    for record in loaded.records:
        groups.setdefault(record.classes[0], []).append(record)
    shown = dict(list(groups.items())[:classes])
    tiles = render_sources(loaded, run_data, [record for records in shown.values() for record in records], tile)
    columns = max(len(records) for records in shown.values())
    sheet = TileSheet(len(shown) * columns, tile, columns, margin=6, above=22, below=15)
    bold, small = ImageFont.load_default(14), ImageFont.load_default(10)
    for row, (name, records) in enumerate(shown.items()):
        left, top = sheet.place(row * columns)
        sheet.draw.text((left, top - 22), name, fill="black", font=bold)
        for column, record in enumerate(records):
            left, top = sheet.paste(row * columns + column, tiles[record.index])
            sheet.draw.text((left, top + tile + 1), _caption(record), fill=_GREY, font=small)
    return sheet.image


def _caption(record: PrototypeRecord) -> str:
    if not record.kept:
        return f"head {record.head}: removed"
    share = "" if record.foreground_share is None else f"  fg {record.foreground_share:.2f}"
    return f"head {record.head}{share}"


def render_sources(
    loaded: LoadedRun, run_data: RunData, records: Sequence[PrototypeRecord], tile: int
) -> dict[int, Image.Image]:
    """A tile for each prototype, by index. One backbone pass per *image*, however many prototypes came from it."""
    dataset = run_data.dataset("train")
    position = {name: index for index, name in enumerate(dataset.names)}
    by_image: dict[int, list[PrototypeRecord]] = {}
    tiles = {}
    for record in records:
        if record.image is None or record.image not in position:
            tiles[record.index] = Image.new("RGB", (tile, tile), (235, 235, 235))
        else:
            by_image.setdefault(position[record.image], []).append(record)
    order = torch.tensor(sorted(by_image)).split(loaded.config.runtime.evaluation_batch) if by_image else ()
    for batch in run_data.images("train").batches(order):
        assert batch.images is not None
        with torch.inference_mode():
            device = loaded.model.prototypes.vectors.device
            embedding = loaded.model.embed(loaded.model.extractor(batch.images.to(device)))
        for row, index in enumerate(batch.indices.tolist()):
            for record in by_image[index]:
                named = torch.tensor([record.index], device=device)
                maps = loaded.model.maps(embedding[row : row + 1], named)
                region = model_regions(loaded.model, maps, batch.images.shape[-1])[0, 0].cpu()
                tiles[record.index] = draw_tile(batch.images[row], region, record, tile)
    return tiles


def draw_tile(image: Tensor, region: Tensor, record: PrototypeRecord, tile: int) -> Image.Image:
    """image uint8 3×S×S, dimmed outside region (bool S×S), whose outline tells how the prototype is grounded."""
    lit = to_pil((image * torch.where(region, 1.0, 0.5)).round().to(torch.uint8))
    if not record.kept:
        lit = lit.convert("L").convert("RGB")
    pixels = np.array(lit)
    pixels[outline(region).numpy()] = _GREY if not record.kept else _RED if record.grounded is False else _GREEN
    return Image.fromarray(pixels).resize((tile, tile), Image.Resampling.LANCZOS)


def write_sheet(folder: Path, config: Config | None = None) -> Path:
    """Draw prototypes.png of a finished run."""
    loaded = load_run(folder, config=config)
    run_data = RunData(loaded.config, SingleProcess(), Reporter(quiet=True))
    sheet = prototype_sheet(loaded, run_data)
    with replacing(loaded.run.sheet_file) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)
    return loaded.run.sheet_file
