"""One video to one folder. The folder gets its name only when all is in it, so what has its name is whole."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dapl.data.faceforensics_files import LANDMARKS, VIDEO, Record, mask_name, record_of
from dapl.errors import DaplError
from dapl.masks.landmarks import FaceFinder
from dapl.masks.refine import Refiner, create_refiner
from dapl.prepare.faceforensics.face import cut_out, face_mask, landmarks_in, square_around
from dapl.prepare.faceforensics.layout import Video
from dapl.prepare.faceforensics.video import Frame, VideoError, sampled_frames


@dataclass(frozen=True)
class Settings:
    """What decides the pixels and lines of a prepared folder."""

    frames: int
    size: int
    margin: float
    refine: str
    sam_model: str | None
    face_model: str


class Tools:
    """What is made once a process: the finder of faces and the refiner."""

    def __init__(self, settings: Settings) -> None:
        self.refiner: Refiner = create_refiner(settings.refine, settings.sam_model)
        self.finder = FaceFinder(Path(settings.face_model))

    def close(self) -> None:
        self.finder.close()


def is_done(video: Video, root: Path, out: Path) -> bool:
    """Whether its folder is there and was made from the file as it is now."""
    try:
        made = json.loads((out / video.folder / VIDEO).read_text(encoding="utf-8"))
        return made["made_from"] == _state(root / video.source)
    except (OSError, ValueError, KeyError):
        return False


def read_records(video: Video, out: Path) -> list[Record]:
    made = json.loads((out / video.folder / VIDEO).read_text(encoding="utf-8"))
    return [record_of(fields) for fields in made["frames"]]


def prepare_video(video: Video, root: Path, out: Path, settings: Settings, tools: Tools) -> None:
    """Whatever is wrong with the video goes into its records; only what is wrong with us or the disk is raised."""
    folder = out / video.folder
    temporary = folder.with_name(f".{video.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        state = _state(root / video.source)
        records = _write_frames(video, root / video.source, temporary, settings, tools)
        made: dict[str, Any] = {"made_from": state, "frames": [asdict(record) for record in records]}
        (temporary / VIDEO).write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if folder.exists():  # of a file that has been replaced since
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    except OSError as error:
        raise DaplError(
            f"{error.filename or folder}: {error.strerror or error}; put it right, and the same command goes on where "
            "it stopped."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sweep(out: Path) -> None:
    """Remove what a killed process was about to write."""
    for folder in out.glob("*/*/.*.tmp"):
        shutil.rmtree(folder, ignore_errors=True)


def _write_frames(video: Video, path: Path, folder: Path, settings: Settings, tools: Tools) -> list[Record]:
    records: list[Record] = []
    landmarks: list[np.ndarray] = []
    whole = Record(video.split, video.label, video.source)
    try:
        for frame in sampled_frames(path, settings.frames):
            record, points = _write_frame(replace(whole, frame=frame.number, time=frame.time), frame, video, folder,
                                          settings, tools)  # fmt: skip
            if points is not None:
                record = replace(record, row=len(landmarks))
                landmarks.append(points)
            records.append(record)
    except VideoError as error:
        records.append(replace(whole, left_out=str(error)))
    if landmarks:
        np.save(folder / LANDMARKS, np.stack(landmarks))
    return records


def _write_frame(
    record: Record, frame: Frame, video: Video, folder: Path, settings: Settings, tools: Tools
) -> tuple[Record, np.ndarray | None]:
    """The face of one frame into ``folder``: its line, and its landmarks where it has a face."""
    if frame.image is None:
        return replace(record, left_out=frame.left_out), None
    faces = tools.finder(frame.image)
    record = replace(record, face=bool(faces), faces=len(faces))
    if not faces:
        return replace(record, left_out="no face found"), None
    square = square_around(faces[0], settings.margin, frame.image.shape[:2])
    picture = cut_out(frame.image, square, settings.size)
    points = landmarks_in(faces[0], square, settings.size)
    found = face_mask(picture, points, tools.refiner)
    if not found.mask.any():
        return replace(record, left_out="the face's mask is empty"), None
    name = f"{frame.number:05}.png"
    Image.fromarray(picture).save(folder / name)
    Image.fromarray(found.mask.astype(np.uint8) * 255).save(folder / mask_name(name))
    return replace(
        record,
        crop=(square.left, square.top, square.side),
        method=found.method,
        agreement=round(found.agreement, 4),
        mask_area=round(float(found.mask.mean()), 4),
        file=f"{video.folder}/{name}",
    ), points


def _state(path: Path) -> list[int]:
    """Size and time of a file: another state, another video."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
