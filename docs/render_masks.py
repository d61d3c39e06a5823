"""Measures makers of masks on CUB against its true masks, and writes the table of docs/own-data.md.

python docs/render_masks.py measure $DAPL_CUB --sam-model mobile_sam.pt --rembg-model u2net.onnx   # also cub.json
python docs/render_masks.py                            # write the table of the page anew
python docs/render_masks.py --check                    # exit code 1 if the page is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dapl.common.files import write_json, write_text
from dapl.common.tables import Column, markdown

DOCS = Path(__file__).resolve().parent
KEPT, PAGE = DOCS / "masks" / "cub.json", DOCS / "own-data.md"
START, END = (f"<!-- made by docs/render_masks.py: {end} -->" for end in ("start", "end"))
METHODS = (
    ("rembg", False),
    ("rembg", True),
    ("sam", True),
    ("grabcut", True),
    ("features", False),
    ("features", True),
    ("grabcut", False),
)
"""Method, and whether it is told the box of the object."""
NAMES = {"rembg": "rembg (U²-Net)", "sam": "SAM (MobileSAM)", "grabcut": "GrabCut", "features": "features and GrabCut"}
COLUMNS = (
    Column("method"),
    Column("told"),
    Column("iou", "mean IoU", digits=3),
    Column("error", "standard error", digits=3),
    Column("good", "IoU ≥ 0.75", percent=True),
    Column("doubtful", "to look at", percent=True),
    Column("seconds", "CPU seconds per image", digits=2),
)


def measure(root: Path, models: dict[str, str | None], per_class: int, methods: Sequence[str]) -> dict[str, Any]:
    """The methods on the same images, the first ones of every class by their number; IoU with the true mask, and what
    `check` doubts."""
    from dapl.data.cub import read_cub
    from dapl.data.images import read_image
    from dapl.masks.doubts import mask_doubt
    from dapl.masks.refine import Prompt
    from dapl.prepare.masks import refiner_for
    from dapl.runs.provenance import provenance

    by_class: dict[int, list[Any]] = {}
    for record in read_cub(root):
        by_class.setdefault(record.label, []).append(record)
    records = [record for label in sorted(by_class) for record in by_class[label][:per_class]]
    chosen = [key for key in METHODS if key[0] in methods]
    paths = [record.path for record in records]
    refiners = {method: refiner_for(method, models.get(method), paths) for method, _ in chosen}
    found: dict[tuple[str, bool], list[tuple[float, bool, float]]] = {key: [] for key in chosen}
    for record in records:
        image = np.ascontiguousarray(read_image(record.path).permute(1, 2, 0).numpy())
        size = (image.shape[0], image.shape[1])
        assert record.mask is not None
        true = record.mask.read(size, record.path).numpy().astype(bool)
        for method, with_box in chosen:
            started = time.process_time()
            mask = refiners[method](image, Prompt(box=record.box if with_box else None))
            seconds = time.process_time() - started
            iou = float((mask & true).sum() / (mask | true).sum())
            found[method, with_box].append((iou, mask_doubt(mask) is not None, seconds))
    rows = []
    for (method, with_box), values in found.items():
        ious, doubts, seconds = (np.array(column, float) for column in zip(*values, strict=True))
        error = ious.std(ddof=1) / np.sqrt(len(ious))
        row = {"method": method, "box": with_box, "iou": ious.mean(), "error": error, "good": (ious >= 0.75).mean()}
        rows.append({name: _plain(value) for name, value in row.items()})
        rows[-1] |= {"doubtful": _plain(doubts.mean()), "seconds": _plain(np.median(seconds))}
    facts = provenance([])
    counts = {"images": len(records), "per_class": per_class}
    return {**facts, "command": "python docs/render_masks.py measure", **counts, "rows": rows}


def _plain(value: Any) -> Any:
    return round(float(value), 4) if isinstance(value, np.floating) else value


def rendered() -> str:
    """What stands between the marks of the page."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    rows = [
        {**row, "method": NAMES[row["method"]], "told": "the box" if row["box"] else "nothing"} for row in kept["rows"]
    ]
    images = "image" if kept["per_class"] == 1 else f"{kept['per_class']} images"
    below = (
        f"{kept['images']} images of CUB-200-2011, the first {images} of every class, against its true masks; "
        f"measured {kept['measured']} by `{kept['command']}`. *To look at*: flagged by `dapl prepare check`."
    )
    return f"{START}\n\n{markdown(rows, COLUMNS)}\n{below}\n\n{END}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["measure"])
    parser.add_argument("cub", nargs="?", type=Path)
    parser.add_argument("--sam-model")
    parser.add_argument("--rembg-model")
    parser.add_argument("--per-class", type=int, default=1, help="images of each class")
    parser.add_argument("--methods", default=",".join(NAMES), help="measure these again, and keep the other rows")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "measure":
        models = {"sam": arguments.sam_model, "rembg": arguments.rembg_model}
        methods = arguments.methods.split(",")
        found = measure(arguments.cub, models, arguments.per_class, methods)
        before = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
        if all(before.get(count) == found[count] for count in ("images", "per_class")):
            # on the same images, what was not measured again stays
            rows = {(row["method"], row["box"]): row for row in [*before["rows"], *found["rows"]]}
            found["rows"] = [rows[key] for key in METHODS if key in rows]
        write_json(KEPT, found)
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(START), text.index(END) + len(END)
    new = text[:start] + rendered() + text[end:]
    if arguments.check:
        return int(new != text)
    write_text(PAGE, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
