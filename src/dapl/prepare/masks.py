"""`make_masks`: foreground masks for the images of a data set that have none, written where they are looked for."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from dapl.common.errors import DaplError
from dapl.common.files import expand_path
from dapl.common.progress import Reporter
from dapl.config import CocoData, CubData, DataSection, FolderData
from dapl.data.build import list_files
from dapl.data.images import read_image
from dapl.data.listing import Listing, Record
from dapl.masks.refine import Prompt, Refiner, create_refiner

AROUND_POINTS = 0.25
"""GrabCut looks for the object in the box of its keypoints, wider by this share of it on each side."""
LOG = "made.jsonl"
"""In the folder of masks: a line for each mask that was made, how and from what."""

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Job:
    """An image that wants a mask."""

    name: str
    image: Path
    target: Path
    box: Box | None
    """XYXY."""
    points: np.ndarray | None
    """float n×2: the visible keypoints, one or more."""


@dataclass
class Made:
    """What `make_masks` did."""

    folder: Path
    made: int = 0
    skipped: int = 0
    """Images that have a mask already."""
    left: int = 0
    """Images beyond the limit."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Names, and why."""


def make_masks(
    config: DataSection,
    method: str = "grabcut",
    model: str | None = None,
    limit: int | None = None,
    quiet: bool = False,
) -> Made:
    """``method`` and ``model``: see `create_refiner`. ``limit``: make no more than so many.

    SAM is prompted with box and visible keypoints where there are, else with the centre of the image. A file that
    exists is never written over; what was made stays when this is interrupted, and the next call makes the rest.
    """
    jobs, folder, have = jobs_of(config)
    done = Made(folder, skipped=have, left=0 if limit is None else max(0, len(jobs) - limit))
    jobs = jobs[:limit]
    refiner = create_refiner(method, model) if jobs else None
    with Reporter(quiet).track("masks", len(jobs)) as advance:
        for job in jobs:
            assert refiner is not None
            try:
                line = _make(job, refiner)
            except DaplError as error:
                done.failed.append((job.name, str(error)))
            else:
                done.made += line is not None
                done.skipped += line is None
                if line is not None:
                    _log(folder, line | {"method": method, "model": model})
            advance(1)
    return done


def _make(job: Job, refiner: Refiner) -> dict[str, Any] | None:
    """What to write down of the mask; None where another process made it in the meantime."""
    if job.target.exists():
        return None
    image = np.ascontiguousarray(read_image(job.image).permute(1, 2, 0).numpy())
    kind, prompt = prompt_of(job, refiner.name, (image.shape[0], image.shape[1]))
    mask = refiner(image, prompt)
    share = float(mask.mean())
    if share in (0.0, 1.0):
        found = "no foreground" if share == 0 else "no background"
        raise DaplError(
            f"{job.image}: {refiner.name} found {found} from the {kind}; draw {job.target} by hand, or take the "
            "image out."
        )
    if not _write_new(job.target, mask):
        return None
    return {"name": job.name, "prompt": kind, "foreground": round(share, 4)}


def prompt_of(job: Job, method: str, frame: tuple[int, int]) -> tuple[str, Prompt]:
    """What is known of where the object is, in a word and for the refiner. ``frame``: height and width."""
    points = job.points
    if points is not None:
        inside = (points >= 0) & (points < [frame[1], frame[0]])
        points = points[inside.all(axis=1)]
        points = points if len(points) else None
    box = _clipped(job.box, frame)
    if box is not None:
        return "box and keypoints" if points is not None else "box", Prompt(box=box, points=points)
    if points is None:
        return "centre of the image", Prompt(points=np.array([[frame[1] / 2, frame[0] / 2]]))
    return "keypoints", Prompt(box=None if method == "sam" else _clipped(_around(points), frame), points=points)


def _around(points: np.ndarray) -> Box:
    low, high = points.min(axis=0), points.max(axis=0)
    reach = (high - low).max() * AROUND_POINTS + 1
    return tuple(float(n) for n in (*(low - reach), *(high + reach)))  # type: ignore[return-value]


def _clipped(box: Box | None, frame: tuple[int, int]) -> Box | None:
    """None where nothing of it lies in the image."""
    if box is None:
        return None
    x1, x2 = (min(max(x, 0.0), frame[1]) for x in (box[0], box[2]))
    y1, y2 = (min(max(y, 0.0), frame[0]) for y in (box[1], box[3]))
    return (x1, y1, x2, y2) if x2 - x1 >= 1 and y2 - y1 >= 1 else None


def _write_new(path: Path, mask: np.ndarray) -> bool:
    """Whole or not at all, and never over a file that exists: False where there is one."""
    content = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).save(content, format="PNG")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.getvalue())
        os.link(temporary, path)  # unlike a rename, refuses to replace
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _log(folder: Path, line: dict[str, Any]) -> None:
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


# --- which images -------------------------------------------------------------------------------------------------


def jobs_of(config: DataSection) -> tuple[list[Job], Path, int]:
    """Images without a mask, the folder that masks go to, and how many images have one."""
    if isinstance(config, CubData):
        return _jobs_of_cub(config)
    listing = list_files(config)
    if listing is None or listing.masks is None:
        name = getattr(config, "name", "?")
        raise DaplError(f"data.name: masks can be made for folder, coco and cub, not for {name}.")
    jobs = _jobs_of_folder(listing) if isinstance(config, FolderData) else _jobs_of_coco(listing, config)  # type: ignore[arg-type]
    return jobs, listing.masks, sum(record.mask is not None for record in listing)


def _jobs_of_folder(listing: Listing) -> list[Job]:
    """The mask of a.jpg is a.png, but a.jpg.png where there is an a.webp beside it."""
    assert listing.masks is not None
    times = Counter(_without_suffix(record.name) for record in listing)
    jobs = []
    for record in listing:
        if record.mask is None:
            bare = _without_suffix(record.name)
            name = f"{record.name}.png" if times[bare] > 1 else f"{bare}.png"
            jobs.append(_job(record, listing.masks / name))
    return jobs


def _jobs_of_coco(listing: Listing, config: CocoData) -> list[Job]:
    from dapl.data.coco import mask_file

    jobs = []
    for split, records in listing.records.items():
        file = expand_path(getattr(config, split), f"data.{split}")
        masks = None if config.masks is None else expand_path(config.masks, "data.masks")
        jobs += [_job(record, mask_file(file, record.name, masks)) for record in records if record.mask is None]
    return jobs


def _jobs_of_cub(config: CubData) -> tuple[list[Job], Path, int]:
    from dapl.data.cub import choose_classes, read_annotations

    root = expand_path(config.root, "data.root")
    listed = read_annotations(root)
    beside = root.resolve().parent / "segmentations"
    folder = beside if beside.is_dir() and not (root / "segmentations").is_dir() else root / "segmentations"
    jobs, have = [], 0
    for row in np.flatnonzero(np.isin(listed.labels, choose_classes(listed.classes, config.classes))):
        name = listed.names[row]
        target = folder / f"{_without_suffix(name)}.png"
        points = listed.keypoints[row][listed.visible[row]]
        box: Box = tuple(listed.boxes[row].tolist())
        if target.exists():
            have += 1
        else:
            jobs.append(Job(name, root / "images" / name, target, box, points if len(points) else None))
    return jobs, folder, have


def _job(record: Record, target: Path) -> Job:
    points = None
    if record.points is not None and record.visible is not None and record.visible.any():
        points = record.points[record.visible]
    return Job(record.name, record.path, target, record.box, points)


def _without_suffix(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))
