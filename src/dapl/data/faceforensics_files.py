"""What `dapl prepare faceforensics` leaves behind, and how it is read. Imports no torch.

prepare.json                              the settings it was made with; the same folder takes no others
manifest.jsonl                            one line per frame, left out or not, and one per video that was left out whole
<split>/<class>/<video>/<frame>.png       the face, cut out and square; <frame> counts from 0
<split>/<class>/<video>/<frame>-mask.png  its mask: 255 on the face, 0 elsewhere
<split>/<class>/<video>/landmarks.npy     float32 n×468×2, (x, y) in pixels of the cut-out face; `row` of the manifest
<split>/<class>/<video>/video.json        the lines of the manifest for this video: there when the folder is whole
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError
from dapl.common.files import replacing
from dapl.common.reading import LARGEST_DATA, read_as, read_text

REAL = "real"
MANIPULATIONS = ("Deepfakes", "Face2Face", "FaceSwap", "NeuralTextures")
SPLITS = ("train", "val", "test")
SETTINGS, MANIFEST, LANDMARKS, VIDEO = "prepare.json", "manifest.jsonl", "landmarks.npy", "video.json"
_AGAIN = "run `dapl prepare faceforensics ROOT OUT` to its end"


@dataclass(frozen=True)
class ManifestLine:
    """A line of the manifest: one frame, or a video that gave none (``frame`` is None)."""

    split: str | None
    """None for a video that no split names."""
    label: str
    """``real`` or the manipulation."""
    source: str
    """The video, below the folder of FaceForensics++."""
    frame: int | None = None
    """Its number in the video, from 0."""
    time: float | None = None
    """Seconds from the start."""
    face: bool | None = None
    """Whether a face was found; None where the frame could not be looked at."""
    faces: int | None = None
    """How many were; the largest is taken."""
    crop: tuple[int, int, int] | None = None
    """Left, top and side of the square that was cut out, in pixels of the frame."""
    method: str | None = None
    """How the mask was made: sam, grabcut, none (the hull as it is), or hull where the refinement strayed from it."""
    agreement: float | None = None
    """Intersection over union of the refined mask with the hull."""
    mask_area: float | None = None
    """Share of the cut-out image that the mask covers."""
    file: str | None = None
    """The image, below the prepared folder; None where the frame was left out."""
    row: int | None = None
    """The row of the video's landmarks.npy."""
    left_out: str | None = None
    """Why it was left out."""


def mask_name(file: str) -> str:
    return file.removesuffix(".png") + "-mask.png"


def write_manifest(root: Path, records: Iterable[ManifestLine]) -> None:
    with replacing(root / MANIFEST) as temporary, temporary.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def read_manifest(root: Path) -> list[ManifestLine]:
    path = root / MANIFEST
    lines = read_text(path, f"is {root} the folder that was prepared? If so, {_AGAIN}", LARGEST_DATA).splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(line_of(json.loads(line)))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DaplError(f"{path}, line {number}: not a line of a manifest ({error}); {_AGAIN} again.") from error
    return records


def line_of(fields: dict[str, Any]) -> ManifestLine:
    return ManifestLine(**{**fields, "crop": tuple(fields["crop"]) if fields.get("crop") else None})


def read_settings(root: Path) -> dict[str, Any]:
    path = root / SETTINGS
    advice = "data.root is the folder OUT that `dapl prepare faceforensics ROOT OUT` made"
    return read_as(path, dict[str, Any], advice)
